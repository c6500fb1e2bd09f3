"""Reads what `ncu --csv` prints: launches of kernels, each with the metrics that were measured.

    raw page       "ID","Kernel Name",...,"gpu__time_duration.sum",...     a launch a line; the first: units
    details page   "ID","Kernel Name",...,"Metric Name","Metric Unit","Metric Value"   a metric a line
    summary        "Kernel Name","Invocations",...,"Minimum","Maximum","Average"   a metric of all launches

The profiled program's own output and `==PROF==` lines may come before, between and after. Numbers have a thousands'
comma in some languages. A metric has a name on each page (METRICS) and one kind of unit; values are turned into
seconds, bytes per second, percent or numbers.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scalewright.diagnose.traces.json_array import NotATrace
from scalewright.diagnose.traces.unpack import Unpacked
from scalewright.spec.base import read_yaml

METRICS: dict[str, list[str]] = read_yaml(Path(__file__).with_name("metrics.yaml"))
BY_NAME: dict[str, tuple[str, ...]] = {
    name: tuple(metric for metric, names in METRICS.items() if name in names)
    for names in METRICS.values()
    for name in names
}
PREFIX = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SECONDS = ("seconds", "second", "sec", "s")
BYTES_PER_SECOND = ("byte/second", "byte/s", "B/s")


def scaled(metric: str, value: float, unit: str) -> float | None:
    """The value in this metric's own unit; None where the unit is of another kind."""
    if metric.endswith("_pct"):
        return value if unit in ("%", "") else None
    if not metric.endswith("_s"):
        return value
    bases = BYTES_PER_SECOND if metric.endswith("_per_s") else SECONDS
    base = next((base for base in bases if unit.endswith(base)), None)
    factor = None if base is None else PREFIX.get(unit.removesuffix(base))
    return None if factor is None else value * factor


KERNEL = "Kernel Name"
MOST_LINES = 5_000_000
LONGEST_LINE = 1 << 20  # bytes: a line of all metrics has some 30,000
MOST_LETTERS = 2000  # of a kernel's name


@dataclass
class Launch:
    """A kernel's launch, or the mean of `count`; `values` by the names of METRICS. `capability`: 9.0."""

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
        if KERNEL in row or len(row) != len(header):
            continue  # the latter is another program's line
        cells = dict(zip(header, row, strict=True))
        if "Metric Name" in header:
            _add_metric(launches, cells)
        elif not cells[KERNEL]:
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
    value = cells.get("Metric Value") or cells.get("Average", "")
    _put(launch, cells["Metric Name"], value, cells.get("Metric Unit", ""))


def _launch(cells: dict[str, str], units: dict[str, str]) -> Launch:
    """A line of the raw page: all metrics."""
    launch = Launch(cells[KERNEL][:MOST_LETTERS], cells.get("CC", ""))
    for name, text in cells.items():
        _put(launch, name, text, units.get(name, ""))
    return launch


def _put(launch: Launch, name: str, text: str, unit: str) -> None:
    for metric in BY_NAME.get(name, ()):
        if (number := _number(text)) is not None and (value := scaled(metric, number, unit)) is not None:
            launch.values.setdefault(metric, value)


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
