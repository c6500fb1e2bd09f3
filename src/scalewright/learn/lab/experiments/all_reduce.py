"""An all-reduce by hand, three ways, on sends and receives of Gloo: messages and bytes a rank, and which is sooner.

    ring       pieces go round twice             2 (n - 1) messages        2 (n - 1) / n B bytes
    tree       up to rank 0, and down again      2 log2 n, at rank 0       2 log2 n B
    halving    halves swapped, then doubled      2 log2 n                  2 (n - 1) / n B

    seconds = messages x alpha + bytes / beta      Thakur et al. 2005, Rabenseifner 2004

On one machine all ranks share its memory, so bytes cost the same everywhere: few messages win for longer than on wires.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING, Any

from scalewright.learn.communication import ring_volume
from scalewright.learn.lab.bench import Bench, clock
from scalewright.learn.lab.outcome import Curve, Outcome, Value, curves, table
from scalewright.spec.common.formatting import metric

if TYPE_CHECKING:
    from torch import Tensor

    from scalewright.launch.rank import RankContext

RANKS = 4
SIZES = tuple(4**power for power in range(3, 11))  # numbers of 4 bytes
COUNTED = 1 << 16
NAMES = ("ring", "tree", "halving")


def run(bench: Bench) -> Outcome:
    """Counts of one size, seconds of several, sums compared with Gloo's own."""
    sizes = SIZES[:2] if bench.short else SIZES
    seen = bench.timed(
        "all three on four processes", lambda: bench.ranks(measure, RANKS, sizes, 3 if bench.short else 15)
    )
    size, rounds = COUNTED * 4.0, log2(RANKS)
    expected = {
        "ring": (2 * (RANKS - 1), ring_volume("all_reduce", size, RANKS), "2 (n - 1)", "2 (n - 1) / n B"),
        "tree": (2 * rounds, 2 * rounds * size, "2 log2 n", "2 log2 n B"),
        "halving": (2 * rounds, ring_volume("all_reduce", size, RANKS), "2 log2 n", "2 (n - 1) / n B"),
    }
    values: list[Value] = []
    for name, (messages, sent, of_messages, of_bytes) in expected.items():
        counts, exact = seen["counts"][name], "counted at every send and receive of the busiest rank"
        values += [
            Value(f"{name}: messages of a rank", counts["messages"], messages, "messages", of_messages, 0.0, exact),
            Value(f"{name}: bytes of a rank", counts["bytes"], sent, "B", of_bytes, 0.0, exact),
            Value(f"{name}: difference from Gloo's sum", counts["difference"], 0.0, "", "the same whole numbers", 0.0,
                  exact),
        ]  # fmt: skip
    by_size = {name: dict(map(tuple, rows)) for name, rows in seen["seconds"].items()}
    small = {name: by_size[name][sizes[0]] for name in NAMES}
    values.append(
        Value("256 bytes: ring over halving", small["ring"] / small["halving"], (RANKS - 1) / rounds, "times",
              "(n - 1) / log2 n, all delay", 0.4, "four processes on two cores", timed=True)
    )  # fmt: skip
    lines = [Curve(name, [(count * 4, s) for count, s in rows]) for name, rows in seen["seconds"].items()]
    rows = [[metric(count * 4, "B"), *(f"{by_size[name][count] * 1e6:,.0f}" for name in NAMES)] for count in sizes]
    return Outcome(
        values,
        [curves("seconds by size", "bytes", "seconds", lines, ("B", "s"), log="xy"),
         table("microseconds", ["size", *NAMES], rows)],
        ["ranks of one machine share its memory: no wire is spared by sending fewer bytes"],
    )  # fmt: skip


@dataclass
class Wire:
    """Sends and receives whole tensors, and counts this rank's: a swap is one message each way, counted once."""

    rank: int
    messages: int = 0
    bytes: int = 0

    def swap(self, send: Tensor | None, to: int, receive: Tensor | None, source: int) -> None:
        """Sends one tensor and receives another at the same time; null for neither."""
        import torch.distributed as dist

        work = [dist.isend(send, to)] if send is not None else []
        work += [dist.irecv(receive, source)] if receive is not None else []
        for each in work:
            each.wait()  # type: ignore[union-attr]
        self.messages += 1
        self.bytes += max(x.numel() * x.element_size() for x in (send, receive) if x is not None)


def ring(x: Tensor, wire: Wire) -> None:
    """Each piece is summed on its way round, then goes round once more, whole."""
    import torch

    pieces = list(x.chunk(RANKS))
    right, left, other = (wire.rank + 1) % RANKS, (wire.rank - 1) % RANKS, torch.empty_like(pieces[0])
    for turn in range(RANKS - 1):
        wire.swap(pieces[(wire.rank - turn) % RANKS], right, other, left)
        pieces[(wire.rank - turn - 1) % RANKS].add_(other)
    for turn in range(RANKS - 1):
        wire.swap(pieces[(wire.rank + 1 - turn) % RANKS], right, pieces[(wire.rank - turn) % RANKS], left)


def tree(x: Tensor, wire: Wire) -> None:
    """Pairs of pairs: the sum goes up to rank 0, and down the same way."""
    import torch

    other, steps = torch.empty_like(x), [1 << power for power in range(int(log2(RANKS)))]
    for step in steps:
        if wire.rank % (2 * step) == 0:
            wire.swap(None, 0, other, wire.rank + step)
            x.add_(other)
        elif wire.rank % (2 * step) == step:
            wire.swap(x, wire.rank - step, None, 0)
    for step in reversed(steps):
        if wire.rank % (2 * step) == 0:
            wire.swap(x, wire.rank + step, None, 0)
        elif wire.rank % (2 * step) == step:
            wire.swap(None, 0, x, wire.rank - step)


def halving(x: Tensor, wire: Wire) -> None:
    """Partners swap halves and add, halves of halves next; then the way back, whole parts swapped."""
    import torch

    parts: list[tuple[int, Tensor, Tensor]] = []  # partner, the half that was kept, the other
    for power in range(int(log2(RANKS))):
        partner = wire.rank ^ (1 << power)
        low, high = x.chunk(2)
        mine, their = (low, high) if wire.rank < partner else (high, low)
        other = torch.empty_like(mine)
        wire.swap(their.contiguous(), partner, other, partner)
        mine.add_(other)
        parts.append((partner, mine, their))
        x = mine
    for partner, mine, their in reversed(parts):
        wire.swap(mine, partner, their, partner)


WAYS: dict[str, Callable[[Any, Wire], None]] = {"ring": ring, "tree": tree, "halving": halving}


def measure(context: RankContext, sizes: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """On every rank: counts of COUNTED numbers, and seconds of each size; rank 0's answer has the busiest rank's."""
    import torch
    import torch.distributed as dist

    from scalewright.bench.world import joined

    counts: dict[str, dict[str, float]] = {}
    seconds: dict[str, list[list[float]]] = {}
    with joined(context, "cpu"):
        for name, way in WAYS.items():
            wire, x = Wire(context.rank), torch.arange(COUNTED, dtype=torch.float32) % 7 + context.rank
            exact = x.clone()
            dist.all_reduce(exact)
            way(x, wire)
            seen = torch.tensor([wire.messages, wire.bytes, float((x - exact).abs().max())], dtype=torch.float64)
            dist.all_reduce(seen, op=dist.ReduceOp.MAX)
            counts[name] = dict(zip(("messages", "bytes", "difference"), seen.tolist(), strict=True))
            seconds[name] = []
            for size in sizes:
                data = torch.ones(size)

                def once(way: Callable[[Any, Wire], None] = way, data: Tensor = data) -> None:
                    dist.barrier()
                    way(data, Wire(context.rank))

                took = torch.tensor([clock(once, repeats)])
                dist.all_reduce(took, op=dist.ReduceOp.MAX)
                seconds[name].append([size, float(took)])
    return {"counts": counts, "seconds": seconds}
