"""What a rank keeps of its micro-batches until their backward: how many are under way, and bytes of each.

How many are under way each kind of schedule says: spec/schedules/kinds.py.

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
from scalewright.plan.cost.parts import PARTS, REST
from scalewright.plan.cost.table import RECOMPUTE, Facts, Table
from scalewright.plan.cost.work import BLOCK
from scalewright.plan.frameworks import ATTENTION, KERNELS
from scalewright.plan.request import SCHEDULES
from scalewright.spec.block import block
from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import layer_kinds
from scalewright.spec.primitives import Sizes
from scalewright.spec.recompute_budget import choose
from scalewright.spec.schedules.kinds import KINDS

SCORES = 2.0  # bytes of a score in memory; with dropout its mask and the dropped copy, too
SCORES_DROPPED = 5.0  # Korthikanti et al. 2022 eq. 1: 5 a s^2 b
POLICY = 0.5  # what XLA's own recipes keep of a block
EIGHT_BITS = ("fp8", "mxfp8")
_IN_MEMORY = [ATTENTION.index("unfused"), ATTENTION.index("softmax")]
_EAGER = [KERNELS.index("eager"), KERNELS.index("fused")]


def under_way(table: Table, rank: np.ndarray) -> np.ndarray:
    """Micro-batches whose activations a pipeline rank holds at once, in whole ranks' worth."""
    p, v, m = table.pp, table.virtual_stages, table.accumulation
    held = np.ones(len(table))
    for index in np.unique(table.schedule):
        alive = KINDS[SCHEDULES[index]].alive(p, v, m, rank)
        held = np.where((table.schedule == index) & (p > 1), alive, held)
    return held


def budgets(table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Under a budget: bytes that an average block keeps, and the share of its FLOPs that runs again.

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
    kept = facts.works["kept"][:, BLOCK, :]  # [units, KEPT]
    works, trainers = facts.works, facts.trainers
    dropout, square = trainers["dropout"] > 0, np.isin(trainers["attention"], _IN_MEMORY)
    stream = works["stream"]
    scores = np.where(square, kept[:, 5] * np.where(dropout, SCORES_DROPPED, SCORES), 0.0)
    masks = np.where(dropout, stream, 0.0)
    others = np.isin(trainers["kernels"], _EAGER) & (trainers["own"] == 0)  # ours: in `none` (spec/block.py)
    eager = others * kept[:, 4]
    u = table.unit
    narrow = np.array([unit.precision in EIGHT_BITS for unit in table.units]) * 0.5
    halves = (
        trainers["fp8_inputs"][:, None] * works["inputs"] + trainers["fp8_gates"][:, None] * works["gates"]
    )
    # Megatron Core weights experts' tokens before their last product, which then keeps its input alone
    first = np.where(trainers["kernels"] == KERNELS.index("modern"), kept[:, 9], 0.0)
    none = (kept[:, 0] + eager * trainers["eager_kept"] - narrow * halves.sum(1) - first)[u]
    # what recomputed parts keep in 8 bits is counted with them
    freed = works["parts"] - narrow[:, None] * halves[:, :REST]
    freed[:, PARTS.index("experts")] -= first
    whole = none + (scores + masks)[u]
    inside = none + masks[u]
    full = kept[:, 3][u] / np.where((trainers["partitions"][u] > 0) & (table.sp <= 0), table.tp, 1.0)
    kinds: dict[str, Callable[[], np.ndarray]] = {
        "core": lambda: inside,
        "selective": lambda: np.where(square[u], inside, kept[:, 2][u]),
        "full": lambda: full,
        "share": lambda: (1 - table.share) * whole + table.share * full,
        "budget": lambda: budgets(table)[0],
        "modules": lambda: whole - (trainers["reruns"] * np.maximum(freed, 0.0)).sum(1)[u],
        "policy": lambda: POLICY * (whole + full),
    }
    chosen = whole
    for name, of in kinds.items():
        if (rows := table.recompute == RECOMPUTE.index(name)).any():
            chosen = np.where(rows, of(), chosen)
    rebuilt = np.where(table.recompute == RECOMPUTE.index("none"), 0.0, whole - chosen)
    return chosen, np.maximum(rebuilt, 0.0)
