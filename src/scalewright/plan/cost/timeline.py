"""One optimizer step from seconds of kernels and collectives: what runs after what, and hides behind it.

    a rank's micro-batch   microbatch.py      kernels, exposed tp, cp and ep exchange, waits for the host
    the pipeline           pipeline.py        m · slowest rank + bubble + exposed messages
    fewer cores than ranks cpu.py             at least crowd · m · a rank's computation
    data parallelism       data_parallel.py   what the last backward (first forward) doesn't hide;
                                              FSDP: of every micro-batch
    optimizer, offload     optimizer.py       bytes of the states, the host's link
    step                   + what a step always costs (host.step)
                           + stragglers: wait.straggler of the step a doubling of nodes

Stragglers: a step ends with the slowest of n nodes. Of n alike, independent delays the largest grows with the
logarithm of n, whatever their distribution's exponential tail (Gumbel 1958), hence seconds · s · log2(n).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scalewright.plan.cost.columns import PricedColumns, places
from scalewright.plan.cost.cpu import Cpu
from scalewright.plan.cost.data_parallel import data_parallel
from scalewright.plan.cost.microbatch import exchanges, micro
from scalewright.plan.cost.optimizer import offload
from scalewright.plan.cost.pipeline import bubble, clocked, messages
from scalewright.plan.cost.volumes import AXES, bytes_by_axis
from scalewright.plan.cost.work import AFTER, BEFORE, BLOCK, EXTRA

__all__ = ["AXES", "PARTS", "Step", "step"]

PARTS = (
    "compute", "tp_exposed", "dp_exposed", "cp_exposed", "ep_exposed", "pp_bubble", "pp_exposed",
    "optimizer", "recompute", "other",
)  # fmt: skip


@dataclass
class Step:
    """Seconds of a step by part; a number a row."""

    seconds: np.ndarray
    parts: dict[str, np.ndarray]
    flops: np.ndarray  # model FLOPs of a step, on all devices, attention as the mask leaves it
    hardware: np.ndarray  # with recomputation
    host: np.ndarray  # share of the computation that waits for the host
    at: PricedColumns
    detail: dict[str, np.ndarray]  # seconds of the slowest micro-batch, of stragglers, of what is fixed

    @cached_property
    def bytes(self) -> dict[str, np.ndarray]:
        """Bytes that a device sends in a step, by axis (plan/cost/volumes.py)."""
        return bytes_by_axis(self.at)


def step(at: PricedColumns) -> Step:
    """The step of every row; rows of a machine that was timed by themselves, by its price list."""
    table = at.table
    timings = [unit.chip.timings for unit in table.units]
    kinds = {timings[index] for index in np.unique(table.unit)}
    if len(kinds) <= 1:
        return _step(at)
    groups = [np.flatnonzero([timings[index] == kind for index in table.unit]) for kind in kinds]
    steps = [_step(PricedColumns(table.take(rows), at.facts, at.c, at.prices)) for rows in groups]
    order = np.argsort(np.concatenate(groups))

    def joined(columns: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(columns)[order]

    return Step(
        seconds=joined([part.seconds for part in steps]),
        parts={name: joined([part.parts[name] for part in steps]) for name in PARTS},
        flops=joined([part.flops for part in steps]),
        hardware=joined([part.hardware for part in steps]),
        host=joined([part.host for part in steps]),
        at=at,
        detail={name: joined([part.detail[name] for part in steps]) for name in steps[0].detail},
    )


def _step(at: PricedColumns) -> Step:
    """The step of rows that share a price list."""
    table, c = at.table, at.c
    sent, m = exchanges(at), table.accumulation
    prices, volumes = sent.prices, sent.volumes
    seats = places(table)
    ranks = [micro(at, place, sent) for place in seats]
    totals = np.stack([rank.total for rank in ranks])
    slow, which = totals.max(0), totals.argmax(0)
    fill = bubble(at, (ranks[0], ranks[1], ranks[2]), slow)
    message = messages(at, seats, totals, volumes, prices)
    if isinstance(prices, Cpu):
        fill, message = clocked(at, (ranks[0], ranks[1], ranks[2]), slow, fill, message, prices)
    # what other trainers' ranks share is taken of the fullest, whichever it is
    counted = seats if volumes.any_own and (table.pp > 1).any() else seats[:1]
    shared = [data_parallel(at, volumes.data_parallel(place), slow, prices) for place in counted]
    dp = np.max(shared, axis=0)
    states = prices.update() + offload(at, slow)
    fixed = prices.fixed()
    of = {
        name: m * np.choose(which, [getattr(rank, name) for rank in ranks])
        for name in ("compute", "recompute", "tp", "cp", "ep", "host")
    }
    turns = crowded(prices.crowd, of["compute"] + of["recompute"] + of["host"], fill)
    plain = m * slow + fill + turns + message + dp + states + fixed
    nodes = np.maximum(table.devices / np.maximum(at.chip.node, 1.0), 1.0)
    late = plain * c["wait.straggler"] * np.log2(nodes)
    parts = {
        "compute": of["compute"] + turns,
        "tp_exposed": of["tp"],
        "dp_exposed": dp,
        "cp_exposed": of["cp"],
        "ep_exposed": of["ep"],
        "pp_bubble": fill,
        "pp_exposed": message,
        "optimizer": states,
        "recompute": of["recompute"],
        "other": of["host"] + fixed + late,
    }
    forward, hardware = flops(at)
    detail = {"slow": slow, "late": late, "fixed": fixed}
    share = prices.beside * of["host"] / np.maximum(plain, 1e-12)  # a CPU's Python is timed, no wait
    return Step(plain + late, parts, forward, hardware, share, at, detail)


def crowded(crowd: np.ndarray, work: np.ndarray, fill: np.ndarray) -> np.ndarray:
    """Seconds that ranks with `work` seconds each wait for a core, where `crowd` of them share each.

    A core is never idle while a rank could run: in a pipeline's fill the others have it.
    """
    return np.asarray(np.maximum((crowd - 1) * work - fill, 0.0))


def flops(at: PricedColumns) -> tuple[np.ndarray, np.ndarray]:
    """Model FLOPs of a step on all devices together, and with what recomputation adds."""
    t, per = at.table, at.prices.flops
    ranks = t.tp * t.cp * t.dp * t.accumulation
    blocks = at.work.blocks * ranks
    block = at.region(per, BLOCK) * blocks
    ends = sum(at.region(per, region) for region in (BEFORE, AFTER, EXTRA))
    forward = block + ends * ranks
    parts = (at.rerun_parts * at.prices.part_flops[t.unit]).sum(1)
    again = at.rerun * block + parts * blocks
    return 3 * forward, 3 * forward + again
