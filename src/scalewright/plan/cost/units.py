"""The key that decides the price of an operator list, and columns of numbers that follow from it.

    unit = (model, sizes, device, trainer, precision, attention, switches)

    class Device(PerUnit):                               Device(units).peak         a number a unit
        peak = Column(lambda unit: unit.chip.peak)       Device(units).take(rows)   the same, a number a row

A search of a million layouts has some hundred units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from scalewright.plan.chips import Chip
from scalewright.plan.cost.work import Work, work, works
from scalewright.plan.frameworks import Framework
from scalewright.plan.request import Request
from scalewright.plan.switches import Switches
from scalewright.spec.compress import Compress
from scalewright.spec.diloco import DilocoSpec
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import Optimizer
from scalewright.spec.primitives import Sizes


@dataclass(frozen=True)
class Unit:
    """What decides the price of an operator list."""

    model: ModelSpec
    sizes: Sizes
    chip: Chip
    framework: Framework
    precision: str
    attention: str
    optimizer: Optimizer
    compress: Compress
    diloco: DilocoSpec | None
    host_copies: int
    switches: Switches

    @cached_property
    def work(self) -> Work:
        """The operators of these sizes, from the cache."""
        return work(self.model, self.sizes)


def unit_of(request: Request) -> Unit:
    """The unit that a request's operators belong to."""
    return Unit(**{field.name: getattr(request, field.name) for field in fields(Unit)})


def list_works(units: Sequence[Unit]) -> None:
    """Sets the work of all units, those of a model together, which is faster than one by one."""
    by_model: dict[int, list[Unit]] = {}
    for unit in units:
        by_model.setdefault(id(unit.model), []).append(unit)
    for alike in by_model.values():
        for unit, listed in zip(alike, works(alike[0].model, [unit.sizes for unit in alike]), strict=True):
            vars(unit)["work"] = listed


def settings(units: Sequence[Unit]) -> tuple[list[Unit], np.ndarray]:
    """Units that stand for all that share a device, a trainer and its settings, and the number of each unit's."""
    names = [field.name for field in fields(Unit) if field.name != "sizes"]
    keys = [tuple(id(getattr(unit, name)) for name in names) for unit in units]
    different = dict(zip(keys, units, strict=True))
    numbers = {key: number for number, key in enumerate(different)}
    return list(different.values()), np.array([numbers[key] for key in keys], dtype=np.intp)


class Column:
    """A number (or an array) of every unit; made when first asked for, like a `cached_property`.

    Without `of`, what its class is about has a number of the same name.
    """

    def __init__(self, of: Callable[[Unit], Any] | None = None, kind: type = float) -> None:
        self.given, self.kind = of, kind

    def __set_name__(self, owner: type[PerUnit], name: str) -> None:
        self.name, self.of = name, self.given or (lambda unit: getattr(getattr(unit, owner.about), name))

    def __get__(self, facts: PerUnit, owner: type) -> np.ndarray:
        if facts.source is None:
            values: np.ndarray = np.array([self.of(unit) for unit in facts.units], dtype=self.kind)
        else:
            values = getattr(facts.source, self.name)
            alike = len(values) == 1  # as in a search, whose layouts share device and trainer
            values = _repeated(values[0], len(facts.rows)) if alike else values[facts.rows]
        facts.__dict__[self.name] = values
        return values


def _repeated(value: np.ndarray, many: int) -> np.ndarray:
    """[many, ...] of one number, or of one row."""
    return np.broadcast_to(value, (many, *value.shape)) if value.ndim else np.full(many, value)


Taken = TypeVar("Taken", bound="PerUnit")
NONE = np.zeros(0, dtype=np.intp)


class PerUnit:
    """Columns of units, or of rows that each belong to a unit; `about`: the unit's chip, framework or work."""

    about = ""

    def __init__(self, units: Sequence[Unit], source: PerUnit | None = None, rows: np.ndarray = NONE) -> None:
        self.units, self.source, self.rows = units, source, rows

    def take(self: Taken, rows: np.ndarray) -> Taken:
        """The same columns for rows with these numbers of units."""
        return type(self)(self.units, self.source or self, rows if self.source is None else self.rows[rows])
