"""The ranks as a heat map: every part of every rank, shaded by how far it is from the ranks' median."""

from __future__ import annotations

import numpy as np

from scalewright.report.document import JSON
from scalewright.report.page import Section
from scalewright.report.present.diagnosis import rank_name

COLUMNS = {
    "compute": "compute", "exposed_communication": "communication", "exposed_copy": "memcpy",
    "host": "host", "launch": "launch", "data": "data", "sync": "sync", "other": "other",
}  # fmt: skip
MOST = 128  # rows; of more ranks those farthest from the median
LEAST = 1.0  # percent of the window: smaller differences have no shade


def section(answer: JSON) -> Section | None:
    if answer["kind"] != "trace" or len(answer["per_rank"]) < 2:
        return None
    ranks = answer["per_rank"]
    shares = np.array([[_share(rank, key) for key in COLUMNS] for rank in ranks])
    apart = shares - np.median(shares, axis=0)
    most = max(float(np.abs(apart).max()), LEAST)
    rows = np.sort(np.argsort(-np.abs(apart).max(axis=1), kind="stable")[:MOST])
    data = {
        "columns": [*COLUMNS.values()],
        "rows": [
            {"name": rank_name(ranks[row]),
             "cells": [_cell(shares[row, k], apart[row, k], most) for k in range(len(COLUMNS))]}
            for row in rows.tolist()
        ],
        "left_out": len(ranks) - len(rows),
        "stragglers": [f"{straggler['name']} ({straggler['why']})" for straggler in answer["stragglers"]],
    }  # fmt: skip
    return Section("ranks", "Which ranks differ", "diagnosis_ranks.html", data)


def _share(rank: JSON, key: str) -> float:
    parts = rank["breakdown_pct"]
    return float(parts[key] if key in parts else rank["idle_causes_pct"][key])


def _cell(share: float, apart: float, most: float) -> dict[str, object]:
    """Its text, and its shade: 0 to 1 of the strongest."""
    return {
        "text": f"{share:.1f}",
        "shade": round(abs(apart) / most, 3) if abs(apart) >= LEAST else 0,
        "kind": "more" if apart > 0 else "less",
        "label": f"{apart:+.1f} points from the median rank",
    }
