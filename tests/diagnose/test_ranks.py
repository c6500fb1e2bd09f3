"""Which traces are of one run: other ranks of one world at the same time; else they are refused, by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.job import Job, simulate

from scalewright.diagnose.diagnose import diagnose
from scalewright.spec.errors import UserError

DAY, SECOND = 86_400 * 10**9, 10**9
BEGUN = 1_790_000_000 * SECOND  # 2026-09-21
JOB = Job(ranks=2, layers=4)


def put(path: Path, events: list[dict[str, Any]], later: int = 0, about: dict[str, Any] | None = None) -> Path:
    """A trace that begins so many nanoseconds after BEGUN."""
    document = {"schemaVersion": 1, "baseTimeNanoseconds": BEGUN + later, "traceEvents": events}
    document |= {"distributedInfo": about} if about else {}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def world(rank: int, size: int = 2) -> dict[str, Any]:
    return {"backend": "nccl", "rank": rank, "world_size": size}


def alone() -> list[dict[str, Any]]:
    """The events of a job of one GPU, without collectives."""
    return [event for event in simulate(Job(ranks=1, layers=4))[0][0] if "nccl" not in event["name"]]


def refused(*paths: Path) -> str:
    with pytest.raises(UserError) as error:
        diagnose(paths)
    return str(error.value)


def test_two_runs_of_one_gpu_at_different_times(tmp_path: Path) -> None:
    files = [put(tmp_path / f"workers{n}.json", alone(), later) for n, later in ((0, 0), (4, 69_296 * SECOND))]
    text = refused(*files)
    assert "these traces are of 2 runs" in text
    assert "workers0.json (2026-09-21 14:13:20 UTC); workers4.json (2026-09-22 09:28:16 UTC)" in text
    assert "--against" in text


def test_other_worlds_and_a_rank_twice(tmp_path: Path) -> None:
    one, two = simulate(JOB)[0]
    first, second = put(tmp_path / "a0.json", one, 0, world(0)), put(tmp_path / "a1.json", two, 0, world(1))
    assert diagnose([first, second])["ranks"] == [0, 1]
    assert "are of 2 runs (a0.json" in refused(first, put(tmp_path / "b.json", two, 0, world(1, 8)))
    text = refused(first, second, put(tmp_path / "c0.json", one, SECOND, world(0)))
    assert "a0.json, a1.json (2 of 2 ranks, 2026-09-21 14:13:20 UTC); c0.json (1 of 2 ranks, " in text


def test_ranks_of_runs_of_different_days(tmp_path: Path) -> None:
    one, two = simulate(JOB)[0]
    first = put(tmp_path / "r0.json", one, 0, world(0))
    assert "of 2 runs" in refused(first, put(tmp_path / "r1.json", two, DAY, world(1)))
    # A host's clock may be wrong by minutes: the collectives align it.
    answer = diagnose([first, put(tmp_path / "r2.json", two, 300 * SECOND, world(1))])
    assert (answer["ranks"], answer["window_s"] < 1) == ([0, 1], True)


def test_ranks_that_only_their_names_tell(tmp_path: Path) -> None:
    one, two = simulate(JOB)[0]
    files = [put(tmp_path / run / f"rank{n}.json", some, day * DAY) for day, run in enumerate("ab")
             for n, some in enumerate((one, two))]  # fmt: skip
    assert diagnose(files[:2])["ranks"] == [0, 1]
    assert diagnose(files[2:])["ranks"] == [0, 1]
    assert "rank0.json, rank1.json (2026-09-21 14:13:20 UTC); rank0.json, rank1.json (2026-09-22" in refused(*files)


def test_of_a_recorder_that_began_again_the_last_windows_count(tmp_path: Path) -> None:
    for rank, events in enumerate(simulate(JOB)[0]):
        for turn in range(3):
            name = f"node_{77 + rank}.{1_790_000_000_000 + 100 * turn + rank}.pt.trace.json"
            put(tmp_path / name, events, turn * SECOND, world(rank))
    answer = diagnose([tmp_path])
    assert answer["ranks"] == [0, 1]
    assert answer["window_s"] < 0.1
    assert answer["warnings"][0] == "4 traces of earlier windows of the same ranks: left out"
    assert [row["file"][-21:-14] for row in answer["per_rank"]] == ["0000200", "0000201"]


def test_clocks_without_dates_say_nothing(tmp_path: Path) -> None:
    one, two = simulate(JOB)[0]
    files = [put(tmp_path / f"rank{n}.json", some, later - BEGUN) for n, some, later in ((0, one, 9), (1, two, DAY))]
    assert diagnose(files)["ranks"] == [0, 1]


def test_a_run_s_own_traces_that_do_not_fit_are_a_note(tmp_path: Path) -> None:
    one, two = simulate(JOB)[0]
    for rank, some in enumerate((one, two)):
        put(tmp_path / "traces" / f"step-00000005-rank0000{rank}.json", some, rank * DAY, world(rank))
    (tmp_path / "run.yaml").write_text("{}")
    (tmp_path / "events.jsonl").write_text("")
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 3.0, "step_time_s": 0.1}\n')
    answer = diagnose([tmp_path])
    assert any("these traces are of 2 runs" in line for line in answer["warnings"])
