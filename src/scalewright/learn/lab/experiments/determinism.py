"""Determinism: the same seed gives the same bits, another order of a sum doesn't, and what a fixed order costs.

(a + b) + c != a + (b + c)      in floating point: a sum's bits depend on its order
ring           2 (n - 1) / n B  bytes a rank; each piece is summed in another order of ranks
gathered       (n - 1) B        every rank sums all ranks' in the order 0, 1, 2, ...: n / 2 times the bytes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scalewright.learn.communication import ring_volume
from scalewright.learn.lab.bench import Bench
from scalewright.learn.lab.experiments.all_reduce import Wire, ring
from scalewright.learn.lab.outcome import Outcome, Value, table
from scalewright.learn.numerics import sum_error

if TYPE_CHECKING:
    from scalewright.launch.rank import RankContext

RANKS = 4
TERMS = 1 << 16
DRAWS = 200


def run(bench: Bench) -> Outcome:
    """Two trainings of one seed, sums in many orders, an all-reduce in two."""
    steps = 20 if bench.short else 100
    trained = bench.part("two trainings of one seed, one of another", lambda: _trainings(bench, steps))
    orders = bench.part("a sum in 200 orders", lambda: _orders(bench.seed))
    summed = bench.part("an all-reduce in two orders", lambda: bench.ranks(measure, RANKS, bench.seed))
    size = TERMS * 4.0
    values = [
        Value("weights that differ, the same seed", trained["same"], 0.0, "share", "none", 0.0, "bit by bit"),
        Value("weights that differ, another seed", trained["other"], 0.9, "share", "nearly all", 0.0, "bit by bit",
              "at least"),
        Value("different results of one sum", orders["results"], 2.0, "results", "more than one", 0.0,
              f"of {DRAWS} orders of {TERMS} numbers", "at least"),
        Value("... and the widest spread", orders["spread"], 2 * sum_error(TERMS), "", "2 (n - 1) epsilon / 2", 0.0,
              "a bound, two sums off in two directions", "at most"),
        Value("numbers whose ring sum has other bits than in order", summed["differ"], 0.01, "share", "more than none",
              0.0, "four ranks' random numbers", "at least"),
        Value("bytes of a rank, summed by a ring", summed["ring"], ring_volume("all_reduce", size, RANKS), "B",
              "2 (n - 1) / n B", 0.0, "counted"),
        Value("bytes of a rank, gathered and summed in order", summed["gathered"], (RANKS - 1) * size, "B", "(n - 1) B",
              0.0, "counted"),
    ]  # fmt: skip
    rows = [
        ["same seed", f"{trained['same']:.1%}"], ["another seed", f"{trained['other']:.1%}"],
        ["same batches, summed in two halves", f"{trained['halves']:.1%}"],
    ]  # fmt: skip
    return Outcome(values, [table(f"weights with other bits after {steps} steps", ["training", "differ"], rows)])


def _trainings(bench: Bench, steps: int) -> dict[str, float]:
    import torch

    from scalewright.learn.lab.network import Bytes

    torch.set_num_threads(1)

    def train(seed: int, parts: int = 1) -> torch.Tensor:
        network, generator = Bytes(64, 2, seed), torch.Generator().manual_seed(seed)
        for _ in range(steps):
            places = torch.randint(8, len(bench.text) - 1, (32,), generator=generator)
            for part in places.chunk(parts):
                torch.autograd.backward(network.loss(bench.text, part) / parts)
            with torch.no_grad():
                for weight in network.weights:
                    assert weight.grad is not None
                    weight -= 0.1 * weight.grad
                    weight.grad = None
        return torch.cat([weight.detach().flatten() for weight in network.weights])

    first = train(bench.seed)

    def differ(other: torch.Tensor) -> float:
        return float((first != other).double().mean())

    others = {"same": train(bench.seed), "other": train(bench.seed + 1), "halves": train(bench.seed, 2)}
    return {name: differ(other) for name, other in others.items()}


def _orders(seed: int) -> dict[str, float]:
    import numpy as np

    generator = np.random.default_rng(seed)
    numbers = generator.random(TERMS, dtype=np.float32)
    sums = [float(np.cumsum(generator.permutation(numbers), dtype=np.float32)[-1]) for _ in range(DRAWS)]
    return {"results": float(len(set(sums))), "spread": (max(sums) - min(sums)) / float(np.mean(sums))}


def measure(context: RankContext, seed: int) -> dict[str, Any]:
    """On every rank: the sum of all ranks' numbers by a ring, and gathered; the same answer everywhere."""
    import torch

    from scalewright.bench.world import joined

    with joined(context, "cpu"):
        mine = torch.randn(TERMS, generator=torch.Generator().manual_seed(seed + context.rank))
        every, wire = [torch.empty_like(mine) for _ in range(RANKS)], Wire(context.rank)
        every[context.rank].copy_(mine)
        for turn in range(1, RANKS):
            to, source = (context.rank + turn) % RANKS, (context.rank - turn) % RANKS
            wire.swap(mine, to, every[source], source)
        in_order = torch.stack(every).cumsum(0)[-1]
        gathered, wire = wire.bytes, Wire(context.rank)
        ring(mine, wire)
        differ = float((mine != in_order).double().mean())
    return {"differ": differ, "ring": wire.bytes, "gathered": gathered}
