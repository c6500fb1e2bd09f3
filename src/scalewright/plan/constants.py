"""Constants that no data sheet has: value, unit, physical range, source; see data/constants.yaml.

    name: {value: 0.78, unit: share of peak, low: 0.6, high: 0.95, fitted: true, source: "..."}

`Constants` contains the values by name; `row` packs a group into an array that formulas index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from scalewright.spec.base import read_yaml
from scalewright.spec.errors import unknown

FILE = Path(__file__).parent / "data" / "constants.yaml"


@dataclass(frozen=True)
class Fact:
    """One constant of the file."""

    name: str
    value: float
    unit: str
    low: float
    high: float
    fitted: bool
    prior: float  # the value before any fit
    source: str
    one_source: bool = False  # one source of the table alone identifies it: it widens the band (cost/spread.py)


class Constants:
    """Values by name; immutable, `with_values` returns a changed copy."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = dict(values)
        self._rows: dict[tuple[str, Sequence[str]], np.ndarray] = {}

    def __getitem__(self, name: str) -> float:
        try:
            return self._values[name]
        except KeyError:
            raise unknown("constant", name, self._values) from None

    def get(self, name: str, default: float) -> float:
        """The constant of this name, or `default` where the file has none."""
        return self._values.get(name, default)

    def row(self, group: str, names: Sequence[str]) -> np.ndarray:
        """The constants `group.name` of these names, as an array to index."""
        key = (group, names)
        if key not in self._rows:
            self._rows[key] = np.array([self[f"{group}.{name}"] for name in names])
        return self._rows[key]

    def with_values(self, changes: Mapping[str, float]) -> Constants:
        """A copy with some values changed."""
        return Constants({**self._values, **changes})

    @property
    def values(self) -> dict[str, float]:
        """All values by name."""
        return dict(self._values)


@lru_cache(maxsize=1)
def facts() -> tuple[Fact, ...]:
    """Every constant with its unit, range and source, in the file's order."""
    read = []
    for group, entries in read_yaml(FILE).items():
        for name, entry in entries.items():
            entry = {"prior": entry["value"], "fitted": False, **entry}
            numbers = {key: float(entry[key]) for key in ("value", "low", "high", "prior")}
            read.append(Fact(name=f"{group}.{name}", **{**entry, **numbers}))
    return tuple(read)


@lru_cache(maxsize=1)
def constants() -> Constants:
    """The constants as shipped."""
    return Constants({fact.name: fact.value for fact in facts()})
