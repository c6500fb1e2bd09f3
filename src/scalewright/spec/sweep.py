"""The runs of a sweep: the product of the lists of values in its arguments.

    optimizer.lr=1e-4,3e-4  layout.micro_batch=1,2   ->   lr-1e-4_micro_batch-1   lr-1e-4_micro_batch-2
                                                          lr-3e-4_micro_batch-1   lr-3e-4_micro_batch-2

A value that is itself a list or keys in brackets, or in quotes, is kept whole:
`optimizer.betas=[0.9,0.95],[0.9,0.99]` are two values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from scalewright.spec.errors import UserError

OPENING, CLOSING, QUOTES = "[{(", "]})", "'\""


@dataclass(frozen=True)
class Point:
    """One run of a sweep: its label, which names its folder, and the values of the swept keys, as written."""

    label: str
    values: dict[str, str]

    @property
    def overrides(self) -> list[str]:
        """As `key=value`."""
        return [f"{key}={value}" for key, value in self.values.items()]


def split_values(text: str) -> list[str]:
    """The values of a list: cut at commas that stand outside brackets and quotes.

    >>> split_values("1e-4,[0.9,0.95],'a,b'")
    ['1e-4', '[0.9,0.95]', "'a,b'"]
    """
    values, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in QUOTES:
            quote = letter
        else:
            depth += (letter in OPENING) - (letter in CLOSING)
        if letter == "," and not depth and not quote:
            values.append("")
        else:
            values[-1] += letter
    return [value.strip() for value in values]


def read_sweep(arguments: Sequence[str]) -> tuple[list[str], list[Point]]:
    """The overrides that all runs share, and the runs; raises UserError where nothing is swept."""
    fixed: list[str] = []
    swept: dict[str, list[str]] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or not key:
            raise UserError(f"'{argument}' is not a key with values", "sweep", "write key=value,value,…")
        values = list(dict.fromkeys(split_values(text)))
        if "" in values:
            raise UserError(f"an empty value in '{argument}'", "sweep", "write key=value,value,…")
        if len(values) == 1:
            fixed.append(argument)
        elif key in swept:
            raise UserError(f"'{key}' is given twice", "sweep", "list all its values in one argument")
        else:
            swept[key] = values
    for key in ("name", "out_dir"):
        if key in swept:
            how = "leave it out, or give it one value"
            raise UserError(f"'{key}' can't be swept: each run gets a name and folder of its own", "sweep", how)
    if not swept:
        how = "list values with commas, such as optimizer.lr=1e-4,3e-4"
        raise UserError("no key has more than one value", "sweep", how)
    points = [dict(zip(swept, values, strict=True)) for values in product(*swept.values())]
    return fixed, list(map(Point, _labels(points), points))


def _labels(points: Sequence[dict[str, str]]) -> list[str]:
    """A short name for each: the last parts of the keys, where they are unique, and the values."""
    keys = list(points[0])
    last = [key.rpartition(".")[2] for key in keys]
    short = {key: name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)}
    labels: list[str] = []
    for values in points:
        words = [f"{short[key]}-{re.sub(r'[^A-Za-z0-9.+-]+', '-', value).strip('-.')}" for key, value in values.items()]
        label = re.sub(r"[^\w.\-]", "", "_".join(words))[:120]
        number = sum(other == label or other.startswith(f"{label}.") for other in labels)
        labels.append(f"{label}.{number + 1}" if number else label)
    return labels
