"""Generated pipelines: messages are matched, stages of unequal work are named, and what balancing gains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.diagnose.pipeline_job import PipelineJob, simulate_pipeline, write_pipeline

from scalewright.diagnose.ranks import Ranks, read_ranks
from scalewright.diagnose.stages import bubble, unbalanced
from scalewright.diagnose.verdicts import verdicts

EVEN = PipelineJob(kernels_of=(9, 9, 9), micro_batches=24, jitter=0.02)  # noise, so that no times are equal


def ranks_of(job: PipelineJob, folder: Path) -> tuple[Ranks, float]:
    length = write_pipeline(job, folder)
    return read_ranks(sorted(folder.iterdir())), length


def test_sends_are_matched_with_their_receives(tmp_path: Path) -> None:
    ranks, length = ranks_of(EVEN, tmp_path)
    assert [group.message for group in ranks.matched] == [True] * 4  # two borders, both directions
    assert {len(group) for group in ranks.matched} == {EVEN.micro_batches * EVEN.steps}
    assert all(group.transfer.tolist() == [60_000] * len(group) for group in ranks.matched)
    assert ranks.window == pytest.approx(1e3 * length, abs=2)
    assert ranks.gain() == 0.0  # though ranks launch their messages in orders of their own


@pytest.mark.parametrize("more", [0, 1, 2])
def test_the_stage_with_more_work_is_named_and_balancing_gains_what_it_does(more: int, tmp_path: Path) -> None:
    kernels = [8, 8, 8]
    kernels[more] += 3
    ranks, length = ranks_of(replace(EVEN, kernels_of=tuple(kernels)), tmp_path)
    first = verdicts(ranks)[0]
    assert (first.cause, f"rank {more}" in first.fix) == ("stages", True)
    true = 100 * (1 - simulate_pipeline(EVEN)[1] / length)
    assert first.usual_gain == pytest.approx(true, rel=0.1)  # the aim for generated traces


def test_stages_of_equal_work_have_only_the_bubble(tmp_path: Path) -> None:
    few = PipelineJob(kernels_of=(8, 8, 8, 8), micro_batches=4)
    ranks, _ = ranks_of(few, tmp_path)
    assert unbalanced(ranks) is None
    assert ranks.stragglers == []
    waiting = bubble(ranks)
    assert waiting is not None
    assert waiting.gain is not None
    assert waiting.gain.p90 == pytest.approx(100 * 3 / 7, abs=4)  # (p - 1) / (m + p - 1); messages take time
    (tmp_path / "many").mkdir()
    many, _ = ranks_of(PipelineJob(kernels_of=(8, 8), micro_batches=24), tmp_path / "many")
    assert verdicts(many) == []


def test_as_many_kernels_that_take_longer_are_a_slow_device(tmp_path: Path) -> None:
    ranks, _ = ranks_of(PipelineJob(kernels_of=(8, 8, 8), micro_batches=12, slow={1: 1.4}), tmp_path)
    first = verdicts(ranks)[0]
    assert (first.cause, "rank 1" in first.fix) == ("straggler", True)
