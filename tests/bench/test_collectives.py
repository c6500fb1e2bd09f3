"""Messages between processes: what arrives is compared, and what is wrong is counted."""

from __future__ import annotations

import pytest

from scalewright.bench.collectives import CollectivesJob, fits, make_buffers, measure
from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext
from scalewright.spec.collectives import COLLECTIVES
from scalewright.spec.errors import UserError

QUICK = CollectivesJob(least_bytes=64, most_bytes=256, iterations=3, warmup=1, group=2, stride=2)


def spoil(context: RankContext, kind: str) -> list[int]:
    """Wrong numbers after a collective, and again after one number of the input was another on rank 1."""
    import torch
    import torch.distributed as dist

    from scalewright.parallel.mesh import join_world

    join_world(context.rank, context.world, context.rendezvous, torch.device("cpu"))
    group, ranks = dist.group.WORLD, tuple(range(context.world))
    buffers = make_buffers(torch, kind, 12, group, ranks, context.rank, torch.device("cpu"))
    counts = []
    for spoiled in (False, True):
        tensor = buffers.fill()
        if spoiled and context.rank == 1:
            tensor[0] += 1
        buffers.run()
        wrong = torch.tensor(buffers.wrong())
        dist.all_reduce(wrong)
        counts.append(int(wrong))
    dist.destroy_process_group()
    return counts


@pytest.mark.parametrize("kind", [name for name in COLLECTIVES if name != "broadcast"])
def test_a_wrong_number_is_counted(kind: str) -> None:
    right, wrong = run_local(spoil, (kind,), 2, preload=("scalewright.parallel.mesh",))
    assert right == 0
    assert wrong > 0


def test_every_collective_on_groups_of_two() -> None:
    answer = run_local(measure, (QUICK,), 4)
    assert {row["kind"] for row in answer["rows"]} == set(COLLECTIVES)
    assert {row["bytes"] for row in answer["rows"]} == {64, 128, 256}
    assert not any(row["wrong"] for row in answer["rows"])
    for row in answer["rows"]:
        factor = COLLECTIVES[row["kind"]].factor(2)
        assert row["busbw_bytes_per_s"] == pytest.approx(factor * row["algbw_bytes_per_s"])
    assert {fit["kind"] for fit in answer["fits"]} == set(COLLECTIVES)


def test_groups_are_those_of_a_grid() -> None:
    assert CollectivesJob(group=2, stride=2).groups(8) == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert CollectivesJob().groups(3) == [(0, 1, 2)]


@pytest.mark.parametrize(
    ("job", "world", "text"),
    [
        (CollectivesJob(kinds=("all_redcue",)), 2, "did you mean 'all_reduce'"),
        (CollectivesJob(), 1, "two processes"),
        (CollectivesJob(group=2), 3, "don't cover 3"),
        (CollectivesJob(least_bytes=8, most_bytes=4), 2, "above the largest"),
    ],
)
def test_jobs_that_cannot_be(job: CollectivesJob, world: int, text: str) -> None:
    with pytest.raises(UserError, match=text):
        job.check(world)


def test_sizes_are_whole_numbers_of_every_rank() -> None:
    assert CollectivesJob(least_bytes=10, most_bytes=100).sizes(3) == [12, 24, 48, 84]


def test_a_start_is_shared_by_the_messages_of_a_ring() -> None:
    rows = [
        {"kind": "all_reduce", "bytes": size, "seconds": [6e-3 + size * 1.5 / 1e9] * 3} for size in (1024, 4096, 16384)
    ]
    fit = fits(rows, 4)[0]
    assert fit["hop_s"] == pytest.approx(1e-3)
    assert fit["bytes_per_s"] == pytest.approx(1e9)
