"""torchtitan's TOML: written for 0.1 and 0.2, read from 2024 on.

[parallelism]                           [training]                      2024
tensor_parallel_degree = 8              tensor_parallel_degree = 8
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from scalewright.emit.arguments import nodes_of, torchrun_by_variables
from scalewright.emit.emitted import Emitted, Reading
from scalewright.emit.settings import Settings
from scalewright.emit.torchtitan.layout import Keys, write_layout
from scalewright.emit.torchtitan.model import Network, decoder_spec, write_model
from scalewright.emit.torchtitan.own import own_model
from scalewright.emit.torchtitan.reading import read_values
from scalewright.emit.torchtitan.training import write_training
from scalewright.emit.torchtitan.words import OLDER, V01, renamed
from scalewright.spec.model import ModelSpec
from scalewright.spec.text.dotted import flat

TITLE = "torchtitan"
FILE, MODULE = "titan.toml", "own_model.py"
GONE = ("float8", "mx")  # sections of 0.1 and before
PRESET_FOR = re.compile(r"preset for (\d{1,6})\b[^\n]*GPU")


def write(s: Settings, release: str) -> Emitted:
    """The TOML, and a module where the model is none of theirs; raises UserError."""
    network = write_model(s, release)
    keys = {**_model(network, s), **write_layout(s, release), **write_training(s, release)}
    if release == "0.1":
        keys = {V01.get(key, key): value for key, value in keys.items()}
    nodes, each = nodes_of(s.layout.devices)
    start = torchrun_by_variables(s.layout.devices, f"-m torchtitan.train --job.config_file {FILE}")
    command = ("PYTHONPATH=. " if network.call else "") + start
    head = [
        f"# Written by `scalewright emit torchtitan`: torchtitan {release}, {nodes} x {each} devices.",
        f"# NOTE: this toml config is a preset for {s.layout.devices} GPUs.",
    ]
    files = {FILE: "\n".join([*head, *_sections(keys), ""])}
    if network.call is not None:
        s.network = ModelSpec.parse(decoder_spec(network.call.values, {}))
        files[MODULE] = own_model(network, f"Written by `scalewright emit torchtitan` for {release}")
    return s.emitted(TITLE, "torchtitan", release, files, command)


def _model(network: Network, s: Settings) -> Keys:
    own = network.call is not None
    keys: Keys = {
        "job.description": s.run.name, "model.name": "own" if own else network.name,
        "model.flavor": network.flavor or "own", "model.hf_assets_path": "./assets/hf/tokenizer",
    }  # fmt: skip
    return {**keys, "experimental.custom_import": MODULE.removesuffix(".py")} if own else keys


def _sections(keys: Keys) -> list[str]:
    """Lines of TOML; a section's keys stand together, in their order."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in keys.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, {})[name] = value
    lines: list[str] = []
    for section, values in sections.items():
        lines += ["", f"[{section}]", *(f"{name} = {_value(value)}" for name, value in values.items())]
    return lines


def _value(value: Any) -> str:
    if isinstance(value, float):
        text = f"{value:.12g}"
        return text if set(text) & set(".en") else f"{text}.0"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML takes no bare DEL


def read(document: Mapping[str, Any], text: str) -> Reading:
    """A TOML file of any release as a run."""
    values = flat(document)
    older = any(key in values for key in OLDER) or any(part in document for part in GONE)
    match = PRESET_FOR.search(text)
    world = int(match[1]) if match else None
    notes = [f"devices {world}, of the file's own comment"] if world else []
    return read_values(renamed(values), world, "0.1" if older else "0.2", notes)
