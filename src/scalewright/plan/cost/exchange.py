"""What a block exchanges over cp and ep in a forward of one micro-batch: exposed seconds, and bytes.

    context parallel   ring: keys and values to the next rank, cp - 1 times, beside the core
                       (Liu et al. 2023); ulysses: all-to-all of heads (Jacobs et al. 2023);
                       or a gather of keys and values (Dubey et al. 2024 §3.3.2)
    expert parallel    dispatch and combine: all-to-alls of the routed tokens (Lepikhin et al. 2020 §3.2)

Bytes: of an all-to-all and a message what is sent, of a gather its output. Those of cp, and of this package's
own trainer those of ep and etp: volumes.py.
"""

from __future__ import annotations

import numpy as np

from scalewright.plan.cost.columns import Columns, PricedColumns
from scalewright.plan.cost.links import inside, wires
from scalewright.plan.cost.price_list import PriceList
from scalewright.plan.cost.table import RECOMPUTE
from scalewright.plan.cost.work import BLOCK, PARTS
from scalewright.plan.request import CP_KINDS
from scalewright.spec.expert_volumes import ExpertRank
from scalewright.spec.hardware.topology import FABRICS
from scalewright.spec.volumes import ContextRank, SparseBlocks, repeats

# Bytes moved over those of a part of attention's output, to merge it: it is read in 16 bits, the sum so far
# is read and written in 32
MERGES = 5.0


def context_rank(at: Columns, blocks: np.ndarray, rerun: np.ndarray) -> ContextRank:
    """The numbers of a rank with so many blocks that spec/volumes.py asks for."""
    t = at.table
    kinds = {kind: 1.0 * (t.cp_kind == number) for number, kind in enumerate(CP_KINDS)}
    return ContextRank(
        **kinds,
        cp=t.cp,
        blocks=blocks,
        rerun=rerun,
        accumulation=t.accumulation,
        key_value=at.work.key_value,
        apart=at.work.apart,
        query=at.work.query,
        output=at.work.attended,
        repeats=_repeats(at),
    )


def _repeats(at: Columns) -> np.ndarray:
    heads, kv_heads = np.maximum(at.work.query_heads, 1.0), np.maximum(at.work.kv_heads, 1.0)
    return np.asarray(repeats(heads, kv_heads, at.table.cp))


def context_parallel(at: PricedColumns, prices: PriceList) -> np.ndarray:
    """Exposed seconds of keys and values; a ring hides behind attention's core, but for its start."""
    t, size = at.table, at.work.key_value
    if not (t.cp > 1).any():
        return np.zeros(len(t))
    network = prices.network
    core = prices.beside * at.prices.parts[:, PARTS.index("core")][t.unit]
    ring = (t.cp - 1) * network.send(size, t.tp, t.tp * t.cp)
    whole = network.gather(size * t.cp, t.cp, t.tp)
    there, back = at.work.query + _repeats(at) * size, at.work.attended
    turn = sum(network.all_to_all(sent, t.cp, t.tp) for sent in (there, back))
    turn = turn + (at.work.apart > 0) * network.all_to_all(0 * size, t.cp, t.tp)  # values by themselves
    merged = prices.beside * (t.cp - 1) * MERGES * back / at.memory_rate
    exposed = np.select(
        [t.cp_kind == CP_KINDS.index("ring"), t.cp_kind == CP_KINDS.index("ulysses")],
        [np.maximum(ring - core * (t.cp - 1) / t.cp, 0.1 * ring) + merged, turn],
        whole,
    )
    return np.where(t.cp > 1, exposed, 0.0)


def expert_rank(at: Columns, sparse: SparseBlocks) -> ExpertRank:
    """The numbers of a rank with these blocks that spec/expert_volumes.py asks for."""
    t = at.table
    sizes = {name: getattr(t, name) for name in ("ep", "etp", "tp", "cp", "accumulation")}
    blocks = {name: getattr(sparse, name) for name in ("experts", "blocks", "rerun")}
    return ExpertRank(**sizes, **blocks, rows=_routed(at))


def beside_experts(at: Columns) -> np.ndarray:
    """Whether shared experts compute while rows travel (spec/expert_volumes.py: `overlaps_shared`)."""
    t = at.table
    return np.where((t.ep * t.etp > 1) & (t.recompute != RECOMPUTE.index("budget")), at.work.shared_experts, 0.0)


def expert_bytes(at: Columns) -> np.ndarray:
    """Dispatch and combine: each token to its experts, or all tokens to every rank."""
    t = at.table
    size = np.where(at.trainer.gathers_tokens > 0, _all_tokens(at), _routed(at))
    return np.where(t.ep > 1, 2 * size * at.work.sparse, 0.0)


def _routed(at: Columns) -> np.ndarray:
    return np.asarray(at.work.routed * at.trainer.capacity_factor)


def _all_tokens(at: Columns) -> np.ndarray:
    """The tokens of all ranks that share the experts."""
    return np.asarray(at.work.stream / at.table.tp * at.table.ep)


def expert_parallel(at: PricedColumns, prices: PriceList) -> np.ndarray:
    """Exposed seconds of dispatch and combine; node-aware dispatchers send a token to each domain once.

    Among d domains, top_k evenly spread experts meet d (1 - (1 - 1/d)^top_k); groups limit d. They write a token at
    a time, which some networks do at a smaller rate than NCCL's all-to-all (`dispatch` in constants.yaml).
    """
    t = at.table
    if not (t.ep > 1).any():
        return np.zeros(len(t))
    stride, sparse = np.ones(len(t)), at.work.sparse
    domains, top_k = t.ep / inside(t.ep, stride, wires(at)), at.work.top_k
    reached = np.maximum(domains * at.work.reached, 1.0)
    met = reached * (1 - (1 - 1 / reached) ** top_k) / top_k
    slower = at.c.row("exchange", FABRICS)[at.chip.fabric] / at.c.row("dispatch", FABRICS)[at.chip.fabric]
    far = np.where((at.trainer.dedup > 0) & (domains > 1), met * slower, 1.0)
    once = prices.network.all_to_all(_routed(at), t.ep, stride, leaves=far)
    gathered = at.trainer.gathers_tokens > 0  # every rank gets all tokens, and sums up as many
    if gathered.any():
        once = np.where(gathered, prices.network.gather(_all_tokens(at), t.ep, stride), once)
    both = 2 * once * sparse
    hidden = prices.beside * both * at.c["overlap.ep"] * at.trainer.overlap_ep
    paired = t.schedules("paired")
    if paired.any():
        cover = at.c["overlap.paired"] * np.minimum(both, at.region(at.forward, BLOCK))
        hidden = np.maximum(hidden, prices.beside * paired * cover * (1 - at.c["overlap.slow"]))
    return np.asarray(both - hidden)
