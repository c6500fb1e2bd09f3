"""Every pair of ranks exchanges a message: which rank, host or link is slower than the others?

    round 1   0-5  1-4  2-3       the circle method: each rank has one partner in a round, and has met
    round 2   0-4  5-3  1-2       every other after n - 1 of them
    ...

    rate        bytes one way / seconds of an exchange, both ways at once
    slow rank   the median of its rates < SLOW x the median rank's
    slow host   likewise, of its rates with other hosts
    slow link   its rate < SLOW x the lower of its two ranks' medians

Pairs on one host and pairs between hosts are judged apart. A collective is as slow as its slowest member and
doesn't tell which one that is; a pair does.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from scalewright.bench.world import joined
from scalewright.machine.probe import synchronize
from scalewright.spec.errors import UserError

if TYPE_CHECKING:
    from scalewright.launch.rank import RankContext

SLOW = 0.7  # of the median: neighbours' rates differ by a few percent, a broken lane or cable halves them
FEWEST = 3  # ranks or hosts, of which one can be called slow
WIDTH = 4  # bytes of a number


@dataclass(frozen=True)
class PairsJob:
    """What each pair exchanges, how often, and in how many rounds at most (every rank has a pair in each)."""

    bytes: int = 1 << 24
    iterations: int = 5
    warmup: int = 2
    rounds: int = 64
    device: str = "cpu"


class PairRow(TypedDict):
    """A pair's exchange: the slower end's time, and how many numbers arrived wrong at both."""

    ranks: list[int]
    hosts: list[str]
    time_s: float
    bytes_per_s: float
    wrong: int


def rounds(ranks: int, most: int) -> list[list[tuple[int, int]]]:
    """Disjoint pairs of each round; with more rounds than `most`, so many of them, evenly apart.

    >>> rounds(4, 10)
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    """
    seats = ranks + ranks % 2  # of an odd number one rank sits out each round
    circle, table = list(range(1, seats)), []
    for _ in range(seats - 1):
        line = [0, *circle]
        pairs = [(line[place], line[seats - 1 - place]) for place in range(seats // 2)]
        table.append(sorted((min(pair), max(pair)) for pair in pairs if max(pair) < ranks))
        circle = [circle[-1], *circle[:-1]]
    return [table[index * len(table) // most] for index in range(most)] if len(table) > most else table


def measure(context: RankContext, job: PairsJob) -> dict[str, object]:
    """Joins the world and times every pair; the same answer in each process. Raises UserError for fewer than two."""
    import torch

    if context.world < 2:
        raise UserError("a message needs two processes", "--processes", "give 2 or more")
    with joined(context, job.device) as device:
        rows = exchange(torch, context.rank, context.world, device, job)
    hosts = len({host for row in rows for host in row["hosts"]})
    answer = {"ranks": context.world, "device": device.type, "bytes": job.bytes, "rows": rows}
    return answer | {"slow": slow(rows), "summary": summary(rows), "hosts": hosts}


def exchange(torch: Any, rank: int, world: int, device: Any, job: PairsJob) -> list[PairRow]:
    """A row for each pair, of a world that was joined."""
    dist, count = torch.distributed, job.bytes // WIDTH
    mine = torch.full((count,), float(rank), device=device)
    theirs = torch.empty(count, device=device)
    times: list[tuple[tuple[int, int], float, int]] = []
    for pairs in rounds(world, job.rounds):
        pair = next((pair for pair in pairs if rank in pair), None)
        dist.barrier()
        if pair is None:
            continue
        peer = pair[0] if pair[1] == rank else pair[1]
        seconds = [_once(torch, mine, theirs, peer, device) for _ in range(job.warmup + job.iterations)]
        wrong = int((theirs != float(peer)).sum().item())
        times.append((pair, statistics.median(seconds[job.warmup :]), wrong))
    dist.barrier()
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, (socket.gethostname(), times))
    return _rows(gathered, job.bytes)


def _once(torch: Any, mine: Any, theirs: Any, peer: int, device: Any) -> float:
    dist = torch.distributed
    synchronize(torch, str(device))
    start = time.perf_counter()
    operations = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    synchronize(torch, str(device))
    return time.perf_counter() - start


def _rows(gathered: Sequence[tuple[str, Any]], size: int) -> list[PairRow]:
    """Both ends of a pair put together: its time is the slower one's."""
    ends: defaultdict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    for _, times in gathered:
        for pair, seconds, wrong in times:
            ends[pair].append((seconds, wrong))
    rows: list[PairRow] = []
    for pair, both in sorted(ends.items()):
        hosts, slower = [gathered[rank][0] for rank in pair], max(seconds for seconds, _ in both)
        wrong = sum(wrong for _, wrong in both)
        rows.append(PairRow(ranks=[*pair], hosts=hosts, time_s=slower, bytes_per_s=size / slower, wrong=wrong))
    return rows


def slow(rows: Sequence[PairRow]) -> list[dict[str, Any]]:
    """The slow hosts, ranks and links, the slowest first: `what, where, share` of the usual rate, `words`.

    A host's ranks, and the links of a slow rank or host, aren't named again.
    """
    near, far = _near(rows), _far(rows)
    hosts = _below(_medians(far, "hosts"))
    result = [_line("host", host, share, "with other hosts") for host, share in hosts.items()]
    others = [row for row in far if not hosts.keys() & set(row["hosts"])]
    named: set[int] = set()
    for some, where in ((near, "inside its host"), (others, "with other hosts")):
        ranks = _below(_medians(some, "ranks"))
        result += [_line("rank", f"rank {rank}", share, where) for rank, share in ranks.items()]
        named |= ranks.keys()
    for some in (near, far):
        result += _links(some, hosts, named)
    return sorted(result, key=lambda line: float(line["share"]))


def _near(rows: Iterable[PairRow]) -> list[PairRow]:
    return [row for row in rows if row["hosts"][0] == row["hosts"][1]]


def _far(rows: Iterable[PairRow]) -> list[PairRow]:
    return [row for row in rows if row["hosts"][0] != row["hosts"][1]]


def _medians(rows: Iterable[PairRow], key: Literal["ranks", "hosts"]) -> dict[Any, float]:
    """The median rate of each rank's or host's pairs."""
    rates: defaultdict[int | str, list[float]] = defaultdict(list)
    for row in rows:
        for name in row[key]:
            rates[name].append(row["bytes_per_s"])
    return {name: statistics.median(values) for name, values in rates.items()}


def _below(medians: dict[Any, float]) -> dict[Any, float]:
    """The members whose median is far below the usual member's, with their share of it."""
    if len(medians) < FEWEST:
        return {}
    usual = statistics.median(medians.values())
    return {name: rate / usual for name, rate in medians.items() if rate < SLOW * usual}


def _links(rows: Sequence[PairRow], hosts: Collection[str], ranks: Collection[int]) -> Iterator[dict[str, Any]]:
    """The pairs, all inside hosts or all between them, that are slow though neither of their ends is."""
    medians = _medians(rows, "ranks")
    for row in rows:
        share = row["bytes_per_s"] / min(medians[rank] for rank in row["ranks"])
        if share < SLOW and not set(hosts) & set(row["hosts"]) and not set(ranks) & set(row["ranks"]):
            yield _line("link", "ranks {} and {}".format(*row["ranks"]), share, "to each other")


def _line(what: str, name: str, share: float, where: str) -> dict[str, Any]:
    return {"what": what, "where": name, "share": share, "words": f"{name}: {share:.0%} of the usual rate {where}"}


def summary(rows: Sequence[PairRow]) -> list[dict[str, Any]]:
    """Of pairs inside hosts and between them: how many, and their slowest, usual and fastest rate."""
    lines = []
    for words, some in (("on one host", _near(rows)), ("between hosts", _far(rows))):
        if rates := [row["bytes_per_s"] for row in some]:
            usual = statistics.median(rates)
            figures = {"slowest": min(rates), "usual": usual, "fastest": max(rates)}
            lines.append({"where": words, "pairs": len(rates), **figures})
    return lines
