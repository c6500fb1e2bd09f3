"""The experts' loads as heat maps: every layer at the end of the run, and the least even one over the steps.

shade of an expert = its tokens over the layer's mean: 1 where all are alike, 0 where it got none
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.report.folder import RunFolder
from scalewright.report.page import Section

EDGES = (0.0, 0.25, 0.5, 0.8, 1.25, 2.0, 4.0)  # of the shades, in loads over the mean
SHADES = ("none", "less3", "less2", "less1", "even", "more1", "more2", "more3")
NAMES = ("none", "below 0.25", "0.25–0.5", "0.5–0.8", "0.8–1.25", "1.25–2", "2–4", "above 4")
LAST = 0.2  # of the rows: the end of the run

Loads = NDArray[np.float64]


def section(run: RunFolder) -> Section | None:
    """None for a run without experts, or before its first row of loads."""
    rows = [(row["step"], loads) for row in run.experts if (loads := _loads(row)) is not None]
    if not rows:
        return None
    layers = list(rows[-1][1])
    rows = [(step, loads) for step, loads in rows if list(loads) == layers]
    end = rows[-max(1, round(LAST * len(rows))) :]
    now = np.stack([_relative(sum(loads[layer] for _, loads in end)) for layer in layers])
    worst = int(now.max(axis=1).argmax())
    over = np.stack([_relative(loads[layers[worst]]) for _, loads in rows])
    steps = [f"step {step:,}" for step, _ in rows]
    busiest = f"expert {int(now[worst].argmax())} of layer {layers[worst]}"
    data = {
        "maps": [
            _map("by-layer", "Layers", [f"layer {layer}" for layer in layers], now, _span(end)),
            _map("over-steps", f"Layer {layers[worst]} over the steps", steps, over, f"{len(rows)} of them"),
        ],
        "legend": [*zip(SHADES, NAMES, strict=True)],
        "busiest": f"{busiest}, {now.max():.3g} times the mean",
        "idle": int((now == 0).sum()),
        "cells": int(now.size),
    }
    return Section("experts", "Which experts work", "experts.html", data)


def _loads(row: Any) -> dict[int, Loads] | None:
    """Tokens of every expert, by layer; None where a line is no such row."""
    loads = row.get("loads")
    if not isinstance(row.get("step"), int) or not isinstance(loads, dict) or not loads:
        return None
    try:
        counted = {int(layer): np.array(counts, dtype=np.float64) for layer, counts in loads.items()}
    except (TypeError, ValueError):
        return None
    first, *others = {counts.shape for counts in counted.values()}
    return dict(sorted(counted.items())) if not others and len(first) == 1 and first[0] > 0 else None


def _relative(counts: Any) -> Loads:
    return np.asarray(counts / max(float(np.mean(counts)), 1e-9))


def _span(rows: list[tuple[int, Any]]) -> str:
    first, last = rows[0][0], rows[-1][0]
    return f"step {last:,}" if first == last else f"{len(rows)} steps from {first:,} to {last:,}"


def _map(name: str, title: str, names: list[str], values: Loads, note: str) -> dict[str, object]:
    """A picture of rows by experts: one path for each shade, of runs of cells."""
    kinds = np.searchsorted(EDGES, values, side="left")
    paths: dict[int, list[str]] = {}
    for y, row in enumerate(kinds.tolist()):
        x = 0
        for shade, cells in groupby(row):
            width = len(list(cells))
            paths.setdefault(shade, []).append(f"M{x} {y}h{width}v1h-{width}z")
            x += width
    shapes = [(SHADES[shade], "".join(cuts)) for shade, cuts in sorted(paths.items())]
    size = {"width": values.shape[1], "height": len(names)}
    return {"id": name, "title": title, "note": note, **size, "ends": (names[0], names[-1]), "paths": shapes}
