"""The network as Hugging Face's config.json, and base models that other configurations name.

model: llama-3.1-8b                       config.json beside the script
base_model: meta-llama/Llama-3.1-8B       a preset by its name on the Hub, else hf:meta-llama/Llama-3.1-8B
model_name_or_path: ./folder              the config.json there
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from scalewright.emit.emitted import yaml_text
from scalewright.emit.foreign import ForeignKeys, RunKeys
from scalewright.emit.settings import Settings
from scalewright.spec.common.untrusted import inside, read_json
from scalewright.spec.huggingface import to_huggingface
from scalewright.spec.presets import is_preset

CONFIG, SCRIPT = "config.json", "train.py"
LIMIT, ABOVE = 20 << 20, 3  # bytes of a file that a configuration names; folders above it, as examples/train_full/
# Families whose modules in transformers take no position_ids, by which documents of a row are masked.
WITHOUT_POSITIONS = ("bloom",)
FOLDER = Path(__file__).parent
SAMPLES = (FOLDER / "samples.txt").read_text(encoding="utf-8")


def write_config(s: Settings) -> str:
    """The config.json; raises UserError for a network that no family of transformers has."""
    config = to_huggingface(s.model)
    for key in s.values:
        if key.startswith("model.") and key != "model.mtp_layers":
            s.take(key)
    for key in ("model.mtp_layers", "train.mtp_weight"):
        s.drop(key, "transformers trains no prediction modules")
    return as_json(config | {"use_cache": False})


def masks_refused(s: Settings, contexts: str = "context parallelism has no masks but the causal one") -> str | None:
    """Why documents of a row can't be masked from each other, in this model or with cp; None: they can."""
    if s.model.family in WITHOUT_POSITIONS:
        return f"transformers' {s.model.family} takes no position_ids"
    return contexts if s.layout.cp > 1 else None


def preset_of(name: object) -> str | None:
    """The preset that a trainer's name means: `llama2-7b`, `meta-llama/Llama-3.1-8B-Instruct-mcore`; else None."""
    last = str(name).rstrip("/").rpartition("/")[2].removesuffix(".nemo")
    plain = re.sub(r"(-(mcore|instruct|chat|base|hf|it))+$", "", last, flags=re.IGNORECASE)
    return next((each for each in (plain, re.sub(r"^([A-Za-z]+)(?=\d)", r"\1-", plain)) if is_preset(each)), None)


def read_model(t: ForeignKeys, key: str, where: str, run: RunKeys) -> None:
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


def read_beside(where: str, run: RunKeys) -> None:
    """The model of a config.json that lies beside a configuration."""
    if "model" not in run and (Path(where).parent / CONFIG).is_file():
        run["model"] = str(Path(where).parent / CONFIG)


def linked(value: Any, where: str) -> dict[str, object] | None:
    """A JSON file that a configuration names, or what is written in its place; else None.

    Its name counts from where the trainer is started: the configuration's folder, or one of some above it.
    """
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        return None
    for folder in (Path(where).parent, *list(Path(where).absolute().parent.parents)[:ABOVE]):
        try:
            document = read_json(inside(folder, value.removeprefix("./")), LIMIT)
        except (OSError, ValueError):  # UserError is one: a file outside of the folder
            continue
        return document if isinstance(document, dict) else None
    return None


@cache
def _templates() -> jinja2.Environment:
    """Of Python text: nothing is escaped, and an unknown name is an error."""
    loader = jinja2.FileSystemLoader(FOLDER)
    templates = jinja2.Environment(
        loader=loader, autoescape=False, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters["py"] = python
    return templates


def python(value: Any) -> str:
    """A value as Python writes it, texts in double quotes."""
    if isinstance(value, tuple):
        return f"({', '.join(map(python, value))})"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def render(name: str, **facts: Any) -> str:
    """A template of this folder with these facts; `| py` writes a value as Python does."""
    text = _templates().get_template(f"{name}.txt").render(**facts)
    return re.sub(r"\n{4,}", "\n\n\n", text).strip() + "\n"  # where parts were left out


def with_script(files: dict[str, str], script: str, network: str) -> dict[str, str]:
    """A trainer's own files, its script, the samples and the network."""
    return {**files, SCRIPT: script, "samples.py": SAMPLES, CONFIG: network}


def as_yaml(data: Any, *notes: str) -> str:
    """YAML as it is written into files, below comments."""
    return yaml_text(notes, data)


def as_json(data: Any) -> str:
    """JSON as it is written into files."""
    return json.dumps(data, indent=2) + "\n"
