"""The features of each trainer: its values of each axis, and combinations it refuses (capabilities.yaml).

    find_capabilities("torchtitan").allows("schedule", "dualpipe")     False
    find_capabilities("torchtitan", "0.2").allows("recompute", {"every": 2})      True
    ....................................missing(layout)                ["schedule dualpipe", "zero_stage 1"]
    ....................................runs_on("tpu")                 False

One without an entry counts as able to run everything; `known` is false. The planner leaves out layouts that a
trainer lacks, and `emit` gives the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from scalewright.spec.base import read_yaml

FILE = Path(__file__).parent / "capabilities.yaml"
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
    why: Mapping[str, str] = field(default_factory=dict)  # axis -> the reason for what it lacks of it
    low: tuple[str, ...] = ()  # precisions of fewer than 16 bits
    modules: tuple[str, ...] = ()  # parts of a block that it recomputes by themselves, the cheap ones

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
        by_hand = len(set(keys.get("stage_layers") or ())) > 1 and self.why.get("stage_layers")
        return [*lacks, f"stages by hand ({by_hand})"] if by_hand else lacks


def kind_of(value: Any) -> Any:
    """The kind of a value, as the file names it: `{every: 2}` is `every`."""
    return next(iter(value), None) if isinstance(value, Mapping) else value


@lru_cache(maxsize=1)
def _entries() -> Any:
    return read_yaml(FILE)


@lru_cache(maxsize=64)
def find_capabilities(trainer: str, version: str | None = None) -> Capabilities:
    """A trainer's capabilities by its name in the file, today's without a release; without an entry it can do all."""
    if (entry := (entries := _entries()).get(trainer)) is None:
        return Capabilities(trainer, title=trainer)
    title = entry.get("title", trainer)
    entry = entries[entry["as"]] if "as" in entry else entry
    older = [
        axes for release, axes in entry.get("before", {}).items() if version and _number(version) < _number(release)
    ]
    axes = {axis: tuple(values) for had in (entry["axes"], *older) for axis, values in had.items()}
    never, devices = tuple(entry.get("never", ())), tuple(entry.get("devices", ()))
    low, modules = tuple(entry.get("low", ())), tuple(entry.get("modules", ()))
    if version and _number(version) < _number(entry.get("modules_since", "0")):
        modules = ()
    return Capabilities(trainer, axes, never, entry["source"], True, title, devices, entry.get("why", {}), low, modules)


def trainers_on(kind: str) -> list[str]:
    """The trainers that are known to run on devices of this kind, in the file's order."""
    return [name for name, entry in _entries().items() if kind in entry.get("devices", ())]


@lru_cache(maxsize=1)
def titled_trainers() -> tuple[str, ...]:
    """The trainers in use today, in the file's order: entries of their own with a title."""
    return tuple(name for name, entry in _entries().items() if "title" in entry and "as" not in entry)


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", release))


def _holds(value: Any, values: Any) -> bool:
    return bool(value > 1) if values == ABOVE_ONE else kind_of(value) in values


def _words(axis: str, value: Any) -> str:
    if isinstance(value, Mapping):
        value = " ".join(f"{key} {inner}" for key, inner in value.items())
    return f"{axis} {value}"
