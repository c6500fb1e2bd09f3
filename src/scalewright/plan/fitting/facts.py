"""A measured run as evidence lists it: source, trainer, date, model, device, layout and batch.

    row of measured_runs.csv + its request -> {source, trainer, date, model, device, n_devices, layout, ...}

`date` is stated in the row (a release such as v25.05, or a year); else it is the year of the trainer's entry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from scalewright.plan.predict import layout_keys
from scalewright.plan.request import Request
from scalewright.plan.rows.cells import text

DAY = re.compile(r"\b(20[12]\d)-(0[1-9]|1[0-2])(?:-\d\d)?\b")
RELEASE = re.compile(r"\bv?(2[0-9])\.(0[1-9]|1[0-2])(?!\d)")  # NVIDIA's containers and recipes: year.month
YEAR = re.compile(r"\b(20[12]\d)\b")


def run_facts(row: Mapping[str, str], request: Request) -> dict[str, Any]:
    """The keys of `evidence.nearest` for a measured run, without its times."""
    return {
        "source": text(row, "source"),
        "trainer": text(row, "framework") or request.framework.name,
        "date": stated_date(row) or f"{int(request.framework.year)}",
        "model": request.model.name,
        "device": request.chip.name,
        "n_devices": request.devices,
        "layout": layout_keys(request),
        "seq_len": request.seq_len,
    }


def stated_date(row: Mapping[str, str]) -> str:
    """`2025-05` or `2021`, from the trainer's version, the source or the notes; empty when none states it."""
    cells = [text(row, key) for key in ("framework", "source_ref", "notes")]
    for pattern, century in ((RELEASE, "20"), (DAY, "")):
        for cell in cells:
            if match := pattern.search(cell):
                return f"{century}{match[1]}-{match[2]}"
    for cell in cells[:2]:
        if match := YEAR.search(cell):
            return match[1]
    return ""
