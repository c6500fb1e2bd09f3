"""The flight recorder's entries beside Gloo's events: those from before the trace are left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scalewright.diagnose.traces.gloo import name_groups
from scalewright.diagnose.traces.kineto import read_kineto


def trace_of(folder: Path, starts: list[float], entries: Any) -> list[tuple[int, str]]:
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 1, "tid": 2, "ts": start, "dur": 9.0}
        for start in starts
    ]
    world = {"pg_config": [{"pg_name": "1", "ranks": [0, 1]}, {"pg_name": 7}, 3]}
    document = {"distributedInfo": world, "axes": {"1": "tp"}, "collectives": entries, "traceEvents": events}
    path = folder / "rank0.json"
    path.write_text(json.dumps(document))
    named = name_groups(read_kineto(path)).collectives
    return [(row, some.group_about + some.ranks) for row, some in sorted(named.items())]


def entry(created_us: float, group: str = "1") -> list[Any]:
    return [int(created_us * 1000), "gloo:all_reduce", group, "tensor parallel", 1]


def test_entries_from_before_are_left_out(tmp_path: Path) -> None:
    entries = [entry(t, group) for t, group in ((10, "2"), (20, "2"), (99_990, "1"), (199_990, "2"))]
    assert trace_of(tmp_path, [100_000, 200_000], entries) == [(0, "tp[0, 1]"), (1, "tensor parallel[]")]


def test_a_ring_that_forgot_the_first_ones(tmp_path: Path) -> None:
    assert trace_of(tmp_path, [100_000, 200_000], [entry(199_990)]) == [(1, "tp[0, 1]")]


@pytest.mark.parametrize("entries", [None, 3, [[]], [["x", 1]], [[1 << 70, "gloo:all_reduce", "1"]], {"a": 1}])
def test_entries_of_another_form_are_left_out(tmp_path: Path, entries: Any) -> None:
    assert trace_of(tmp_path, [100_000], entries) == []
