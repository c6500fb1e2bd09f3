"""The planner's answer as JSON, read back: what `plan --json` and `predict --json` write.

    plan.json   {evaluated, best: [estimate, ...], pareto: [...], why_not: [...]}  ──┐
    predict.json  {layout, step_time_s, memory_gib, ...}  = one estimate           ──┴──► PlanDocument

Only a layout and its step time must be there; whatever else is missing is left out of the page. A value of
the wrong kind is an error that names its key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.spec.common.formatting import count
from scalewright.spec.common.untrusted import read_bytes
from scalewright.spec.errors import UserError

PLAN_BYTES = 256 << 20
HUGE = 1e100  # no quantity of a plan comes near
UNNAMED = "model"  # of a configuration that gives shapes alone: spec/model.py
KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "other")
HOW = "write one with `scalewright plan MODEL ... --json > plan.json`"
JSON = Mapping[str, Any]


@dataclass(frozen=True)
class Reader:
    """A mapping of the document, and where it is in it: `best[0].layout`."""

    data: JSON
    where: str

    def number(self, key: str) -> float | None:
        """A finite number; None when it is absent or null."""
        if (value := self.data.get(key)) is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < HUGE:
            raise UserError(f"{self.at(key)} is {str(value)[:40]!r}, not a number", "plan", HOW)
        return float(value)

    def text(self, key: str) -> str:
        """A text, a number as text; empty when absent."""
        value = self.data.get(key, "")
        if value is not None and not isinstance(value, (str, int, float)):
            raise UserError(f"{self.at(key)} is not a text", "plan", HOW)
        return "" if value is None else str(value)

    def part(self, key: str) -> Reader:
        """A mapping inside; empty when absent."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise UserError(f"{self.at(key)} does not hold keys and values", "plan", HOW)
        return Reader(value or {}, self.at(key))

    def parts(self, key: str) -> Iterator[Reader]:
        """The mappings of a list; none when absent."""
        for index, item in enumerate(self._list(key)):
            if not isinstance(item, Mapping):
                raise UserError(f"{self.at(key)}[{index}] does not hold keys and values", "plan", HOW)
            yield Reader(item, f"{self.at(key)}[{index}]")

    def lines(self, key: str) -> list[str]:
        return [str(item) for item in self._list(key)]

    def numbers(self) -> dict[str, float]:
        """All keys with their numbers, without those that are null."""
        values = {key: self.number(key) for key in self.data}
        return {key: value for key, value in values.items() if value is not None}

    def at(self, key: str) -> str:
        """The name of a key, from the document's root."""
        return f"{self.where}.{key}" if self.where else key

    def _list(self, key: str) -> Sequence[Any]:
        value = self.data.get(key)
        if value is not None and (isinstance(value, str) or not isinstance(value, Sequence)):
            raise UserError(f"{self.at(key)} is not a list", "plan", HOW)
        return value or ()


@dataclass(frozen=True)
class Stage:
    """One pipeline stage: its layers, the seconds of one micro-batch, and GiB by kind.

    Where its rank is named, the memory is that of the whole rank.
    """

    number: int
    rank: int | None
    layers: int | None
    seconds: Mapping[str, float]
    memory: Mapping[str, float]


@dataclass(frozen=True)
class Estimate:
    """One layout and what it costs; None where the document has no value."""

    read: Reader
    layout: JSON
    seconds: float
    low: float | None
    high: float | None
    fits: bool | None
    peak_gib: float | None
    memory: Mapping[str, float]
    parts: Mapping[str, float]
    bytes: Mapping[str, float]
    stages: tuple[Stage, ...]

    @classmethod
    def of(cls, read: Reader) -> Estimate:
        """An estimate of the document; its step time may be a number alone, its memory too."""
        layout = read.part("layout").data
        step = read.data.get("step_time_s")
        times = read.part("step_time_s") if isinstance(step, Mapping) else Reader({"p50": step}, read.where)
        seconds = times.number("p50")
        if not layout or seconds is None or seconds <= 0:
            raise UserError(f"{read.where or 'the document'} has no layout with a step time", "plan", HOW)
        memory = read.part("memory_gib").numbers()
        fits = read.data.get("fits")
        return cls(
            read, layout, seconds, times.number("p10"), times.number("p90"), fits if isinstance(fits, bool) else None,
            memory.get("peak", read.number("peak_gib")), {kind: memory[kind] for kind in KINDS if kind in memory},
            read.part("time_breakdown_s").numbers(), read.part("comm_bytes").numbers(),
            tuple(_stage(stage) for stage in read.parts("stages")),
        )  # fmt: skip

    @property
    def memory_band(self) -> tuple[float, float] | None:
        """GiB that one of ten and nine of ten runs stay below; None where the plan gives no band."""
        band = self.read.data.get("memory_p10_p90_gib")
        if not isinstance(band, Sequence) or isinstance(band, str) or len(band) != 2:
            return None
        known = all(isinstance(end, (int, float)) and not isinstance(end, bool) for end in band)
        return (float(band[0]), float(band[1])) if known else None

    def size(self, axis: str) -> int:
        """The size of an axis of the layout, 1 where it isn't given."""
        return integer(self.layout.get(axis))


@dataclass(frozen=True)
class PlanDocument:
    """A search's answer, or one layout's; `best` is empty when nothing fits."""

    read: Reader
    searched: bool
    best: tuple[Estimate, ...]
    pareto: tuple[Estimate, ...]
    why_not: tuple[Reader, ...]

    @property
    def first(self) -> Estimate | None:
        """The layout that the page is about."""
        return self.best[0] if self.best else None

    @property
    def device(self) -> Reader:
        """The device and its links: {name, per_node, memory_gib, usable_gib, links}; empty when absent."""
        reads = (self.read, *(estimate.read for estimate in self.best[:1]))
        known = (read.part("device") for read in reads if isinstance(read.data.get("device"), Mapping))
        return next(known, Reader({}, "device"))

    @property
    def model(self) -> str:
        """The model's name, or its size where it has none; empty when neither is given."""
        best = self.best[0].read.part("model") if self.best else Reader({}, "model")
        name = self._name("model") or best.text("name")
        params = best.number("params") if name == UNNAMED else None
        return f"a model of {count(params)} parameters" if params else name

    @property
    def cluster(self) -> str:
        """The cluster's name; empty when it isn't given."""
        return self._name("cluster")

    def number(self, key: str) -> float | None:
        """A number of the whole, or of the first layout."""
        value = self.read.number(key)
        return value if value is not None or not self.best else self.best[0].read.number(key)

    def _name(self, key: str) -> str:
        value = self.read.data.get(key)
        if isinstance(value, Mapping):
            value = value.get("name")
        return value if isinstance(value, str) else ""


def read_document(data: object) -> PlanDocument:
    """The document of parsed JSON; UserError when it is no plan."""
    if not isinstance(data, Mapping):
        raise UserError("a plan holds keys and values", "plan", HOW)
    root = Reader(data, "")
    if "best" in data:
        best = tuple(Estimate.of(estimate) for estimate in root.parts("best"))
        pareto = tuple(Estimate.of(estimate) for estimate in root.parts("pareto"))
        return PlanDocument(root, True, best, pareto, tuple(root.parts("why_not")))
    if "layout" in data and "step_time_s" in data:
        return PlanDocument(root, False, (Estimate.of(root),), (), ())
    raise UserError("holds no plan: neither best nor a layout with its step_time_s", "plan", HOW)


def read_plan(path: Path) -> PlanDocument:
    """The document in a file; UserError when it can't be read, isn't JSON, or is no plan."""
    try:
        data = json.loads(read_bytes(path, PLAN_BYTES).decode(), parse_constant=_refuse)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}", "plan", HOW) from error
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path.name} is not JSON: {reason}", "plan", HOW) from error
    try:
        return read_document(data)
    except UserError as error:
        raise UserError(f"{path.name}: {error.what}", error.where, error.how) from error


def integer(value: object, default: int = 1) -> int:
    """A whole number above 0, or the default."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < HUGE:
        return default
    return int(value) if value == int(value) else default


def _stage(read: Reader) -> Stage:
    rank, layers = (None if number is None else int(number) for number in map(read.number, ("rank", "layers")))
    memory = read.part("memory_gib").numbers()
    kinds = {kind: memory[kind] for kind in KINDS if kind in memory}
    return Stage(int(read.number("stage") or 0), rank, layers, read.part("seconds").numbers(), kinds)


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is not a JSON number")
