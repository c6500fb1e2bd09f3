"""What all parts of a step read: numbers of units as columns, one a row, each gathered when first asked for.

    facts (a number a unit) --unit index--> Columns.chip.domain, .trainer.year, .work.stream

and the pipeline ranks that stand for all: the fullest between the ends, the first, the last (`PipelineRank`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from scalewright.plan.constants import Constants
from scalewright.plan.cost.facts import Facts
from scalewright.plan.cost.kernels import Prices
from scalewright.plan.cost.padded import Padded, padded
from scalewright.plan.cost.table import RECOMPUTE, Table
from scalewright.plan.cost.work import BLOCK, EXTRA, FORWARD, INPUT, PARTS, REGIONS, WEIGHT, RegionKept
from scalewright.plan.frameworks import KERNELS
from scalewright.spec.block import block
from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import layer_kinds
from scalewright.spec.primitives import Sizes
from scalewright.spec.recompute_budget import choose

KeptKind = Literal["none", "products", "widest", "weight"]  # of RegionKept


@dataclass(frozen=True)
class PipelineRank:
    """A pipeline rank of every row: its number, its blocks, and which ends of the model it computes.

    `first`, `last`: the share of the micro-batches whose embedding, whose head it computes; 1 or 0, and in
    dualpipe, whose two ways have a rank's end each, 1/2.
    """

    rank: np.ndarray
    blocks: np.ndarray
    first: np.ndarray
    last: np.ndarray

    def with_predictions(self, modules: np.ndarray) -> PipelineRank:
        """The same, where the blocks of so many prediction modules count among the last rank's."""
        return replace(self, blocks=self.blocks + modules * self.last)


def places(table: Table) -> tuple[PipelineRank, PipelineRank, PipelineRank]:
    """The fullest rank between the ends, the first and the last; with one rank, that one thrice.

    With two ranks there is none between: the fullest is one of them without its end, which is never worse.
    """
    p, blocks = table.pp, table.stages
    single, folded, ways = p == 1, table.schedules("folded"), table.schedules("both_ways")
    share, alone = np.where(ways & ~single, 0.5, 1.0), single.astype(float)
    return (
        PipelineRank(blocks[:, 4], blocks[:, 0], alone, alone),
        PipelineRank(np.zeros_like(p), blocks[:, 1], share, (single | folded) * share),
        PipelineRank(p - 1, blocks[:, 2], (single | ways) * share, (single | ways | ~folded) * share),
    )


class Columns:
    """A table's rows with the numbers of their devices, trainers and operator lists beside them."""

    def __init__(self, table: Table, facts: Facts, c: Constants) -> None:
        self.table, self.facts, self.c = table, facts, c
        self.chip = facts.chips.take(table.unit)
        self.trainer = facts.trainers.take(table.unit)
        self.work = facts.works.take(table.unit)
        self._kept: dict[tuple[int, KeptKind], np.ndarray] = {}

    def region(self, values: np.ndarray, region: int) -> np.ndarray:
        """A unit's number of one region [units, REGIONS] as a column."""
        return np.asarray(values[:, region][self.table.unit])

    def kept(self, region: int, what: KeptKind = "none") -> np.ndarray:
        """Bytes that a region keeps of a micro-batch."""
        if (region, what) not in self._kept:
            self._kept[region, what] = self.facts.works.kept[:, region, RegionKept._fields.index(what)][self.table.unit]
        return self._kept[region, what]

    @cached_property
    def islands(self) -> np.ndarray:
        """Rows whose replicas are islands (spec/diloco.py), which sum no gradients."""
        return np.asarray((self.trainer.inner_steps > 0) & (self.table.dp_replicate > 1))

    @cached_property
    def summing(self) -> np.ndarray:
        """Ranks that sum a dense gradient: of one island, where there are islands."""
        t = self.table
        return np.asarray(t.dp * t.cp / np.where(self.islands, t.dp_replicate, 1.0))

    @cached_property
    def fullest(self) -> np.ndarray:
        """Blocks of the fullest rank, wherever it is."""
        return np.asarray(self.table.stages[:, :3].max(1))

    @cached_property
    def visits(self) -> np.ndarray:
        """How often a micro-batch comes to a rank: once a chunk; in dualpipe to one of its two stages."""
        return np.where(self.table.schedules("both_ways"), 1.0, self.table.virtual_stages)

    @cached_property
    def memory_rate(self) -> np.ndarray:
        """Bytes/s that kernels reach in a device's memory."""
        return np.asarray(self.chip.memory_rate * self.c["memory.rate"])

    @cached_property
    def own(self) -> np.ndarray:
        """Rows of this package's own trainer."""
        return np.asarray(self.trainer.own > 0)

    @cached_property
    def padded(self) -> Padded:
        """Sums over this package's own tensors; asked for only where a table has rows of its trainer."""
        return padded(self.table, self.facts.sums)

    @cached_property
    def budget(self) -> tuple[np.ndarray, np.ndarray]:
        """Bytes that an average block keeps under a budget, and the share of its FLOPs that runs again; else 0."""
        t = self.table
        kept, again = np.zeros(len(t)), np.zeros(len(t))
        for row in np.flatnonzero(t.recompute == RECOMPUTE.index("budget")):
            unit = t.units[int(t.unit[row])]
            kept[row], again[row] = _budget(unit.model, unit.sizes, float(t.share[row]))
        return kept, again

    @cached_property
    def dense(self) -> np.ndarray:
        """Parameters of the fullest rank that all data-parallel ranks share."""
        before, block, after, extra = (self.region(self.facts.works.dense, region) for region in range(REGIONS))
        ends = np.where(self.table.pp > 1, np.maximum(before, after + self.work.tied), before + after)
        return np.asarray(self.fullest * block + ends + extra)

    @cached_property
    def expert(self) -> np.ndarray:
        """Its parameters of experts, which fewer ranks share."""
        of = self.facts.works.expert
        return np.asarray(self.fullest * self.region(of, BLOCK) + self.region(of, EXTRA))

    @cached_property
    def shard(self) -> np.ndarray:
        """Ranks that FSDP shards over: those that sum a gradient, or one replica's part of them."""
        return np.asarray(self.table.dp * self.table.cp / self.table.dp_replicate)

    @cached_property
    def rerun(self) -> np.ndarray:
        """The share of the blocks whose whole forward runs again in the backward."""
        kind, c = self.table.recompute, self.c
        shares = np.where(kind == RECOMPUTE.index("share"), self.table.share, kind == RECOMPUTE.index("full"))
        if (policy := kind == RECOMPUTE.index("policy")).any():
            kept = np.where(self.trainer.kernels == KERNELS.index("xla"), c["recompute.policy"], c["recompute.ops"])
            shares = np.where(policy, kept, shares)
        if (budget := kind == RECOMPUTE.index("budget")).any():
            shares = np.where(budget, self.budget[1], shares)
        return np.asarray(shares)

    @cached_property
    def rerun_parts(self) -> np.ndarray:
        """Parts of every block that run again [rows, PARTS], 1 or 0: attention's core, or some modules."""
        modules = (self.table.recompute == RECOMPUTE.index("modules"))[:, None]
        return np.asarray(np.where(modules, self.trainer.reruns, _CORE[self.table.recompute]))


class PricedColumns(Columns):
    """The same with the seconds of their units' kernels."""

    def __init__(self, table: Table, facts: Facts, c: Constants, prices: Prices) -> None:
        super().__init__(table, facts, c)
        self.prices = prices

    @cached_property
    def forward(self) -> np.ndarray:
        """Seconds of a forward's kernels [units, REGIONS]."""
        return np.asarray(self.prices.seconds[:, :, FORWARD])

    @cached_property
    def weight(self) -> np.ndarray:
        """Seconds of the backward's weight part [units, REGIONS]."""
        return np.asarray(self.prices.seconds[:, :, WEIGHT])

    @cached_property
    def backward(self) -> np.ndarray:
        """Seconds of a whole backward [units, REGIONS]."""
        return np.asarray(self.prices.seconds[:, :, INPUT] + self.weight)


_CORE = np.array([[float(name in ("core", "selective") and part == "core") for part in PARTS] for name in RECOMPUTE])


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
