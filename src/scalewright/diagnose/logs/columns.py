"""Metrics in columns: Lightning's metrics.csv, a table of one's own, a table that Weights & Biases exports.

    epoch,lr-AdamW,step,train_loss_step,val_loss          step and loss by their words (by_words.py); a row without
    0,,49,2.31,                                           a loss is a validation's, or a learning rate's
    0,0.0003,49,,

`time` is the seconds of a step, or those since the start where it only grows: then its differences count.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from scalewright.diagnose.logs.by_words import CLOCKS, NAMES, plain
from scalewright.diagnose.logs.lines import clock, number
from scalewright.diagnose.logs.steps import Steps
from scalewright.diagnose.traces.unpack import Unpacked

MOST, FIRST = 64 << 20, 1 << 15  # bytes: of a table, of its first line
A_LINE = re.compile(r"[={}\[]|: |\d\.\d")  # of a log, not of a table's head
MILLISECONDS = re.compile(r"(?<![a-z])ms(?![a-z])", re.I)


def columns_of(start: bytes) -> tuple[dict[str, int], str] | None:
    """Our words and `clock` -> its column, and what stands between columns; None without a step or a loss.

    `start`: a table's first bytes.
    """
    first = start[:FIRST].decode("utf-8-sig", "replace").partition("\n")[0].strip()
    delimiter = max(",;\t", key=first.count)
    names = [plain(cell.rpartition(" - ")[2]) for cell in next(_rows([first], delimiter), [])]
    places = {
        ours: names.index(word)
        for ours, words in {**NAMES, "clock": CLOCKS}.items()
        for word in reversed(words)  # the first counts
        if word in names
    }
    return (places, delimiter) if {"step", "loss"} <= places.keys() and not A_LINE.search(first) else None


def read_columns(path: Path) -> Steps | None:
    """The steps of a table; None where the file is something else."""
    content = b""
    for piece in Unpacked(path):
        content += piece
        if len(content) > MOST or columns_of(content) is None:
            return None
    if (table := columns_of(content)) is None:
        return None
    (places, delimiter), steps = table, Steps()
    head, *rows = _rows(content.decode("utf-8-sig", "replace").splitlines(), delimiter)
    factors = {key: 1e-3 if MILLISECONDS.search(head[place]) else 1.0 for key, place in places.items()}
    at = places.pop("clock", -1)
    times = [clock(row[at]) or number(row[at]) if 0 <= at < len(row) else None for row in rows]
    grows = all(before <= after for before, after in pairwise(seconds for seconds in times if seconds is not None))
    for row, seconds in zip(rows, times, strict=True):
        cells = {key: number(row[place]) for key, place in places.items() if place < len(row)}
        values = {key: value * factors[key] for key, value in cells.items() if value is not None}
        if not {"step", "loss"} <= values.keys() or not values["step"].is_integer():
            continue
        if rate := values.pop("steps_per_s", 0.0):
            values["step_time_s"] = 1 / rate
        if seconds is not None and not grows:
            values.setdefault("step_time_s", seconds)
        steps.add(values, seconds if grows else None)
    return steps


def _rows(lines: Sequence[str], delimiter: str) -> Iterator[list[str]]:
    """The cells of each line, up to one that can't be."""
    try:
        yield from csv.reader(lines, delimiter=delimiter)
    except csv.Error:
        return
