"""What a block exchanges over cp and ep in one micro-batch: exposed seconds of a forward, and bytes.

    context parallel   ring: keys and values to the next rank, cp - 1 times, beside the core
                       (Liu et al. 2023); ulysses: all-to-all of heads (Jacobs et al. 2023);
                       or a gather of keys and values (Dubey et al. 2024 §3.3.2)
    expert parallel    dispatch and combine: all-to-alls of the routed tokens (Lepikhin et al. 2020 §3.2)

Bytes: an all-to-all's and a message's are what is sent. All else that a rank sends is in volumes.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.plan.cost import collectives as x
from scalewright.plan.cost import work as w
from scalewright.plan.cost.columns import Columns
from scalewright.plan.cost.parts import PARTS
from scalewright.plan.cost.price_list import PriceList
from scalewright.plan.request import CP_KINDS

# Schedules that run a micro-batch's forward with another's backward, so that stride computes while the other
# exchanges: the all-to-alls are hidden (DeepSeek-AI 2024 §3.2.1), all but the pipeline's ends.
PAIRED_HIDES = 0.9
# Bytes moved over those of a part of attention's output, to merge it: it is read in 16 bits, the sum so far
# is read and written in 32
MERGES = 5.0


@dataclass(frozen=True)
class Exchange:
    """Of one block and micro-batch: exposed seconds of the forward, and bytes of the forward."""

    seconds: np.ndarray
    bytes: np.ndarray


def context_parallel(at: Columns, prices: PriceList) -> Exchange:
    """Keys and values among cp ranks; a ring hides behind attention's core, but for its start."""
    t, size = at.table, at.work("key_value")
    nothing = np.zeros(len(t))
    if not (t.cp > 1).any():
        return Exchange(nothing, nothing)
    network = prices.network
    core = prices.beside * at.prices.parts[:, PARTS.index("core")][t.unit]
    ring = (t.cp - 1) * network.send(size, t.tp, t.tp * t.cp)
    whole = network.gather(size * t.cp, t.cp, t.tp)
    turn = network.all_to_all(2 * at.work("stream") / t.tp + size, t.cp, t.tp)
    merged = prices.beside * (t.cp - 1) * MERGES * at.work("stream") / t.tp / at.memory_rate
    exposed = np.select(
        [t.cp_kind == CP_KINDS.index("ring"), t.cp_kind == CP_KINDS.index("ulysses")],
        [np.maximum(ring - core * (t.cp - 1) / t.cp, 0.1 * ring) + merged, turn],
        whole,
    )
    return Exchange(np.where(t.cp > 1, exposed, 0.0), np.where(t.cp > 1, size * (t.cp - 1), 0.0))


def expert_parallel(at: Columns, prices: PriceList) -> Exchange:
    """Dispatch and combine; a dispatcher that knows of domains sends a token to each domain once.

    Among d domains, top_k evenly spread experts meet d (1 - (1 - 1/d)^top_k); groups limit d.
    """
    t = at.table
    nothing = np.zeros(len(t))
    if not (t.ep > 1).any():
        return Exchange(nothing, nothing)
    stride, sparse = np.ones(len(t)), at.work("sparse")
    size = at.work("routed") * at.trainer("capacity_factor")
    domains, top_k = t.ep / x.inside(t.ep, stride, at.links), at.work("top_k")
    reached = np.maximum(domains * at.work("reached"), 1.0)
    met = reached * (1 - (1 - 1 / reached) ** top_k) / top_k
    far = np.where((at.trainer("dedup") > 0) & (domains > 1), met, 1.0)
    once = prices.network.all_to_all(size, t.ep, stride, far)
    gathered = at.trainer("gathers_tokens") > 0  # every rank gets all tokens, and sums up as many
    if gathered.any():
        once = np.where(gathered, prices.network.gather(at.work("stream") / t.tp * t.ep, t.ep, stride), once)
    both = 2 * once * sparse
    hidden = prices.beside * both * at.c["overlap.ep"] * at.trainer("overlap_ep")
    paired = t.schedules("paired")
    if paired.any():
        cover = PAIRED_HIDES * np.minimum(both, at.region(at.forward, w.BLOCK))
        hidden = np.maximum(hidden, prices.beside * paired * cover * (1 - at.c["overlap.slow"]))
    return Exchange(both - hidden, np.where(t.ep > 1, 2 * size * sparse, 0.0))
