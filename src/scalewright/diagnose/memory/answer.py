"""The answer of `diagnose` for memory snapshots: the peak and its owners, fragmentation, what would help."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalewright.diagnose.memory.snapshot import Snapshot, read_snapshot
from scalewright.diagnose.pickles import NotPlainData

GIB = 1 << 30
FRAGMENTED = 15.0  # percent of reserved bytes, in pieces, from which a setting is worth trying
OWNERS = 20


def memory_answer(files: Sequence[Path]) -> dict[str, Any]:
    """What snapshots show, a device each; raises NotPlainData where none can be read."""
    devices: list[dict[str, Any]] = []
    snapshots: list[Snapshot] = []
    warnings: list[str] = []
    for file in files:
        try:
            read = read_snapshot(file)
        except NotPlainData as error:
            warnings.append(f"{file.name}: {error}: left out")
            continue
        snapshots += read
        devices += [_dump(snapshot) | {"file": file.name} for snapshot in read]
        if any(not snapshot.covered for snapshot in read):
            warnings.append(
                f"{file.name}: its trace begins with memory in use already, so that what was before is seen "
                "by the blocks that are still held"
            )
    if not snapshots:
        raise NotPlainData(warnings[0] if warnings else "it is empty")
    most = max(snapshots, key=lambda snapshot: snapshot.peak)
    verdicts = [verdict for verdict in (_fragmented(most), _largest(most)) if verdict]
    return {
        "kind": "memory",
        "memory": _dump(most),
        "devices": devices,
        "verdicts": verdicts,
        "warnings": warnings,
    }


def _dump(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "reserved_bytes": snapshot.reserved,
        "allocated_bytes": snapshot.allocated,
        "active_bytes": snapshot.active,
        "inactive_bytes": snapshot.inactive,
        "peak_bytes": snapshot.peak,
        "peak_gib": snapshot.peak / GIB,
        "fragmentation_pct": snapshot.fragmentation_pct,
        "segments": snapshot.segments,
        "out_of_memory": snapshot.out_of_memory,
        "top_stacks": [{"owner": owner, "bytes": size} for owner, size in snapshot.owners[:OWNERS]],
    }


def _fragmented(snapshot: Snapshot) -> dict[str, Any] | None:
    if snapshot.fragmentation_pct < FRAGMENTED or snapshot.settings.get("expandable_segments"):
        return None
    pieces = snapshot.in_pieces
    return {
        "cause": "fragmentation",
        "evidence": [
            f"{pieces / GIB:.2f} of {snapshot.reserved / GIB:.2f} GiB reserved are free in pieces, the "
            f"largest free block has {snapshot.largest_free / GIB:.2f} GiB"
        ],
        "fix": "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "saves_gib": pieces / GIB,
    }


def _largest(snapshot: Snapshot) -> dict[str, Any] | None:
    if not snapshot.owners:
        return None
    owner, size = snapshot.owners[0]
    return {
        "cause": "peak",
        "evidence": [f"the peak of {snapshot.peak / GIB:.2f} GiB holds {size / GIB:.2f} GiB from {owner}"],
        "fix": "recompute activations, a smaller micro-batch or sharding, by what this line allocates",
        "saves_gib": None,
    }
