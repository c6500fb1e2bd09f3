"""Reads what `ncu --csv` prints: launches of kernels, each with the metrics that were measured.

    raw page       "ID","Kernel Name",...,"gpu__time_duration.sum",...     a launch a line; the first: units
    details page   "ID","Kernel Name",...,"Metric Name","Metric Unit","Metric Value"   a metric a line
    summary        "Kernel Name","Invocations",...,"Minimum","Maximum","Average"   a metric of all launches

The profiled program's own output and `==PROF==` lines may come before, between and after. Numbers have a
thousands' comma in some languages.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scalewright.diagnose.ncu.metrics import BY_NAME, scaled
from scalewright.diagnose.traces.json_array import NotATrace
from scalewright.diagnose.traces.unpack import Unpacked

KERNEL = "Kernel Name"
MOST_LINES = 5_000_000
LONGEST_LINE = 1 << 20  # bytes: a line of all metrics has some 30,000
MOST_LETTERS = 2000  # of a kernel's name


@dataclass
class Launch:
    """A kernel's launch, or the mean of `count`; `values` by the names of metrics.py. `capability`: 9.0."""

    name: str
    capability: str = ""
    count: int = 1
    values: dict[str, float] = field(default_factory=dict)


def is_ncu(start: bytes) -> bool:
    """Whether a text's start has a header of `ncu --csv`."""
    return b'"Kernel Name"' in start and (b'"Metric Name"' in start or b"__" in start)


def read_launches(path: Path) -> list[Launch]:
    """The launches in the order of the file; raises NotATrace where there is none."""
    launches: dict[tuple[str, ...], Launch] = {}
    header: list[str] = []
    units: dict[str, str] = {}
    for number, row in enumerate(_rows(path)):
        if KERNEL in row:
            header, units = row, {}
        elif len(row) != len(header):
            continue  # another program's line
        elif "Metric Name" in header:
            _add_metric(launches, dict(zip(header, row, strict=True)))
        else:
            cells = dict(zip(header, row, strict=True))
            if not cells[KERNEL]:
                units = cells
            else:
                launches[str(number), cells[KERNEL]] = _launch(cells, units)
    result = [launch for launch in launches.values() if launch.values]
    if not result:
        raise NotATrace("it has no kernel with a metric of Nsight Compute that is used here")
    return result


def _rows(path: Path) -> Iterator[list[str]]:
    """Cells of every line; those of lines that aren't CSV are whatever they are."""
    rest, lines = b"", 0
    for piece in Unpacked(path):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            lines += 1
            if lines > MOST_LINES:
                return
            yield from _cells(line)
        rest = rest[:LONGEST_LINE]
    yield from _cells(rest)


def _cells(line: bytes) -> Iterator[list[str]]:
    if line.startswith(b'"') and len(line) <= LONGEST_LINE:
        try:
            yield from csv.reader([line.decode("utf-8", "replace").strip()])
        except csv.Error:
            return


def _add_metric(launches: dict[tuple[str, ...], Launch], cells: dict[str, str]) -> None:
    """A line of the details page or a summary: one metric."""
    name = cells[KERNEL][:MOST_LETTERS]
    key = cells.get("Process ID", ""), cells.get("ID", ""), name
    launch = launches.setdefault(key, Launch(name, cells.get("CC", "")))
    count = _number(cells.get("Invocations", ""))
    if count is not None and count >= 1:
        launch.count = int(min(count, 1e9))
    _put(launch, cells["Metric Name"], cells.get("Metric Value") or cells.get("Average", ""),
         cells.get("Metric Unit", ""))  # fmt: skip


def _launch(cells: dict[str, str], units: dict[str, str]) -> Launch:
    """A line of the raw page: all metrics."""
    launch = Launch(cells[KERNEL][:MOST_LETTERS], cells.get("CC", ""))
    for name, text in cells.items():
        _put(launch, name, text, units.get(name, ""))
    return launch


def _put(launch: Launch, name: str, text: str, unit: str) -> None:
    for metric in BY_NAME.get(name, ()):
        number = _number(text)
        value = None if number is None else scaled(metric, number, unit)
        if value is not None:
            launch.values.setdefault(metric, value)


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
