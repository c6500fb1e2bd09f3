"""Formats, engines and constants: data/formats.yaml, engines.yaml, constants.yaml as plain records.

format_of("awq")      4.16 bits a weight, of the layers' matrices; multiplies in 16 bits
engine_of("vLLM")     its share of memory, slots, tokens of a step
constants()           {name: value}, what no data sheet has
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from scalewright.spec.base import read_yaml
from scalewright.spec.errors import unknown
from scalewright.spec.hardware.devices import DeviceSpec

DATA = Path(__file__).parent / "data"
CONSTANTS = DATA / "constants.yaml"
Constants = dict[str, float]


@dataclass(frozen=True)
class Format:
    """How weights are stored and multiplied."""

    name: str
    bits: float
    covers: Literal["all", "linears", "experts"]
    compute: str  # a precision of `Peaks`, or half

    def rate(self, device: DeviceSpec) -> tuple[float, str]:
        """FLOP/s of a product with these weights, and the constant for what is lost: `format.8`."""
        half = device.peak(device.half) or device.peak("fp32") or 0.0
        peak = device.peak(self.compute) if self.compute != "half" else None
        if peak is None:
            return half, "format.16" if self.bits >= 16 else "format.unpacked"
        return peak, "format.16" if self.bits >= 16 else f"format.{4 if self.compute == 'fp4' else 8}"

    @property
    def read(self) -> str:
        """The constant for the rate at which such weights are read."""
        return "read.16" if self.bits >= 16 else "read.8" if self.bits > 6 else "read.4"


@dataclass(frozen=True)
class Engine:
    """An engine's habits (data/engines.yaml)."""

    name: str
    memory: float
    slots: int
    chunk: int
    splits: Literal["tensor", "layers"]
    reserve_gib: float
    slots_large: int | None = None
    chunk_large: int | None = None
    modern: float = 0.0
    accumulates: Literal["full", "half"] = "full"  # products of 16 bits: their sums in 32 or in 16
    runs_on: str = ""  # makers of its devices, and cpu; none: any
    reads: str = ""  # weights; none: any
    tries: str = ""  # and those that it calls experimental

    def older(self, version: str) -> bool:
        """Whether this release (`0.5.4`; blank: a current one) is older than the engine's `modern`."""
        found = re.match(r"v?(\d+\.\d+)", version.strip())
        return found is not None and _ordered(found[1]) < _ordered(str(self.modern))

    def on(self, device: DeviceSpec) -> tuple[int, int]:
        """The most sequences, and the most tokens, of a step on this device."""
        large = device.capacity_bytes >= LARGE and device.resolved_family.name != "ampere"
        return (self.slots_large or self.slots, self.chunk_large or self.chunk) if large else (self.slots, self.chunk)


LARGE = 70 * 2**30  # bytes: vllm/engine/arg_utils.py, which leaves the A100 out


def _ordered(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def fold(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


@lru_cache(maxsize=1)
def _formats() -> tuple[dict[str, Format], dict[str, str]]:
    table = read_yaml(DATA / "formats.yaml")
    names = {fold(alias): name for name, keys in table.items() for alias in (name, *keys["aliases"])}
    return {name: Format(name, k["bits"], k["covers"], k["compute"]) for name, k in table.items()}, names


def format_of(name: str, where: str = "--precision") -> Format:
    """The format of this name or alias; raises UserError with the nearest."""
    formats, names = _formats()
    if fold(name) not in names:
        raise unknown("precision", name, list(formats), where)
    return formats[names[fold(name)]]


@lru_cache(maxsize=1)
def _engines() -> tuple[dict[str, Engine], dict[str, str]]:
    table: dict[str, dict[str, Any]] = read_yaml(DATA / "engines.yaml")
    names = {fold(alias): name for name, keys in table.items() for alias in (name, *keys["aliases"])}
    dropped = ("aliases", "source")
    kept = {name: {k: v for k, v in keys.items() if k not in dropped} for name, keys in table.items()}
    return {name: Engine(name, **keys) for name, keys in kept.items()}, names


def engine_names() -> list[str]:
    """The engines that have habits of their own, as they are listed."""
    return [name for name in _engines()[0] if name != "other"]


def engine_of(name: str, strict: bool = True) -> Engine:
    """The engine of this name; unless `strict`, one that isn't known has the habits of `other`. Raises UserError."""
    engines, names = _engines()
    if (key := names.get(fold(name))) is None:
        if strict:
            raise unknown("engine", name, engine_names(), "--engine")
        key = "other"
    return engines[key]


@lru_cache(maxsize=1)
def constants() -> Constants:
    """Every constant's value."""
    return {name: float(entry["value"]) for name, entry in read_yaml(CONSTANTS).items()}
