"""Messages between processes: their times, their bandwidths, whether every number arrived; a line through the times.

    fill ─► barrier ─► [ start ─ collective ─ stop ] ─► the slowest rank's time   x iterations, warm
                                          └─► after the last: every number compared, wrong ones counted

Gloo on CPUs, NCCL on GPUs (`parallel.mesh` chooses). Numbers are small whole ones in fp32, so that sums are exact in
any order. Groups: `group` ranks, `stride` apart, all groups at once, as the axes of a layout are in a step (tp =
neighbours, stride 1; dp = every tp-th rank). A time is the slowest rank's of the slowest group, the median over
iterations: nccl-tests take the mean of a loop without barriers, which hides starts.

    seconds = alpha + bytes / beta         alpha: s, beta: bytes/s

      seconds │          ╱ slope 1 / beta
              │      ·╱
              │  ·╱
        alpha │╱
              └───────────── bytes

Least squares of relative errors (each point weighs 1 / seconds squared: a small message counts as much as a large one),
neither term below zero. The interval is a bootstrap's (Efron 1979): points, and the repetitions of each, are drawn
again with replacement; the 5th and 95th percentile of the fits are given. It includes what a line doesn't describe only
as far as that varies from size to size: `error` is the median deviation.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from scalewright.bench.world import joined
from scalewright.machine.probe import synchronize
from scalewright.spec.errors import UserError, unknown
from scalewright.spec.groups import COLLECTIVES

if TYPE_CHECKING:
    from scalewright.launch.rank import RankContext

WIDTH = 4  # bytes of a number
PERIOD = 7  # the pattern's values repeat after so many, so that a shifted buffer is seen
DRAWS = 300
LOW, HIGH = 5, 95  # percentiles of the interval
Interval = tuple[float, float]


@dataclass(frozen=True)
class CollectivesJob:
    """The messages to time: bytes double from `least_bytes` to `most_bytes`."""

    kinds: tuple[str, ...] = tuple(COLLECTIVES)
    least_bytes: int = 1 << 10
    most_bytes: int = 1 << 22
    iterations: int = 20
    warmup: int = 5
    device: str = "cpu"
    group: int | None = None  # ranks of a group; null = all
    stride: int = 1

    def groups(self, world: int) -> list[tuple[int, ...]]:
        """Every group of ranks; raises UserError where they don't come out even."""
        size = self.group or world
        block = size * self.stride
        if size < 2 or world % block:
            how = f"give a size that, times the stride, divides {world}"
            raise UserError(f"groups of {size} ranks, {self.stride} apart, don't cover {world}", "--group", how)
        return [
            tuple(first + offset + self.stride * index for index in range(size))
            for first in range(0, world, block)
            for offset in range(self.stride)
        ]

    def sizes(self, ranks: int) -> list[int]:
        """Bytes of every message: doubling, rounded up to whole numbers for each rank."""
        step, doublings = WIDTH * ranks, (self.most_bytes // self.least_bytes).bit_length()
        return list(dict.fromkeys(-(-(self.least_bytes << power) // step) * step for power in range(doublings)))

    def check(self, world: int) -> None:
        """Raises UserError for a job that can't be run by so many processes."""
        for kind in self.kinds:
            if kind not in COLLECTIVES:
                raise unknown("collective", kind, COLLECTIVES, "--kinds")
        if world < 2:
            raise UserError("a message needs two processes", "--processes", "give 2 or more")
        if self.least_bytes > self.most_bytes:
            what = f"the smallest message, {self.least_bytes} bytes, is above the largest, {self.most_bytes}"
            raise UserError(what, "--min-bytes", "give a smaller one")
        self.groups(world)


class MessageRow(TypedDict):
    """One collective of one size; `seconds` holds every iteration's time for the fit."""

    kind: str
    bytes: int
    time_s: float
    fastest_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    wrong: int
    seconds: list[float]


@dataclass(frozen=True)
class Buffers:
    """A collective on one size: `fill` writes the input, `run` sends, `wrong` counts wrong numbers."""

    fill: Callable[[], Any]
    run: Callable[[], Any]
    wrong: Callable[[], int]


def measure(context: RankContext, job: CollectivesJob) -> dict[str, object]:
    """Joins the world, and times every collective and size; the same answer in each process."""
    with joined(context, job.device) as device:
        return time_messages(context, job, device)


def time_messages(context: RankContext, job: CollectivesJob, device: Any) -> dict[str, Any]:
    """The times of every collective and size, in a world that was joined."""
    import torch
    import torch.distributed as dist

    groups = job.groups(context.world)  # every rank makes all of them, in one order
    made = [(dist.new_group(list(ranks)) if len(groups) > 1 else dist.group.WORLD, ranks) for ranks in groups]
    group, ranks = next((group, ranks) for group, ranks in made if context.rank in ranks)
    rows: list[MessageRow] = []
    for kind in job.kinds:
        for size in job.sizes(len(ranks)):
            rows.append(_row(torch, kind, size, group, ranks, context.rank, device, job))
            if context.tell:
                context.tell("event", {"kind": kind, "bytes": size})
    about = {"backend": dist.get_backend(), "device": device.type, "ranks": context.world, "group": len(ranks)}
    shown = [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
    fitted = {"fits": fits(rows, len(ranks)), "torch": str(torch.__version__)}
    return about | {"stride": job.stride, "rows": shown} | fitted


def _row(
    torch: Any, kind: str, size: int, group: Any, ranks: tuple[int, ...], rank: int, device: Any, job: CollectivesJob
) -> MessageRow:
    dist = torch.distributed
    buffers = make_buffers(torch, kind, size // WIDTH, group, ranks, rank, device)
    times: list[float] = []
    for _ in range(job.warmup + job.iterations):
        buffers.fill()
        synchronize(torch, str(device))
        dist.barrier()
        start = time.perf_counter()
        buffers.run()
        synchronize(torch, str(device))
        times.append(time.perf_counter() - start)
    slowest = torch.tensor(times[job.warmup :], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    wrong = torch.tensor(buffers.wrong(), dtype=torch.int64, device=device)
    dist.all_reduce(wrong)
    seconds = [float(value) for value in slowest.tolist()]
    usual = statistics.median(seconds)
    return {
        "kind": kind,
        "bytes": size,
        "time_s": usual,
        "fastest_s": min(seconds),
        "algbw_bytes_per_s": size / usual,
        "busbw_bytes_per_s": size / usual * COLLECTIVES[kind].factor(len(ranks)),
        "wrong": int(wrong.item()),
        "seconds": seconds,
    }


def fits(rows: Sequence[MessageRow], ranks: int) -> list[dict[str, object]]:
    """The start and bus bandwidth of every collective, `hop_s` the start of one of its messages on a ring."""
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        same, collective = [row for row in rows if row["kind"] == kind], COLLECTIVES[kind]
        line = fit_line([row["bytes"] * collective.factor(ranks) for row in same], [row["seconds"] for row in same])
        if line is not None:
            lines.append({"kind": kind, **asdict(line), "hop_s": line.start_s / collective.hops(ranks)})
    return lines


def make_buffers(
    torch: Any, kind: str, count: int, group: Any, ranks: tuple[int, ...], rank: int, device: Any
) -> Buffers:
    """The buffers of one collective, whole tensors of `count` fp32 numbers; `count` divides by the ranks."""
    dist, size, place = torch.distributed, len(ranks), ranks.index(rank)
    part = count // size
    pattern = torch.arange(count, device=device, dtype=torch.float32).remainder_(PERIOD).add_(1)
    whole, other, share = (torch.empty(numbers, device=device) for numbers in (count, count, part))
    filled, total = pattern * (place + 1), size * (size + 1) // 2  # rank i fills with (i + 1) * pattern
    mine, factors = slice(place * part, (place + 1) * part), torch.arange(1, size + 1, device=device)
    before, after = ranks[place - 1], ranks[(place + 1) % size]

    def exchange() -> None:
        sends = dist.P2POp(dist.isend, whole, after, group)
        receives = dist.P2POp(dist.irecv, other, before, group)
        for work in dist.batch_isend_irecv([sends, receives]):
            work.wait()

    def buffers(run: Callable[[], Any], result: Any, expected: Any) -> Buffers:
        return Buffers(lambda: whole.copy_(filled), run, lambda: int((result != expected).sum().item()))

    if kind == "all_reduce":
        return buffers(lambda: dist.all_reduce(whole, group=group), whole, pattern * total)
    if kind == "all_gather":
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gathered = buffers(lambda: gather(whole, share, group=group), whole, pattern * factors.repeat_interleave(part))
        return replace(gathered, fill=lambda: share.copy_(filled[mine]))
    if kind == "reduce_scatter":
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return buffers(lambda: scatter(share, whole, group=group), share, pattern[mine] * total)
    if kind == "all_to_all":
        expected = (factors[:, None] * pattern[mine]).flatten()
        return buffers(lambda: dist.all_to_all_single(other, whole, group=group), other, expected)
    if kind == "broadcast":
        return buffers(lambda: dist.broadcast(whole, src=ranks[0], group=group), whole, pattern)
    return buffers(exchange, other, pattern * (ranks.index(before) + 1))


@dataclass(frozen=True)
class Line:
    """A start (s) and a rate (bytes/s), each with its interval; no rate where larger took no longer."""

    start_s: float
    start_interval_s: Interval
    bytes_per_s: float | None
    interval_bytes_per_s: tuple[float | None, float | None]
    error: float  # median of |fitted / measured - 1|
    points: int


def fit_line(sizes: Sequence[float], seconds: Sequence[Sequence[float]], seed: int = 0) -> Line | None:
    """The line through the medians of `seconds[i]`, repetitions of a message of `sizes[i]` bytes.

    None with fewer than three sizes: two points fit any line, and a bootstrap of them is no interval.
    """
    if len(set(sizes)) < 3:
        return None
    bytes_of = np.asarray(sizes, dtype=float)
    medians = np.array([np.median(repeated) for repeated in seconds])
    start, slope = _solve(bytes_of, medians)
    generator = np.random.default_rng(seed)
    draws = np.array([_draw(bytes_of, seconds, generator) for _ in range(DRAWS)])
    (least, flattest), (most, steepest) = np.percentile(draws, (LOW, HIGH), axis=0).tolist()
    error = float(np.median(np.abs((start + slope * bytes_of) / medians - 1)))
    rates = _inverse(steepest), _inverse(flattest)
    return Line(start, (least, most), _inverse(slope), rates, error, points=len(sizes))


def _draw(sizes: np.ndarray, seconds: Sequence[Sequence[float]], generator: np.random.Generator) -> tuple[float, float]:
    """A fit to points drawn with replacement, two sizes at least, each the median of drawn repetitions."""
    picked = generator.integers(len(sizes), size=len(sizes))
    while len(set(sizes[picked])) < 2:
        picked = generator.integers(len(sizes), size=len(sizes))
    medians = [np.median(generator.choice(np.asarray(seconds[index]), len(seconds[index]))) for index in picked]
    return _solve(sizes[picked], np.array(medians))


def _solve(sizes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """(alpha, 1 / beta) of the least relative error; a term that would be below zero is zero."""
    ones, steps = 1 / seconds, sizes / seconds
    both = np.linalg.lstsq(np.stack([ones, steps / sizes.max()], axis=1), np.ones(len(sizes)), rcond=None)[0]
    start, slope = float(both[0]), float(both[1] / sizes.max())
    if start < 0:
        return 0.0, float(steps.sum() / (steps @ steps))
    if slope < 0:
        return float(ones.sum() / (ones @ ones)), 0.0
    return start, slope


def _inverse(slope: float) -> float | None:
    return 1 / slope if slope > 0 else None
