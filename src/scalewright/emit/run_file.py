"""A reading as a run file of ours: checked like any other, with a line to fill where data are missing."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from scalewright.emit.choices import yaml_text
from scalewright.emit.emitted import Reading
from scalewright.spec.base import Spec
from scalewright.spec.errors import UserError
from scalewright.spec.run import DataSpec, RunSpec, Source, apply_override

DATA = "DATA"  # stands for token shards that a configuration doesn't name


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
    parts = {key: getattr(run, key) for key in run.written()}
    parts["layout"] = run.layout
    keys = {
        key: value.written() if isinstance(value, Spec) else run.dump()[key] for key, value in parts.items()
    }
    if isinstance(run.data, DataSpec):
        keys["data"] = {"train": _sources(run.data.train), "valid": _sources(run.data.valid),
                        "seq_len": run.data.seq_len}  # fmt: skip
    lines = [f"Read from a configuration of {reading.trainer}."]
    lines += [f"assumed: {text}" for text in reading.assumed]
    lines += [f"not read: {item} ({item.why})" for item in reading.unread]
    paths = [source.path for source in run.data.train] if isinstance(run.data, DataSpec) else []
    if any(path == DATA or "$" in path for path in paths):
        lines.append("data.train: name your token shards here")
    ordered = {key: keys[key] for key in RunSpec.model_fields if keys.get(key)}
    return yaml_text(lines, ordered)


def _sources(sources: Sequence[Source]) -> list[Any]:
    """Paths alone where they have no weights."""
    return [source.path if source.weight == 1 else source.written() for source in sources]
