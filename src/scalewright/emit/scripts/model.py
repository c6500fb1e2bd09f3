"""The network as Hugging Face's config.json, and base models that other configurations name.

model: llama-3.1-8b                       config.json beside the script
base_model: meta-llama/Llama-3.1-8B       a preset by its name on the Hub, else hf:meta-llama/Llama-3.1-8B
model_name_or_path: ./folder              the config.json there
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalewright.emit.scripts.render import as_json
from scalewright.emit.settings import Settings
from scalewright.emit.theirs import Theirs
from scalewright.spec.huggingface import to_huggingface
from scalewright.spec.presets import is_preset
from scalewright.spec.text.untrusted import inside, read_json

CONFIG = "config.json"
LIMIT = 20 << 20  # bytes of a file beside a configuration
# Families whose modules in transformers take no position_ids, by which documents of a row are masked.
WITHOUT_POSITIONS = ("bloom",)


def write_config(s: Settings) -> str:
    """The config.json; raises UserError for a network that no family of transformers has."""
    config = to_huggingface(s.model)
    for key in s.values:
        if key.startswith("model.") and key != "model.mtp_layers":
            s.take(key)
    for key in ("model.mtp_layers", "train.mtp_weight"):
        s.drop(key, "transformers trains no prediction modules")
    return as_json(config | {"use_cache": False})


def masks_refused(s: Settings) -> str | None:
    """Why documents of a row can't be masked from each other in this model; None: they can."""
    if s.model.family in WITHOUT_POSITIONS:
        return f"transformers' {s.model.family} takes no position_ids"
    return None


def read_model(t: Theirs, key: str, where: str, run: dict[str, Any]) -> None:
    """The model that a key of theirs names; else that of a config.json beside the file."""
    name = t.take(key)
    if isinstance(name, str) and name:
        folder = Path(where).parent / name
        if is_preset(name):
            run["model"] = name
        elif (folder / CONFIG).is_file() or folder.suffix == ".json":
            run["model"] = str(folder)
        elif name.count("/") == 1 and not name.startswith((".", "/", "~")):
            run["model"] = f"hf:{name}"
        else:
            t.refuse(key, "there is no config.json: set model")
        return
    read_beside(where, run)


def read_beside(where: str, run: dict[str, Any]) -> None:
    """The model of a config.json that lies beside a configuration."""
    if "model" not in run and (Path(where).parent / CONFIG).is_file():
        run["model"] = str(Path(where).parent / CONFIG)


def linked(value: Any, where: str) -> dict[str, Any] | None:
    """A JSON file in a configuration's folder that it names, or what is written in its place; else None."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        return None
    try:
        document = read_json(inside(Path(where).parent, value.removeprefix("./")), LIMIT)
    except (OSError, ValueError):  # UserError is one: a file outside of the folder
        return None
    return document if isinstance(document, dict) else None
