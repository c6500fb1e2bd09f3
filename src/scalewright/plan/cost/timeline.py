"""One optimizer step from seconds of kernels and collectives: what runs after what, and hides behind it.

    a rank's micro-batch   microbatch.py     kernels, exposed tp, cp and ep exchange, waits for the host
    the pipeline           pipeline.py       m · slowest rank + bubble + exposed messages
    fewer cores than ranks cpu.py            at least crowd · m · a rank's computation
    data parallelism       `data_parallel`   what the last backward (first forward) doesn't hide; FSDP: of each of them
    optimizer, offload     optimizer.py      bytes of the states, the host's link
    step                   + what a step always costs (host.step)
                           + stragglers: wait.straggler of the step a doubling of nodes

Stragglers: a step ends with the slowest of n nodes. Of n alike, independent delays the largest grows with the logarithm
of n, whatever their distribution's exponential tail (Gumbel 1958), hence seconds · s · log2(n). Gradients, parameters:

    hides behind         traffic                                         exposed
    forward, backward    ZeRO 1, 2: parameters; ZeRO 0 to 2: gradients   what overlap · the pass doesn't hide,
                                                                         and a last bucket
    all                  ZeRO 3, FSDP: gathers and reductions by block   what overlap · micro-batch doesn't,
                                                                         first gather and last reduction
    nothing              FSDP's roots; sums of partial gradients         all; between HSDP's replicas half
    nothing              FSDP2's copies out of what it gathered          all
    nothing              all, under DeepSpeed's pipeline engine          all
    nothing              passes over gradients that are compressed       all
    nothing              outer steps of islands, a step's share           what `overlap` steps don't hide

Where nothing runs beside the computation, a pipeline fills and drains with the traffic of its stages: FSDP gathers when
the first activation has come, and reduces before the gradient goes to the stage before. What FSDP hides slows the
computation that hides it (overlap.slow). FSDP2 gathers into one buffer and copies parameters out of it, where the
computation waits for them; gradients are cast to fp32 as they are copied in, beside the backward: 8 + 6 bytes a
parameter and micro-batch. What is sent: volumes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from scalewright.plan.columnar import Columnar
from scalewright.plan.cost.columns import Columns, PricedColumns, places
from scalewright.plan.cost.cpu import Cpu
from scalewright.plan.cost.microbatch import exchanges, micro
from scalewright.plan.cost.optimizer import offload
from scalewright.plan.cost.pipeline import bubble, clocked, messages
from scalewright.plan.cost.price_list import PriceList, price_list
from scalewright.plan.cost.volumes import Volumes, bytes_by_axis
from scalewright.plan.cost.work import AFTER, BEFORE, BLOCK, EXTRA
from scalewright.spec.volumes import During, Transfer

PARTS = (
    "compute", "tp_exposed", "dp_exposed", "cp_exposed", "ep_exposed", "pp_bubble", "pp_exposed",
    "optimizer", "recompute", "other",
)  # fmt: skip
# Parts of a step that are its micro-batches', with their names there
MICRO = {"compute": "compute", "recompute": "recompute", "other": "host"}
MICRO |= {f"{axis}_exposed": axis for axis in ("tp", "cp", "ep")}
BACKWARD = 2 / 3  # of a micro-batch's time
# Bytes a number that compressing reads and writes, by COMPRESSED: parallel/replicate.py, power_sgd.py
PACKING = np.array([0.0, 30.0, 46.0, 44.0])


@dataclass
class Step(Columnar):
    """Seconds of a step by part; a number a row."""

    seconds: np.ndarray
    parts: dict[str, np.ndarray]
    host: np.ndarray  # share of the computation that waits for the host
    at: PricedColumns

    @cached_property
    def flops(self) -> tuple[np.ndarray, np.ndarray]:
        """Model FLOPs of a step on all devices, attention as the mask leaves it, and with what recomputation adds."""
        at = self.at
        t, per = at.table, at.prices.flops
        ranks = t.tp * t.cp * t.dp * t.accumulation
        blocks = at.work.blocks * ranks
        block = at.region(per, BLOCK) * blocks
        forward = block + sum(at.region(per, region) for region in (BEFORE, AFTER, EXTRA)) * ranks
        again = at.rerun * block + (at.rerun_parts * at.prices.part_flops[t.unit]).sum(1) * blocks
        return 3 * forward, 3 * forward + again

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
        return outer(at, inner(at))
    groups = [np.flatnonzero([timings[index] == kind for index in table.unit]) for kind in kinds]
    parts = [PricedColumns(table.take(rows), at.facts, at.c, at.prices) for rows in groups]
    steps = [outer(part, inner(part)) for part in parts]
    return replace(Step.join(steps).take(np.argsort(np.concatenate(groups))), at=at)


@dataclass
class Inner(Columnar):
    """Seconds of a step's micro-batches and its pipeline, whatever is sharded; a number a row."""

    parts: dict[str, np.ndarray]  # of all micro-batches on the slowest rank, and of what the pipeline adds
    slow: np.ndarray  # of one of them
    waits: np.ndarray  # for the host, beside the computation


def inner(at: PricedColumns, piped: bool = True) -> Inner:
    """Micro-batches and pipeline of rows that share a price list; not `piped`: the micro-batches alone."""
    table = at.table
    sent, m = exchanges(at), table.accumulation
    prices, volumes = sent.prices, sent.volumes
    seats = places(table)
    ranks = [micro(at, place, sent) for place in seats]
    totals = np.stack([rank.total for rank in ranks])
    slow, which = totals.max(0), totals.argmax(0)
    costs = ranks[0].cost, ranks[1].cost, ranks[2].cost
    parts = {part: m * np.choose(which, [getattr(rank, name) for rank in ranks]) for part, name in MICRO.items()}
    host = parts["other"]
    if piped:
        fill = bubble(at, costs, slow)
        message = messages(at, seats, totals, volumes, prices)
        if isinstance(prices, Cpu):
            fill, message = clocked(at, costs, slow, fill, message, prices)
        # ranks wait for a core where a crowd shares each; in a pipeline's fill the others have it
        turns = np.maximum((prices.crowd - 1) * (parts["compute"] + parts["recompute"] + host) - fill, 0.0)
        parts |= {"compute": parts["compute"] + turns, "pp_bubble": fill, "pp_exposed": message}
    return Inner(parts, slow, prices.beside * host)  # a CPU's Python is timed, no wait


def outer(at: PricedColumns, inside: Inner, ends: bool = True) -> Step:
    """The step of rows whose micro-batches and pipeline are known; without `ends` what it is at least.

    Not counted then is what the ranks at the ends of a pipeline share that others don't.
    """
    table, slow = at.table, inside.slow
    prices, volumes = price_list(at), Volumes(at)
    seats = places(table)
    # what other trainers' ranks share is taken of the fullest, whichever it is
    counted = seats if ends and volumes.any_own and (table.pp > 1).any() else seats[:1]
    dp = np.max([data_parallel(at, volumes.data_parallel(place), slow, prices) for place in counted], axis=0)
    states, fixed = states_seconds(at, slow, prices), prices.fixed()
    plain = sum(inside.parts.values()) + dp + states + fixed
    nodes = np.maximum(table.devices / np.maximum(at.chip.node, 1.0), 1.0)
    late = plain * at.c["wait.straggler"] * np.log2(nodes)
    parts = {**inside.parts, "dp_exposed": dp, "optimizer": states, "other": inside.parts["other"] + fixed + late}
    return Step(plain + late, parts, inside.waits / np.maximum(plain, 1e-12), at)


def states_seconds(at: PricedColumns, micro: np.ndarray, prices: PriceList) -> np.ndarray:
    """Seconds of the optimizer's step, and of the host's traffic that micro-batches of `micro` seconds don't hide."""
    return np.asarray(prices.update() + offload(at, micro))


def data_parallel(at: Columns, sent: Sequence[Transfer], micro: np.ndarray, prices: PriceList) -> np.ndarray:
    """Exposed seconds of a step; `micro`: seconds of a micro-batch on the slowest rank."""
    zero1 = np.where(at.table.zero_stage >= 1, at.trainer.overlap_zero1, 1.0)
    micro = prices.beside * micro
    micro = np.where((at.trainer.pipe_engine > 0) & (at.table.pp > 1), 0.0, micro)
    forward = (1 - BACKWARD) * at.c["overlap.dp"] * at.trainer.overlap_params
    backward = BACKWARD * at.c["overlap.dp"] * zero1 * at.trainer.overlap_grads
    priced = [_Priced(at, part, prices) for part in sent if np.any(part.calls)]
    return np.asarray(
        _behind(at, priced, "forward", micro * forward)
        + _behind(at, priced, "backward", micro * backward)
        + _by_block(at, priced, micro)
        + prices.beside * _copies(at, priced)
        + _packing(at)
        + sum(x.seconds * x.share for x in priced if x.transfer.during == "nothing" and x.transfer.axis != "islands")
        + _outer(at, priced, micro)
        + (1 - prices.beside) * _fill(at, priced)
    )


def _outer(at: Columns, priced: Sequence[_Priced], micro: np.ndarray) -> np.ndarray:
    """Seconds of outer steps beyond the inner steps that run meanwhile; both of one step, on average."""
    outer = [part.seconds for part in priced if part.transfer.axis == "islands"]
    if not outer:
        return np.zeros(len(at.table))
    often = at.trainer.fragments * at.trainer.outer_overlap / np.maximum(at.trainer.inner_steps, 1.0)
    return np.asarray(np.maximum(sum(outer) - often * at.table.accumulation * micro, 0.0))


class _Priced:
    """A transfer and the seconds of its calls."""

    def __init__(self, at: Columns, transfer: Transfer, prices: PriceList) -> None:
        self.transfer, call = transfer, prices.network(transfer)
        self.seconds = transfer.calls * call
        self.rounds = transfer.rounds * (np.asarray(transfer.calls) > 0)
        self.share = 1 - at.c["overlap.replicas"] * prices.beside * (transfer.axis == "dp_replicate")
        self.edge = np.minimum(self.rounds * call, self.seconds)  # the first gather, the last reduction


def _fill(at: Columns, priced: Sequence[_Priced]) -> np.ndarray:
    """Seconds that a micro-batch's traffic in one stage holds up the others, in the fill and the drain."""
    once, splits = np.zeros(len(at.table)), at.table.schedules("splits")
    for part in (part for part in priced if part.transfer.axis in ("fsdp", "efsdp", "expert")):
        # a gradient leaves for the stage before once those of the weights are reduced, unless split off
        later = splits & (part.transfer.kind != "all_gather") & (part.rounds <= 1)
        once = once + np.where(later, 0.0, part.seconds / np.maximum(part.rounds, 1.0))
    return np.asarray((at.table.pp - 1) * once)


def _packing(at: Columns) -> np.ndarray:
    """Seconds of the passes over gradients that whole replicas compress (spec/compress.py)."""
    moved = PACKING[at.trainer.compress]
    if not moved.any():
        return np.zeros(len(at.table))
    return np.asarray(moved * (at.dense + at.expert) * (at.summing > 1) / at.memory_rate)


def _behind(at: Columns, priced: Sequence[_Priced], during: During, cover: np.ndarray) -> np.ndarray:
    """What a pass of a micro-batch doesn't hide of its traffic."""
    traffic, rounds = _traffic(priced, during)
    return np.asarray(np.maximum(traffic - rounds * cover, at.c["overlap.last_bucket"] * traffic))


def _traffic(priced: Sequence[_Priced], during: During) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of all transfers beside this pass, and how often a step makes it with them."""
    chosen = [part for part in priced if part.transfer.during == during]
    seconds = np.sum([part.seconds for part in chosen], axis=0)
    return seconds, np.max([part.rounds for part in chosen], axis=0, initial=0.0)


def _copies(at: Columns, priced: Sequence[_Priced]) -> np.ndarray:
    """Seconds of FSDP2's copies: read and written once of what is gathered, in 2 and 4 bytes of gradients."""
    moved = np.zeros(len(at.table))
    for sent in (part.transfer for part in priced):
        if sent.axis in ("fsdp", "efsdp") or (sent.axis == "expert" and sent.during == "all"):
            times = 2.0 if sent.kind == "all_gather" else 1.5 * at.c["overlap.slow"]
            moved = moved + times * sent.calls * sent.bytes
    return np.asarray(at.trainer.fsdp_copies * moved / at.memory_rate)


def _by_block(at: Columns, priced: Sequence[_Priced], micro: np.ndarray) -> np.ndarray:
    """FSDP's gathers and reductions beside whole micro-batches."""
    traffic, rounds = _traffic(priced, "all")
    cover = rounds * micro * at.c["overlap.fsdp"]
    edges = np.sum([part.edge for part in priced if part.transfer.during == "all"], axis=0)
    slowed = at.c["overlap.slow"] * np.minimum(traffic, cover)
    return np.asarray(np.maximum(traffic - cover, edges) + slowed)
