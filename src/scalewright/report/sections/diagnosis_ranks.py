"""The ranks of a trace: a heat map of their parts, and what each did when, on a canvas that zooms.

Map     every part of every rank, shaded by how far it is from the ranks' median
Lanes   one for a rank's device, one for its communication. A lane of up to `BOXES` boxes is drawn as it is; a
        longer one is cut into `SLICES` of equal length, each in the part that takes most of it.

Curves of a diagnosis: a log's steps (time, loss, throughput), and memory with what its peak was for.
"""

from __future__ import annotations

import numpy as np

from scalewright.diagnose.memory.categories import CATEGORIES
from scalewright.diagnose.timeline import PARTS, Lane, Timeline
from scalewright.report.chart import Chart, Drawing, Series, draw
from scalewright.report.document import JSON
from scalewright.report.page import Section
from scalewright.report.present.diagnosis import IDLE, rank_name
from scalewright.report.series import Kind
from scalewright.spec.common.formatting import counted, decimal, short_time

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
    parts = [{**rank["idle_causes_pct"], **rank["breakdown_pct"]} for rank in ranks]
    shares = np.array([[of_rank[key] for key in COLUMNS] for of_rank in parts], float)
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


def _cell(share: float, apart: float, most: float) -> dict[str, object]:
    """Its text, and its shade: 0 to 1 of the strongest."""
    return {
        "text": f"{share:.1f}",
        "shade": round(abs(apart) / most, 3) if abs(apart) >= LEAST else 0,
        "kind": "more" if apart > 0 else "less",
        "label": f"{apart:+.1f} points from the median rank",
    }


BOXES, SLICES, TICKS = 4000, 2000, 1_000_000
MOST_LANES = 32  # ranks
NAMES = {
    "compute": ("compute", 0), "transfer": ("communication: transfer", 5),
    "waiting": ("communication: waiting for another rank", 4), "memcpy": ("memcpy", 2),
    **{key: (part.name, part.part) for key, part in IDLE.items()},
}  # fmt: skip


def lanes_section(lanes: Timeline) -> Section:
    """The drawing, with the names and colours of its boxes."""
    window = max(lanes.window, 1)
    shown = lanes.ranks[:MOST_LANES]
    both = [lane for rank in shown for lane in (rank.device, rank.communication)]
    names = [name for rank in shown for name in (rank.name, "")]
    used = {int(part) for lane in both for part in np.unique(lane.part)}
    drawing = {
        "type": "pipeline", "ranks": [encoded(lane, window) for lane in both], "lanes": names,
        "names": [NAMES[part][0] for part in PARTS], "colours": [f"c{NAMES[part][1]}" for part in PARTS], "bare": True,
        "ticks": TICKS, "chunks": 1, "seconds": lanes.window / 1e9,
    }  # fmt: skip
    notes = ["Below each rank its communication, beside compute, too. Clocks are aligned by collectives."]
    if any(len(lane.part) > BOXES for lane in both):
        slice_s = short_time(lanes.window / 1e9 / SLICES)
        notes.append(f"Drawn in slices of {slice_s}, each in the colour of what takes most of it.")
    if len(lanes.ranks) > MOST_LANES:
        notes.append(f"Left out: {counted(len(lanes.ranks) - MOST_LANES, 'more ranks')}.")
    kinds = [NAMES[part] for number, part in enumerate(PARTS) if number in used]
    data = {
        "kinds": [{"name": name, "number": number} for name, number in kinds],
        "height": 16 * len(both),
        "description": f"{counted(len(shown), 'ranks')} over {short_time(lanes.window / 1e9)}; the bars have the sums.",
        "notes": notes,
    }
    return Section("timeline", "What each rank did when", "diagnosis_lanes.html", data, drawings=[drawing])


def encoded(lane: Lane, window: int) -> list[int]:
    """Five numbers a box, as pipeline.js reads them: part, 0, 0, ticks since the box before, length."""
    if len(lane.part) > BOXES:
        lane = slices(lane, window)
    start = np.round(lane.start * (TICKS / window)).astype(np.int64)
    end = np.maximum(np.round(lane.end * (TICKS / window)).astype(np.int64), start)
    gap = start - np.concatenate(([0], np.maximum.accumulate(end)[:-1])) if len(start) else start
    zero = np.zeros_like(start)
    return [int(number) for number in np.stack([lane.part, zero, zero, gap, end - start], axis=1).flat]


def slices(lane: Lane, window: int) -> Lane:
    """The part with the most time in each of `SLICES` equal slices; slices without any are left out."""
    edges = np.linspace(0, window, SLICES + 1)
    time = np.zeros((len(PARTS), SLICES))
    for part in np.unique(lane.part):
        of_part = lane.part == part
        covered = np.concatenate(([0.0], np.cumsum(lane.end[of_part] - lane.start[of_part])))
        at = np.searchsorted(lane.start[of_part], edges, side="right")
        before = covered[at]
        last = np.maximum(at - 1, 0)
        inside = np.where(at > 0, np.maximum(lane.end[of_part][last] - edges, 0), 0)
        time[part] = np.diff(before - inside)
    most = time.argmax(axis=0)
    some = time.max(axis=0) > 0
    first = np.flatnonzero(some & np.concatenate(([True], (most[1:] != most[:-1]) | ~some[:-1])))
    ends = np.flatnonzero(some & np.concatenate(((most[1:] != most[:-1]) | ~some[1:], [True])))
    return Lane(most[first], edges[first].astype(np.int64), edges[ends + 1].astype(np.int64))


GIB = 1 << 30
COLOURS = (0, 1, 8, 2, 5, 4, 3, 9)  # of CATEGORIES
CURVES: tuple[tuple[str, str, Kind, str], ...] = (
    ("step_time_s", "Step time", "seconds", ""),
    ("loss", "Loss", "number", ""),
    ("tflops", "TFLOP/s", "number", "a device"),
    ("tokens_per_s", "Tokens", "count", "a second"),
    ("grad_norm", "Gradient norm", "number", ""),
    ("memory_gib", "Memory", "gib", "GiB"),
)


def steps_section(answer: JSON) -> Section | None:
    if "log" not in answer or len(answer["log"]["steps"]) < 2:
        return None
    rows = answer["log"]["steps"]
    steps = np.array([row["step"] if row["step"] is not None else place for place, row in enumerate(rows)], float)
    drawings = []
    for key, title, kind, unit in CURVES:
        values = np.array([row.get(key) if row.get(key) is not None else np.nan for row in rows], dtype=float)
        if np.isfinite(values).sum() >= 2:
            line = Series("each step", "line", steps, values)
            ends = (float(steps.min()), float(steps.max()) if steps.max() > steps.min() else float(steps.min()) + 1)
            drawings.append(draw(Chart(key, title, kind, (line,), ends, unit, from_zero=key != "loss")))
    return Section("steps", "Its steps", "diagnosis_curves.html", {"drawings": drawings}) if drawings else None


def memory_section(answer: JSON) -> Section | None:
    """Of a snapshot, or of a trace that followed memory."""
    memory = answer.get("memory")
    if not memory or memory.get("peak_bytes") is None:
        return None
    kinds = memory.get("by_category") or {}
    peak = memory["peak_bytes"] or 1
    pieces = [
        {"number": colour, "share": kinds[kind] / peak, "name": kind, "label": f"{kind} {kinds[kind] / GIB:.2f} GiB"}
        for kind, colour in zip(CATEGORIES, COLOURS, strict=True)
        if kinds.get(kind)
    ]
    phase, curve = memory.get("peak_phase") or "", _curve(memory.get("curve"))
    data = {"peak": f"{peak / GIB:.2f} GiB", "phase": phase, "pieces": pieces, "curve": curve}
    return Section("memory", "Where the memory went", "diagnosis_memory.html", data)


def _curve(curve: JSON | None) -> Drawing | None:
    if not curve or len(curve["time_s"]) < 2:
        return None
    times = np.array(curve["time_s"], dtype=float)
    span = times[-1] - times[0]
    unit, factor = ("ms", 1e3) if span >= 0.01 else ("µs", 1e6)
    values = np.array(curve["allocated_bytes"], dtype=float) / GIB
    line = Series("allocated", "line", (times - times[0]) * factor, values)
    title, ends = f"Allocated over {decimal(span * factor, 3)} {unit}", (0.0, span * factor or 1.0)
    return draw(Chart("memory", title, "gib", (line,), ends, "GiB", from_zero=True))
