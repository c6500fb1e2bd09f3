"""Faults planted in generated jobs: the cause comes first, and the gain is what the job without it gains."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.diagnose.job import EXAMPLE, Job, simulate, write

from scalewright.diagnose.answer import answer
from scalewright.diagnose.diagnose import EXAMPLE as PACKAGED
from scalewright.diagnose.diagnose import diagnose
from scalewright.diagnose.ranks import Ranks, read_ranks
from scalewright.diagnose.replay import Change

CLEAN = Job(overlap=True, kernel=150.0)
HIDDEN = Job(overlap=True, kernel=150.0, collective=40.0)
LONG = HIDDEN.without(collective=400.0)
SMALL = HIDDEN.without(kernel=5.0, kernels=30)
WAITS = HIDDEN.without(sync=True)
SHORT = Job(collective=40.0)


def ranks_of(job: Job, folder: Path) -> tuple[Ranks, float]:
    length = write(job, folder)
    return read_ranks(sorted(folder.iterdir())), length


def diagnosed(job: Job, folder: Path) -> tuple[dict[str, Any], float]:
    ranks, length = ranks_of(job, folder)
    return answer(ranks), length


def test_a_clean_job_raises_no_alarm(tmp_path: Path) -> None:
    found, length = diagnosed(CLEAN, tmp_path)
    assert found["verdicts"] == []
    assert found["stragglers"] == []
    assert found["window_s"] * 1e6 == pytest.approx(length, abs=0.1)
    assert sum(found["breakdown_pct"].values()) == pytest.approx(100, abs=1e-9)


FAULTS = {
    "a rank computes slowly": (Job(compute_of={2: 1.4}), Job(), "straggler", "p50"),
    "a rank's host is slow": (Job(host_of={1: 6.0}), Job(), "straggler", "p50"),
    "clocks differ": (Job(compute_of={2: 1.4}, skew=(0, 300, -200, 50)), Job(), "straggler", "p50"),
    "two late ranks": (Job(ranks=6, compute_of={2: 1.4, 5: 1.4}), Job(ranks=6), "straggler", "p50"),
    "the loader": (HIDDEN.without(data=20_000.0), HIDDEN, "data", "p90"),  # p50 has its workers' cost, too
    "a loader as slow as the step": (WAITS.without(data=9_000.0), WAITS, "data", "p90"),
    "a wait in every layer": (SHORT.without(sync=True), SHORT, "sync", "p10"),  # streams would wait, too
    "a wait that keeps streams apart": (LONG.without(sync=True), LONG, "sync", "p90"),
    "nothing hides communication": (LONG.without(overlap=False), LONG, "communication", "p90"),
    "small kernels": (SMALL, SMALL.without(host=0.5), "host", "p90"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_planted_cause_comes_first_and_its_gain_is_true(name: str, tmp_path: Path) -> None:
    broken, fixed, cause, quantile = FAULTS[name]
    found, length = diagnosed(broken, tmp_path)
    first = found["verdicts"][0]
    assert first["cause"] == cause
    true = 100 * (1 - simulate(fixed)[1] / length)
    assert first["gain_pct"][quantile] == pytest.approx(true, rel=0.1)  # the aim for generated traces


def test_stragglers_are_named_with_their_cause(tmp_path: Path) -> None:
    (tmp_path / "compute").mkdir()
    (tmp_path / "host").mkdir()
    slow, _ = diagnosed(Job(ranks=6, compute_of={2: 1.4, 5: 1.4}), tmp_path / "compute")
    late, _ = diagnosed(Job(host_of={1: 6.0}), tmp_path / "host")
    assert {(straggler["rank"], straggler["why"]) for straggler in slow["stragglers"]} == {
        (2, "compute"),
        (5, "compute"),
    }
    assert [(straggler["rank"], straggler["why"]) for straggler in late["stragglers"]] == [(1, "host")]


def test_transfer_is_told_from_waiting_whatever_the_clocks(tmp_path: Path) -> None:
    job = Job(compute_of={2: 1.4}, skew=(0, 300, -200, 50))
    ranks, _ = ranks_of(job, tmp_path)
    [group] = ranks.matched
    assert group.transfer.tolist() == pytest.approx([150_000] * job.steps * job.layers, abs=1)
    assert set(group.wait.argmin(axis=1).tolist()) == {2}
    ahead = ranks.clocks.offset - ranks.clocks.offset[0]
    assert ahead.tolist() == pytest.approx([0, 300_000, -200_000, 50_000], abs=2)


@pytest.mark.parametrize("job", [CLEAN, Job(host=60.0), Job(sync=True), Job(data=5_000.0), Job(host_of={1: 6.0})])
def test_a_replay_without_a_change_is_the_recording(job: Job, tmp_path: Path) -> None:
    ranks, _ = ranks_of(job, tmp_path)
    assert ranks.gain() == 0.0


@pytest.mark.parametrize(
    ("job", "change", "changed"),
    [
        (Job(), Change(compute=0.5), Job(kernel=60.0)),
        (Job(), Change(transfer=0.2), Job(collective=30.0)),
        (Job(kernel=20.0, host=40.0), Change(host=0.5), Job(kernel=20.0, host=20.0)),
        (Job(kernel=20.0, data=3_000.0), Change(data=0.0), Job(kernel=20.0)),
    ],
)
def test_a_replay_with_a_change_is_the_changed_job(job: Job, change: Change, changed: Job, tmp_path: Path) -> None:
    ranks, length = ranks_of(job, tmp_path)
    true = 100 * (1 - simulate(changed)[1] / length)
    assert ranks.gain(change) == pytest.approx(true, abs=1.0)  # a launch call's own length isn't scaled


def test_parts_of_steps_and_idle_causes_add_up(tmp_path: Path) -> None:
    ranks, _ = ranks_of(Job(kernel=20.0, data=3_000.0, sync=True), tmp_path)
    for rank in ranks.ranks:
        assert sum(rank.idle.totals().values()) == rank.breakdown.idle
        assert np.array_equal(sum(rank.idle.by_cause.values()), rank.idle.gaps[:, 1] - rank.idle.gaps[:, 0])
        assert len(rank.steps) == 3


def test_the_packaged_example_is_what_the_generator_makes(tmp_path: Path) -> None:
    write(EXAMPLE, tmp_path)
    for path in sorted(tmp_path.iterdir()):
        packaged = PACKAGED / path.name
        assert gzip.decompress(packaged.read_bytes()) == gzip.decompress(path.read_bytes())
    assert len([*PACKAGED.iterdir()]) == EXAMPLE.ranks


def test_the_example_is_read_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = diagnose([Path("example")])
    assert [(straggler["rank"], straggler["why"]) for straggler in result["stragglers"]] == [(2, "compute")]
