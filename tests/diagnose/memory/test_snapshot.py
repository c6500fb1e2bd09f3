"""Levels and peaks of a snapshot, followed by hand."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from scalewright.diagnose.diagnose import diagnose
from scalewright.diagnose.memory.snapshot import read_snapshot

GIB = 1 << 30


def frames(name: str, line: int) -> list[dict[str, Any]]:
    return [{"name": "linear", "filename": "/x/site-packages/torch/nn/functional.py", "line": 9},
            {"name": name, "filename": "C:\\me\\model.py", "line": line}]  # fmt: skip


def event(action: str, addr: int, size: int, name: str = "forward", line: int = 1) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": frames(name, line)}


def block(address: int, size: int, state: str, name: str = "weights") -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": frames(name, 7)}


def snapshot(folder: Path) -> Path:
    """One GiB of weights from before; 2 GiB of activations and 3 of logits come, overlap, and go."""
    trace = [
        event("alloc", 2, 2 * GIB, "layer", 3),
        event("alloc", 3, 3 * GIB, "logits", 4),
        event("free_requested", 2, 2 * GIB), event("free_completed", 2, 2 * GIB),
        event("alloc", 4, GIB, "gradient", 5),
        event("free_completed", 3, 3 * GIB), event("free_completed", 4, GIB),
    ]  # fmt: skip
    segments = [
        {"device": 0, "address": 1, "total_size": 2 * GIB, "allocated_size": GIB, "active_size": GIB,
        "stream": 0,
         "blocks": [block(1, GIB, "active_allocated"), block(2, GIB, "inactive")]},
        {"device": 0, "address": 9, "total_size": 5 * GIB, "allocated_size": 0, "active_size": 0, "stream": 0,
         "blocks": [block(9, 5 * GIB, "inactive")]},
    ]  # fmt: skip
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [trace, []], "allocator_settings": {}}, 4))
    return path


def test_levels_peak_and_owners(tmp_path: Path) -> None:
    [found] = read_snapshot(snapshot(tmp_path))
    assert (found.reserved, found.allocated, found.inactive) == (7 * GIB, GIB, 6 * GIB)
    assert found.peak == 6 * GIB
    assert found.owners == [
        ("logits (model.py:4)", 3 * GIB),
        ("layer (model.py:3)", 2 * GIB),
        ("weights (model.py:7)", GIB),
    ]


def test_whole_free_segments_are_no_fragmentation(tmp_path: Path) -> None:
    [found] = read_snapshot(snapshot(tmp_path))
    assert found.in_pieces == GIB
    assert round(found.fragmentation_pct, 1) == 14.3


def test_the_answer_names_the_peaks_owner(tmp_path: Path) -> None:
    answer = diagnose([snapshot(tmp_path)])
    assert answer["kind"] == "memory"
    assert answer["memory"]["peak_gib"] == 6
    assert answer["verdicts"][0]["evidence"][1:] == ["3.00 GiB of the peak of 6.00 GiB are from logits (model.py:4)"]
