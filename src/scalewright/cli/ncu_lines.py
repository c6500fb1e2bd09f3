"""Kernels of `ncu --csv` on the terminal: each one's share of time, how near its peaks it is, its bound."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from scalewright.spec.common.formatting import printable, short_time

HEADS = ["kernel", "count", "% of time", "compute %", "memory %", "occupancy %", "bound by"]
MOST_ROWS = 10


def first_line(answer: Mapping[str, Any]) -> str:
    """How many kernels, how long, and on what."""
    times = [row["time_s"] for row in answer["kernels"] if row["time_s"] is not None]
    device = (
        f" on compute capability {printable(answer['compute_capability'])}"
        if answer["compute_capability"]
        else ""
    )
    took = f", {short_time(sum(times))}" if times else ""
    return f"{answer['launches']:,} launches of {len(answer['kernels']):,} kernels{took}{device}"


def kernel_rows(kernels: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A row a kernel, for the terminal's width."""
    width = max(shutil.get_terminal_size((100, 24)).columns - 66, 16)
    return [
        [printable(row["short_name"])[:width], f"{row['count']:,}", _number(row["time_pct"]),
         _number(row["compute_pct"]), _number(row["memory_pct"]), _number(row["occupancy_pct"]), row["bound"]]
        for row in kernels[:MOST_ROWS]
    ]  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
