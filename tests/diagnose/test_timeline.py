"""A timeline adds up to the breakdown; for Perfetto, measured and planned have tracks of the same names."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.diagnose.job import EXAMPLE, Job, write

from scalewright.diagnose.ranks import Ranks, read_ranks
from scalewright.diagnose.timeline import IDLE, PARTS, Lane, timeline, write_perfetto

PLAN = {
    "step_time_s": {"p10": 0.006, "p50": 0.007, "p90": 0.008},
    "time_breakdown_s": {"compute": 0.004, "optimizer": 0.001, "dp_exposed": 0.0015, "other": 0.0005},
}


def ranks_of(job: Job, folder: Path) -> Ranks:
    write(job, folder)
    return read_ranks(sorted(folder.iterdir()))


def seconds(lane: Lane) -> dict[str, int]:
    return {part: int((lane.end - lane.start)[lane.part == number].sum()) for number, part in enumerate(PARTS)}


@pytest.mark.parametrize("job", [EXAMPLE, Job(kernel=20.0, data=3_000.0, sync=True)])
def test_the_devices_boxes_are_the_breakdown(job: Job, tmp_path: Path) -> None:
    ranks = ranks_of(job, tmp_path)
    lanes = timeline(ranks)
    for rank, drawn in zip(ranks.ranks, lanes.ranks, strict=True):
        parts = seconds(drawn.device)
        assert parts["compute"] == rank.breakdown.compute
        assert parts["transfer"] + parts["waiting"] == rank.breakdown.exposed_communication
        assert sum(parts[cause] for cause in PARTS[IDLE:]) == rank.breakdown.idle
        assert np.all(drawn.device.start[1:] >= drawn.device.end[:-1])
        assert drawn.device.end.max() <= lanes.window


def test_the_others_wait_for_the_late_rank_at_the_same_time(tmp_path: Path) -> None:
    lanes = timeline(ranks_of(EXAMPLE, tmp_path))  # clocks that differ by up to 0.3 ms
    assert seconds(lanes.ranks[2].device)["waiting"] == 0
    first, other = (rank.device for rank in lanes.ranks[:2])
    waits = [lane.start[lane.part == PARTS.index("waiting")] for lane in (first, other)]
    assert np.abs(waits[0] - waits[1]).max() <= 2


def events(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    result: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return result


def test_perfetto_has_a_plan_on_tracks_of_the_same_names(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    lanes = timeline(ranks_of(EXAMPLE, tmp_path / "t"))
    write_perfetto(lanes, tmp_path / "a.json", PLAN)
    write_perfetto(lanes, tmp_path / "a.json.gz", PLAN)
    rows = events(tmp_path / "a.json")
    assert rows == events(tmp_path / "a.json.gz")
    named = [(row["pid"], row["args"]["name"]) for row in rows if row["name"] == "thread_name"]
    tracks = Counter(name for _, name in named)
    assert tracks == {"steps": 5, "device": 5, "communication": 5}  # four ranks and the plan
    planned = [row for row in rows if row["ph"] == "X" and row["pid"] == 4]
    assert [row["dur"] for row in planned if row["name"] == "compute"] == pytest.approx([5000, 5000])
    device = [row for row in planned if row["tid"] == 2]
    assert sum(row["dur"] for row in device) == pytest.approx(2 * 7000)  # a step's parts, for both steps
    measured = sum(row["dur"] for row in rows if row["ph"] == "X" and (row["pid"], row["tid"]) == (0, 2))
    assert measured == pytest.approx(lanes.window / 1e3, rel=1e-3)
