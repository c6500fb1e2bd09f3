"""Dataclasses of columns: a field is an array or a list with an entry a row, a dict of arrays, or columns itself.

    take(rows)    the same of some rows          join(parts)    the rows of all parts, one after the other

What is none of these (the units that a table's rows index) all rows share; lists are for what isn't joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

Index = np.ndarray | slice  # numbers of rows, a mask, or a range
C = TypeVar("C", bound="Columnar")


@dataclass
class Columnar:
    """Columns of equal length."""

    def __len__(self) -> int:
        columns = (getattr(self, f.name) for f in fields(self))
        return next(len(column) for column in columns if isinstance(column, (np.ndarray, list)))

    def take(self: C, rows: Index) -> C:
        """The rows at these indices, or under this mask."""
        return type(self)(**{f.name: _some(getattr(self, f.name), rows) for f in fields(self)})

    @classmethod
    def join(cls: type[C], parts: Sequence[C]) -> C:
        """The rows of all parts, of which there is one at least."""
        return cls(**{f.name: _all([getattr(part, f.name) for part in parts]) for f in fields(cls)})


def _some(column: Any, rows: Index) -> Any:
    if isinstance(column, np.ndarray):
        return column[rows]
    if isinstance(column, list):
        return [column[i] for i in np.arange(len(column))[rows]]
    if isinstance(column, dict):
        return {name: values[rows] for name, values in column.items()}
    return column.take(rows) if isinstance(column, Columnar) else column


def _all(columns: list[Any]) -> Any:
    first = columns[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(columns)
    if isinstance(first, dict):
        return {name: np.concatenate([column[name] for column in columns]) for name in first}
    return type(first).join(columns) if isinstance(first, Columnar) else first
