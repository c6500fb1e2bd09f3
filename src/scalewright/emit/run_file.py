"""A reading as a run file of ours: checked like any other, with a line to fill where data are missing."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from scalewright.emit.emitted import Reading, yaml_text
from scalewright.spec.errors import UserError
from scalewright.spec.question import DATA
from scalewright.spec.run import DataSpec, RunSpec, apply_override


def as_run(reading: Reading, where: str, overrides: Sequence[str] = ()) -> RunSpec:
    """The run that was read, with `key=value` overrides; raises UserError where it isn't a valid one."""
    keys: dict[str, Any] = deepcopy(dict(reading.run))
    keys.setdefault("data", {}).setdefault("train", DATA)
    for override in overrides:
        apply_override(keys, override)
    if "model" not in keys:
        how = "add model=llama-3.1-8b, or another model"
        raise UserError("the model isn't in this configuration", where, how)
    return RunSpec.parse(keys, where=where)


def as_text(reading: Reading, run: RunSpec) -> str:
    """The run file: keys that differ from defaults, and what wasn't understood as comments."""
    keys = {**run.written(), "layout": run.layout.written()}
    lines = [f"Read from a configuration of {reading.trainer}."]
    lines += [f"assumed: {text}" for text in reading.assumed]
    lines += [f"not read: {item} ({item.why})" for item in reading.unread]
    paths = [source.path for source in run.data.train] if isinstance(run.data, DataSpec) else []
    if any(path == DATA or "$" in path for path in paths):
        lines.append("data.train: name your token shards here")
    ordered = {key: keys[key] for key in RunSpec.model_fields if keys.get(key)}
    return yaml_text(lines, ordered)
