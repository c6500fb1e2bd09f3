"""Messages between processes: what arrives is compared, and what is wrong is counted.

A line through messages' times: recovered where it is known, and wide where the times say little.
"""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.bench.collectives import CollectivesJob, fit_line, fits, make_buffers, measure
from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext
from scalewright.spec.errors import UserError
from scalewright.spec.groups import COLLECTIVES

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


SIZES = [2.0**power for power in range(10, 24)]


def times(start: float, rate: float, noise: float, repeats: int = 15) -> list[list[float]]:
    generator = np.random.default_rng(3)
    return [[(start + size / rate) * float(generator.lognormal(0, noise)) for _ in range(repeats)] for size in SIZES]


def test_a_known_line_comes_back() -> None:
    line = fit_line(SIZES, times(30e-6, 2e9, 0.0))
    assert line is not None
    assert line.start_s == pytest.approx(30e-6, rel=1e-6)
    assert line.bytes_per_s == pytest.approx(2e9, rel=1e-6)
    assert line.error < 1e-9


def test_the_interval_holds_the_truth_and_grows_with_the_noise() -> None:
    quiet, loud = (fit_line(SIZES, times(30e-6, 2e9, noise)) for noise in (0.05, 0.4))
    assert quiet is not None
    assert loud is not None
    assert quiet.start_interval_s[0] <= 30e-6 <= quiet.start_interval_s[1]
    low, high = quiet.interval_bytes_per_s
    assert low is not None
    assert high is not None
    assert low <= 2e9 <= high

    def width(line: object) -> float:
        return float(np.ptp(line.start_interval_s))  # type: ignore[attr-defined]

    assert width(loud) > 2 * width(quiet)


def test_a_term_is_never_below_zero() -> None:
    falling = fit_line([1e3, 1e4, 1e5], [[3e-3], [2e-3], [1e-3]])
    assert falling is not None
    assert falling.bytes_per_s is None
    assert falling.start_s > 0
    steep = fit_line([1e3, 1e4, 1e5], [[1e-6], [2e-5], [1e-3]])
    assert steep is not None
    assert steep.start_s == 0


def test_two_sizes_are_no_fit() -> None:
    assert fit_line([1.0, 2.0], [[1.0], [2.0]]) is None


def test_factors_are_those_of_nccl_tests() -> None:
    factors = {name: collective.factor(8) for name, collective in COLLECTIVES.items()}
    assert factors == {
        "all_reduce": 1.75, "all_gather": 0.875, "reduce_scatter": 0.875, "all_to_all": 0.875,
        "broadcast": 1.0, "send_recv": 1.0,
    }  # fmt: skip
