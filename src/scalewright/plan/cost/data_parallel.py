"""Seconds that gradients and parameters take beside the computation, in a step.

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

Where nothing runs beside the computation, a pipeline fills and drains with the traffic of its stages: FSDP
gathers when the first activation has come, and reduces before the gradient goes to the stage before.

What FSDP hides slows the computation that hides it (overlap.slow). What is sent: volumes.py.

FSDP2 gathers into one buffer and copies parameters out of it, where the computation waits for them; gradients
are cast to fp32 as they are copied in, beside the backward: 8 + 6 bytes a parameter and micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scalewright.plan.cost.columns import Columns
from scalewright.plan.cost.price_list import PriceList
from scalewright.spec.volumes import During, Transfer

BACKWARD = 2 / 3  # of a micro-batch's time
# Bytes a number that compressing reads and writes, by COMPRESSED: parallel/half_buckets.py, power_sgd.py
PACKING = np.array([0.0, 30.0, 46.0, 44.0])


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
        + _alone(priced)
        + _outer(at, priced, micro)
        + (1 - prices.beside) * _fill(at, priced)
    )


def _alone(priced: Sequence[_Priced]) -> np.ndarray:
    """Seconds of what nothing hides."""
    alone = [x for x in priced if x.transfer.during == "nothing" and x.transfer.axis != "islands"]
    return np.asarray(sum(part.seconds * part.share for part in alone))


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
    once = np.zeros(len(at.table))
    for part in priced:
        if part.transfer.axis in ("fsdp", "efsdp", "expert"):
            # a gradient leaves for the stage before once those of the weights are reduced, unless split off
            later = at.table.schedules("splits") & (part.transfer.kind != "all_gather") & (part.rounds <= 1)
            once = once + np.where(later, 0.0, part.seconds / np.maximum(part.rounds, 1.0))
    return np.asarray((at.table.pp - 1) * once)


def _packing(at: Columns) -> np.ndarray:
    """Seconds of the passes over gradients that whole replicas compress (spec/compress.py)."""
    moved = PACKING[at.trainer.compress]
    if not moved.any():
        return np.zeros(len(at.table))
    held = at.shares
    return np.asarray(moved * (held.dense + held.expert) * (held.group > 1) / at.memory_rate)


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
    for part in priced:
        transfer = part.transfer
        if transfer.axis in ("fsdp", "efsdp") or (transfer.axis == "expert" and transfer.during == "all"):
            times = 2.0 if transfer.kind == "all_gather" else 1.5 * at.c["overlap.slow"]
            moved = moved + times * transfer.calls * transfer.bytes
    return np.asarray(at.trainer.fsdp_copies * moved / at.memory_rate)


def _by_block(at: Columns, priced: Sequence[_Priced], micro: np.ndarray) -> np.ndarray:
    """FSDP's gathers and reductions beside whole micro-batches."""
    traffic, rounds = _traffic(priced, "all")
    cover = rounds * micro * at.c["overlap.fsdp"]
    edges = np.sum([part.edge for part in priced if part.transfer.during == "all"], axis=0)
    slowed = at.c["overlap.slow"] * np.minimum(traffic, cover)
    return np.asarray(np.maximum(traffic - cover, edges) + slowed)
