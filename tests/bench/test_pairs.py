"""Every pair once, and the slow rank, host and link told from each other."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from scalewright.bench import pairs
from scalewright.bench.pairs import PairsJob, measure, rounds, slow
from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext

QUICK = PairsJob(bytes=4096, iterations=3, warmup=1)
LAZY_S = 0.02


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 10])
def test_every_pair_meets_once_and_nobody_has_two_partners(ranks: int) -> None:
    table = rounds(ranks, 100)
    met = [pair for row in table for pair in row]
    assert sorted(met) == list(combinations(range(ranks), 2))
    for row in table:
        assert len({rank for pair in row for rank in pair}) == 2 * len(row)


def test_of_many_ranks_each_has_a_pair_in_as_many_rounds_as_asked() -> None:
    table = rounds(1000, 8)
    assert len(table) == 8
    assert all(len(row) == 500 for row in table)


def world(hosts: int, ranks: int, rate: Callable[[int, int], float]) -> list[dict[str, Any]]:
    """Rows of a world of so many hosts of so many ranks; 100 within a host and 10 between, times `rate`."""
    rows = []
    for a, b in combinations(range(hosts * ranks), 2):
        same = a // ranks == b // ranks
        names = [f"node-{a // ranks}", f"node-{b // ranks}"]
        rows.append({"ranks": [a, b], "hosts": names, "bytes_per_s": (100 if same else 10) * rate(a, b)})
    return rows


def test_a_sound_world_has_nothing_slow() -> None:
    assert slow(world(4, 4, lambda a, b: 1.0 - 0.02 * ((a * 7 + b) % 5))) == []


@pytest.mark.parametrize(
    ("rate", "named"),
    [
        (lambda a, b: 0.5 if 5 in (a, b) else 1.0, {"rank 5"}),
        (lambda a, b: 0.5 if 5 in (a, b) and a // 4 != b // 4 else 1.0, {"rank 5"}),
        (lambda a, b: 0.4 if (a // 4 == 2) != (b // 4 == 2) else 1.0, {"node-2"}),
        (lambda a, b: 0.5 if (a, b) == (1, 2) else 1.0, {"ranks 1 and 2"}),
        (lambda a, b: 0.5 if (a, b) == (1, 9) else 1.0, {"ranks 1 and 9"}),
    ],
    ids=["a device", "its adapter", "a host's uplink", "a lane inside a host", "a path between hosts"],
)
def test_the_slow_part_alone_is_named(rate: Callable[[int, int], float], named: set[str]) -> None:
    assert {line["where"] for line in slow(world(4, 4, rate))} == named


def test_two_ranks_cannot_tell_which_is_slow() -> None:
    assert slow(world(1, 2, lambda a, b: 0.1)) == []


def lazy(context: RankContext, job: PairsJob) -> dict[str, Any]:
    """Pairs of a world whose rank 2 is late for every exchange."""
    once = pairs._once

    def late(*arguments: Any) -> float:
        start = time.perf_counter()
        time.sleep(LAZY_S)
        once(*arguments)
        return time.perf_counter() - start

    if context.rank == 2:
        pairs._once = late
    return measure(context, job)


def test_a_rank_that_is_late_is_named_by_processes_that_met_it() -> None:
    answer = run_local(lazy, (QUICK,), 4)
    assert len(answer["rows"]) == 6
    assert not any(row["wrong"] for row in answer["rows"])
    assert answer["slow"][0]["where"] == "rank 2"
