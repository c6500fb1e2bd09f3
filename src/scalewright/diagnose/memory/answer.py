"""The answer of `diagnose` for memory snapshots: the peak, what it was made of, what would save memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from scalewright.diagnose.memory.categories import CATEGORIES, TEMPORARY
from scalewright.diagnose.memory.snapshot import Snapshot, read_snapshot
from scalewright.diagnose.memory.verdicts import GIB, STEP_TEMPORARY, curves, layers_of, savings, verdicts
from scalewright.diagnose.verdict import Verdict
from scalewright.spec.common.pickles import NotPlainData

OWNERS = 20
Device = tuple[int, dict[str, object], list[Verdict], dict[str, object]]  # peak, keys, causes, keys of it alone
POINTS = 400  # of a curve


def memory_answer(files: Sequence[Path]) -> dict[str, object]:
    """Memory of each device in snapshots; raises NotPlainData where none can be read."""
    devices: list[Device] = []
    warnings = []
    for file in files:
        try:
            snapshots = read_snapshot(file)
        except NotPlainData as error:
            warnings.append(f"{file.name}: {error}: left out")
        else:
            warnings += [f"{file.name}: {line}" for line in _doubts(snapshots)]
            devices += [(snapshot.peak, *_memory(snapshot), {"file": file.name}) for snapshot in snapshots]
    if not devices:
        raise NotPlainData(warnings[0] if warnings else "it is empty")
    return answer_of(devices, warnings)


def answer_of(devices: Sequence[Device], warnings: list[str]) -> dict[str, object]:
    """The answer's keys: all devices, and what is found of the one with the highest peak."""
    _, memory, causes, _ = max(devices, key=lambda device: device[0])
    return {
        "kind": "memory",
        "memory": memory,
        "devices": [keys | more for _, keys, _, more in devices],
        "verdicts": [verdict.dump() for verdict in causes],
        "warnings": warnings,
    }


def _memory(snapshot: Snapshot) -> tuple[dict[str, object], list[Verdict]]:
    level = curves(snapshot.blocks, snapshot.judged, len(snapshot.time_us), snapshot.before)
    at_peak = level[:, snapshot.peak_event].tolist()
    at_peak[TEMPORARY] += at_peak[STEP_TEMPORARY]
    by_category = dict(zip(CATEGORIES, at_peak[: len(CATEGORIES)], strict=True))
    judged, times = snapshot.judged, snapshot.time_us
    layers = layers_of(snapshot.blocks, judged, snapshot.peak_event)
    saved = savings(level, layers, any(stack.sharded for stack in judged.stacks)) if judged.stacked else []
    memory = {
        "reserved_bytes": snapshot.reserved, "allocated_bytes": snapshot.allocated,
        "active_bytes": snapshot.active, "inactive_bytes": snapshot.inactive,
        "peak_bytes": snapshot.peak, "peak_gib": snapshot.peak / GIB,
        "peak_phase": judged.phases.when(snapshot.peak_event - 1),
        "by_category": by_category if judged.stacked else None,
        "savings": [saving.dump() for saving in saved],
        "fragmentation_pct": snapshot.fragmentation_pct, "segments": snapshot.segments,
        "out_of_memory": [asked for asked, _ in snapshot.out_of_memory],
        "top_stacks": [{"owner": owner, "bytes": size} for owner, size in snapshot.owners[:OWNERS]],
        "curve": curve(level[:, 1:].sum(axis=0), lambda row: (times[row] - times[0]) / 1e6),
    }  # fmt: skip
    return memory, verdicts(snapshot, by_category, saved)


def curve(level: np.ndarray, seconds: Callable[[int], float]) -> dict[str, list[float]]:
    """Allocated bytes over time: of each of `POINTS` pieces the largest, so that the peak is among them."""
    pieces = np.array_split(np.arange(len(level)), min(POINTS, max(len(level), 1)))
    rows = [int(piece[np.argmax(level[piece])]) for piece in pieces if len(piece)]
    return {"time_s": [*map(seconds, rows)], "allocated_bytes": level[rows].tolist()}


def _doubts(snapshots: Sequence[Snapshot]) -> list[str]:
    """Lines on what a file's snapshots can't tell."""
    lines = []
    if any(snapshot.before > 0 for snapshot in snapshots):
        lines.append(
            "its trace begins with memory in use already, so that what was before is seen by the blocks that are "
            "still held"
        )
    if any(snapshot.blocks and not snapshot.judged.stacked for snapshot in snapshots):
        lines.append("it has no stacks: what memory was for can't be told; record with stacks='python'")
    return lines
