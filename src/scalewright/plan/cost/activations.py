"""What a rank keeps of its micro-batches until their backward: how many are under way, and bytes of each.

Under way on rank r of p, with v chunks and m micro-batches (spec/schedules/memory.py counts it by action):

    gpipe            m                                     Huang et al. 2019 §2.3
    1f1b, pipedream  min(m, p - r)                         Narayanan et al. 2021a §3
    interleaved      min(m v, 2 (p-1-r) + (v-1) p + 1) / v  Narayanan et al. 2021b §2.2.2
    zb-h1            min(m, p)                             Qi et al. 2023 §3.2: as 1F1B's first rank
    zb-interleaved   min(m, p)                             ours, by the count
    zbv              min(m, p)                             Qi et al. 2023 §6
    dualpipe         min(m, p + 1)                         DeepSeek-AI, DualPipe's README
    dualpipev        min(m, p + 1/2)                       the same, cut in half

What a block keeps of each (Korthikanti et al. 2022 §4 and §5):

    none   all that its backward reads      selective   its input and its matrix products' outputs
    core   less attention's inside          full        its input
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from scalewright.plan.constants import Constants
from scalewright.plan.cost import work as w
from scalewright.plan.cost.table import RECOMPUTE, Facts, Table
from scalewright.plan.frameworks import ATTENTION, KERNELS
from scalewright.plan.request import SCHEDULES
from scalewright.spec.block import Sizes, block
from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import layer_kinds
from scalewright.spec.recompute import choose

SCORES = 2.0  # bytes of a score in memory; with dropout its mask and the dropped copy, too
SCORES_DROPPED = 5.0  # Korthikanti et al. 2022 eq. 1: 5 a s^2 b
POLICY = 0.5  # what XLA's own recipes keep of a block
_IN_MEMORY = [ATTENTION.index("unfused"), ATTENTION.index("softmax")]
_EAGER = [KERNELS.index("eager"), KERNELS.index("fused")]


def under_way(table: Table, rank: np.ndarray) -> np.ndarray:
    """Micro-batches whose activations a pipeline rank holds at once, in whole ranks' worth."""
    p, v, m = table.pp, table.chunks, table.micros
    held = np.minimum(m, p - rank)
    for index in np.unique(table.schedule):
        kind = SCHEDULES[index]
        if kind in _UNDER_WAY:
            held = np.where(table.schedule == index, _UNDER_WAY[kind](p, v, m, rank), held)
    return np.asarray(np.where(p > 1, held, 1.0))


def _loops(p: np.ndarray, v: np.ndarray, m: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Interleaved 1F1B, and with one chunk stated 1F1B itself."""
    chunks = np.minimum(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1) / v
    return np.asarray(np.where(v > 1, chunks, np.minimum(m, p - rank)))


_UNDER_WAY: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "gpipe": lambda p, v, m, rank: m,
    "1f1b": _loops,  # a run may state chunks alone
    "interleaved": _loops,
    "zb-h1": lambda p, v, m, rank: np.minimum(m, p),
    "zb-interleaved": lambda p, v, m, rank: np.minimum(m, p),
    "zbv": lambda p, v, m, rank: np.minimum(m, p),
    "dualpipev": lambda p, v, m, rank: np.minimum(m, p + 0.5),
    "dualpipe": lambda p, v, m, rank: np.minimum(m, p + 1),
}


def budgets(table: Table) -> tuple[np.ndarray, np.ndarray]:
    """What spec/recompute.py chooses for a budget: bytes that an average block keeps, share of FLOPs redone.

    Rows with no budget get zeros.
    """
    rows = np.flatnonzero(table.recompute == RECOMPUTE.index("budget"))
    kept, again = np.zeros(len(table)), np.zeros(len(table))
    for row in rows:
        unit = table.units[int(table.unit[row])]
        kept[row], again[row] = _budget(unit.model, unit.sizes, float(table.share[row]))
    return kept, again


@lru_cache(maxsize=4096)
def _budget(model: ModelSpec, sizes: Sizes, budget: float) -> tuple[float, float]:
    kept = again = 0.0
    for layer, many in layer_kinds(model):
        share = many / model.num_hidden_layers
        operators = tuple(block(model, sizes, layer))
        choice = choose(model, replace(sizes, kernels="fused", documents=False), layer, budget)
        kept += share * (sum(o.saved for o in operators) if choice.whole else choice.bytes)
        again += share * choice.flops_causal / sum(o.flops_causal for o in operators)
    return kept, again


def block_bytes(table: Table, facts: Facts, c: Constants) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that a block keeps of one micro-batch, and what rebuilding one of them needs for a moment."""
    kept = facts.works["kept"][:, w.BLOCK, :]  # [units, KEPT]
    works, trainers = facts.works, facts.trainers
    dropout, square = trainers["dropout"] > 0, np.isin(trainers["attention"], _IN_MEMORY)
    stream = works["stream"]
    scores = np.where(square, kept[:, 5] * np.where(dropout, SCORES_DROPPED, SCORES), 0.0)
    masks = np.where(dropout, stream, 0.0)
    eager = (
        np.isin(trainers["kernels"], _EAGER) * (trainers["own"] == 0) * kept[:, 4]
    )  # own: in spec/block.py
    u = table.unit
    none = (kept[:, 0] + eager * trainers["eager_kept"])[u]
    whole = none + (scores + masks)[u]
    inside = none + masks[u]
    full = kept[:, 3][u]
    kinds: dict[str, Callable[[], np.ndarray]] = {
        "core": lambda: inside,
        "selective": lambda: np.where(square[u], inside, kept[:, 2][u]),
        "full": lambda: full,
        "share": lambda: (1 - table.share) * whole + table.share * full,
        "budget": lambda: budgets(table)[0],
        "modules": lambda: trainers["modules_kept"][u] * whole,
        "policy": lambda: POLICY * (whole + full),
    }
    chosen = whole
    for name, of in kinds.items():
        if (rows := table.recompute == RECOMPUTE.index(name)).any():
            chosen = np.where(rows, of(), chosen)
    rebuilt = np.where(table.recompute == RECOMPUTE.index("none"), 0.0, whole - chosen)
    return chosen, np.maximum(rebuilt, 0.0)
