"""The features of each trainer: its values of each axis, and combinations it refuses (capabilities.yaml).

    find_capabilities("torchtitan").allows("schedule", "dualpipe")     False
    ....................................missing(layout)                ["schedule dualpipe", "zero_stage 1"]
    ....................................runs_on("tpu")                 False

A trainer that is priced as another may have an entry of its own (`of_framework`). One without an entry
counts as able to run everything; `known` is false.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.plan.frameworks import OURS, Framework, framework_names
from scalewright.spec.base import read_yaml
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.trains import why_not_trained

FILE = Path(__file__).parent / "data" / "capabilities.yaml"
ABOVE_ONE = ">1"
Rule = Mapping[str, Any]  # axis -> its values, or ABOVE_ONE: never all of these together


@dataclass(frozen=True)
class Capabilities:
    """One trainer's entry."""

    trainer: str
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    never: tuple[Rule, ...] = ()
    source: str = ""
    known: bool = False
    title: str = ""  # its name in its own spelling
    devices: tuple[str, ...] = ()  # kinds of device that it runs on; none: not known, any

    def runs_on(self, kind: str) -> bool:
        """Whether it runs on devices of this kind: gpu, tpu, npu, cpu or mps."""
        return not self.devices or kind in self.devices

    def allows(self, axis: str, value: Any) -> bool:
        """Whether it has this value of an axis; of a mapping (`recompute`) only the kind counts."""
        return axis not in self.axes or kind_of(value) in self.axes[axis]

    def missing(self, layout: Mapping[str, Any]) -> list[str]:
        """Features of a layout that it lacks: `schedule dualpipe`, `pp 2 with zero_stage 3`."""
        keys = dict(layout)
        for axis, size in (("schedule", "pp"), ("cp_kind", "cp"), ("sp", "tp")):
            if keys.get(size, 1) == 1:
                keys.pop(axis, None)
        named = [axis for axis in self.axes if axis in keys]
        lacks = [_words(axis, keys[axis]) for axis in named if not self.allows(axis, keys[axis])]
        for rule in self.never:
            if all(axis in keys and _holds(keys[axis], values) for axis, values in rule.items()):
                lacks.append(" with ".join(_words(axis, keys[axis]) for axis in rule))
        return lacks


def kind_of(value: Any) -> Any:
    """The kind of a value, as the file names it: `{every: 2}` is `every`."""
    return next(iter(value), None) if isinstance(value, Mapping) else value


def forbidden(rules: Iterable[Rule], columns: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
    """A mask of the rows that a rule forbids; rules with an axis that isn't a column are skipped."""
    mask = np.zeros(rows, dtype=bool)
    for rule in rules:
        if rule.keys() <= columns.keys():
            match = np.ones(rows, dtype=bool)
            for axis, values in rule.items():
                match &= columns[axis] > 1 if values == ABOVE_ONE else np.isin(columns[axis], list(values))
            mask |= match
    return mask


@lru_cache(maxsize=64)
def find_capabilities(trainer: str) -> Capabilities:
    """A trainer's capabilities by its name in the file; without an entry it can do everything."""
    entries = read_yaml(FILE)
    entry = entries.get(trainer)
    if entry is None:
        return Capabilities(trainer, title=trainer)
    title = entry.get("title", trainer)
    entry = entries[entry["as"]] if "as" in entry else entry
    axes = {axis: tuple(values) for axis, values in entry["axes"].items()}
    never, devices = tuple(entry.get("never", ())), tuple(entry.get("devices", ()))
    return Capabilities(trainer, axes, never, entry["source"], True, title, devices)


def of_framework(framework: Framework) -> Capabilities:
    """A trainer's capabilities; where it is priced as another, those of its own entry, if it has one."""
    if framework.asked not in framework_names():
        asked = find_capabilities(framework.asked)
        if asked.known:
            return asked
    return find_capabilities(framework.name)


def trainers_on(kind: str) -> list[str]:
    """The trainers that are known to run on devices of this kind, in the file's order."""
    entries = read_yaml(FILE)
    return [name for name, entry in entries.items() if kind in entry.get("devices", ())]


def why_untrainable(model: ModelSpec, layout: Layout, seq_len: int, kind: str) -> str | None:
    """Why `train` can't run this on devices of this kind, in one line; None when it can."""
    ours = find_capabilities(OURS)
    if ours.runs_on(kind):
        return why_not_trained(model, layout, seq_len)
    others = " or ".join(trainers_on(kind))
    instead = f": plan with --framework {others}" if others else ""
    return f"it runs on {', '.join(ours.devices)} alone, not on a {kind}{instead}"


@lru_cache(maxsize=1)
def titled_trainers() -> tuple[str, ...]:
    """The trainers in use today, in the file's order: entries of their own with a title."""
    entries = read_yaml(FILE)
    return tuple(name for name, entry in entries.items() if "title" in entry and "as" not in entry)


def _holds(value: Any, values: Any) -> bool:
    return bool(value > 1) if values == ABOVE_ONE else kind_of(value) in values


def _words(axis: str, value: Any) -> str:
    if isinstance(value, Mapping):
        value = " ".join(f"{key} {inner}" for key, inner in value.items())
    return f"{axis} {value}"
