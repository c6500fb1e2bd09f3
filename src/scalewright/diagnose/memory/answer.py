"""The answer of `diagnose` for memory snapshots: the peak, what it was made of, what would save memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.diagnose.memory.categories import CATEGORIES, TEMPORARY
from scalewright.diagnose.memory.snapshot import Snapshot, read_snapshot
from scalewright.diagnose.memory.verdicts import STEP_TEMPORARY, curves, layers_of, savings, verdicts
from scalewright.diagnose.verdict import Verdict
from scalewright.spec.common.pickles import NotPlainData

GIB = 1 << 30
OWNERS = 20
POINTS = 400  # of a curve


def memory_answer(files: Sequence[Path]) -> dict[str, object]:
    """Memory of each device in snapshots; raises NotPlainData where none can be read."""
    devices: list[dict[str, object]] = []
    warnings: list[str] = []
    largest: tuple[int, dict[str, object], list[Verdict]] | None = None
    for file in files:
        try:
            snapshots = read_snapshot(file)
        except NotPlainData as error:
            warnings.append(f"{file.name}: {error}: left out")
            continue
        warnings += [f"{file.name}: {line}" for line in _doubts(snapshots)]
        for snapshot in snapshots:
            memory, causes = _memory(snapshot)
            devices.append({**memory, "file": file.name})
            if largest is None or snapshot.peak > largest[0]:
                largest = snapshot.peak, memory, causes
    if largest is None:
        raise NotPlainData(warnings[0] if warnings else "it is empty")
    return {
        "kind": "memory",
        "memory": largest[1],
        "devices": devices,
        "verdicts": [verdict.dump() for verdict in largest[2]],
        "warnings": warnings,
    }


def _memory(snapshot: Snapshot) -> tuple[dict[str, object], list[Verdict]]:
    """The keys of a device, and its verdicts."""
    level = curves(snapshot.blocks, snapshot.judged, len(snapshot.time_us), snapshot.before)
    at_peak = level[:, snapshot.peak_event].tolist()
    at_peak[TEMPORARY] += at_peak[STEP_TEMPORARY]
    by_category = dict(zip(CATEGORIES, at_peak[: len(CATEGORIES)], strict=True))
    judged = snapshot.judged
    layers = layers_of(snapshot.blocks, judged, snapshot.peak_event)
    saved = savings(level, layers, any(stack.sharded for stack in judged.stacks)) if judged.stacked else []
    memory = {
        "reserved_bytes": snapshot.reserved,
        "allocated_bytes": snapshot.allocated,
        "active_bytes": snapshot.active,
        "inactive_bytes": snapshot.inactive,
        "peak_bytes": snapshot.peak,
        "peak_gib": snapshot.peak / GIB,
        "peak_phase": judged.phases.when(snapshot.peak_event - 1),
        "by_category": by_category if judged.stacked else None,
        "savings": [saving.dump() for saving in saved],
        "fragmentation_pct": snapshot.fragmentation_pct,
        "segments": snapshot.segments,
        "out_of_memory": [asked for asked, _ in snapshot.out_of_memory],
        "top_stacks": [{"owner": owner, "bytes": size} for owner, size in snapshot.owners[:OWNERS]],
        "curve": _curve(level.sum(axis=0), snapshot),
    }
    return memory, verdicts(snapshot, by_category, saved)


def _curve(total: np.ndarray, snapshot: Snapshot) -> dict[str, list[Any]]:
    """Allocated bytes over the trace."""
    times = snapshot.time_us
    if not times:
        return {"time_s": [], "allocated_bytes": []}
    rows = peaks_of(total[1:])
    return {
        "time_s": [(times[row] - times[0]) / 1e6 for row in rows],
        "allocated_bytes": [int(total[row + 1]) for row in rows],
    }


def peaks_of(level: np.ndarray, points: int = POINTS) -> list[int]:
    """Places to draw a curve by: the largest of each of `points` pieces, so that the peak is among them."""
    pieces = np.array_split(np.arange(len(level)), min(points, max(len(level), 1)))
    return [int(piece[np.argmax(level[piece])]) for piece in pieces if len(piece)]


def _doubts(snapshots: Sequence[Snapshot]) -> list[str]:
    """Lines on what a file's snapshots can't tell."""
    lines = []
    if any(not snapshot.covered for snapshot in snapshots):
        lines.append(
            "its trace begins with memory in use already, so that what was before is seen by the blocks that "
            "are still held"
        )
    if any(snapshot.blocks and not snapshot.judged.stacked for snapshot in snapshots):
        lines.append("it has no stacks: what memory was for can't be told; record with stacks='python'")
    return lines
