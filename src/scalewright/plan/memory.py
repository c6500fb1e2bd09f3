"""Bytes on the fullest rank, by kind: what is held all step, and what is alive at its worst moment.

    held      weights + gradients + optimizer states, each whole or a share, as the ZeRO stage says
    alive     activations of the micro-batches under way (first pipeline rank) or the logits (last one),
              and while a block is rebuilt or a shard gathered, that block too
    besides   buckets and buffers of collectives, workspace of libraries, what the allocator can't reuse

A pipeline's first rank holds min(m, p) micro-batches under 1F1B, all m under GPipe, and (1 + (p-1)/(p v)) as
much with v chunks (Narayanan et al. 2021, §2.2.2); half-length V schedules hold p everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.plan import work as w
from scalewright.plan.constants import Constants
from scalewright.plan.frameworks import KERNELS
from scalewright.plan.request import OFFLOADS, SCHEDULES
from scalewright.plan.table import RECOMPUTE, Facts, Table

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "other")
GIB = float(2**30)


@dataclass
class Memory:
    """Bytes of the worst rank by kind, of three pipeline ranks in sum, and what a device offers."""

    parts: dict[str, np.ndarray]
    peak: np.ndarray
    stages: np.ndarray  # [rows, 3]: fullest inner, first, last
    usable: np.ndarray

    @property
    def fits(self) -> np.ndarray:
        """Whether the worst rank stays below what a device really allocates."""
        return self.peak <= self.usable


def memory(table: Table, facts: Facts, c: Constants) -> Memory:
    """The memory of every row."""
    found = [_stage(table, facts, c, which) for which in range(3)]
    totals = np.stack([sum(parts.values()) for parts in found], 1)
    totals = np.where((table.pp == 1)[:, None], totals[:, 1:2], totals)
    inner = np.where(table.pp > 2, totals[:, 0], 0.0)
    totals = np.stack([inner, totals[:, 1], totals[:, 2]], 1)
    worst = totals.argmax(1)
    parts = {
        kind: np.choose(worst, [one[kind] for one in found]) for kind in KINDS
    }  # fmt: skip
    usable = table.gather(facts.chips["capacity"] * facts.trainers["usable"])
    return Memory(parts, totals.max(1), totals, usable)


def under_way(table: Table, stage: int) -> np.ndarray:
    """Micro-batches whose activations a pipeline rank holds at once, in whole ranks' worth."""
    p, v, m = table.pp, table.chunks, table.micros
    names = np.array(SCHEDULES)[table.schedule]
    depth = p if stage == 1 else np.ones_like(p) if stage == 2 else np.maximum(p - 1, 1)
    loop = np.minimum(m, depth)
    # interleaved: 2 (p - r - 1) + (v - 1) p + 1 chunks at rank r
    rank = np.zeros_like(p) if stage == 1 else p - 1 if stage == 2 else np.ones_like(p)
    chunked = np.minimum(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1) / v
    held = np.where(v > 1, chunked, loop)
    held = np.where(names == "gpipe", m, held)
    folded = np.isin(names, ["zbv", "dualpipev", "dualpipe", "zb-h1"])
    held = np.where(folded, np.minimum(m, p + (names == "dualpipe")), held)
    return np.where(p > 1, held, 1.0)


def versions(table: Table, stage: int) -> np.ndarray:
    """Copies of its weights that a rank keeps: one a forward under way (PipeDream), or two (DualPipe)."""
    stash = np.where(stage == 2, 1.0, np.maximum(table.pp - (stage == 0), 1.0))
    one = np.where(table.schedule == SCHEDULES.index("pipedream"), stash, 1.0)
    return np.where((table.schedule == SCHEDULES.index("dualpipe")) & (table.pp > 1), 2.0, one)


def _stage(table: Table, facts: Facts, c: Constants, stage: int) -> dict[str, np.ndarray]:
    """Bytes by kind on the fullest inner (0), the first (1) or the last (2) pipeline rank."""
    u = table.unit
    alone = table.pp == 1
    first = alone | (stage == 1)
    last = alone | (stage == 2)
    blocks = table.stages[:, 0 if stage == 0 else stage]
    trainer = {k: v[u] for k, v in facts.trainers.items()}
    works = facts.works
    ends = first[:, None] * np.eye(w.REGIONS)[w.BEFORE] + last[:, None] * (
        np.eye(w.REGIONS)[w.AFTER] + np.eye(w.REGIONS)[w.EXTRA]
    )
    count = ends + blocks[:, None] * np.eye(w.REGIONS)[w.BLOCK]
    dense = (works["dense"][u] * count).sum(1) + np.where(last & ~alone, works["tied"][u], 0.0)
    expert = (works["expert"][u] * count).sum(1)
    held = _held(table, trainer, dense, expert)
    kept = works["kept"][u]  # [rows, REGIONS, KEPT]
    held["parameters"] = held["parameters"] * versions(table, stage)
    activations, rebuilt = _activations(table, facts, trainer, kept, blocks, stage, c)
    edge = first * kept[:, w.BEFORE, 0] * under_way(table, stage)
    logits = last * (kept[:, w.AFTER, 0] + kept[:, w.EXTRA, 0]) * trainer["logits"] / 4.0 * c["memory.logits"]
    block_weights = works["dense"][u][:, w.BLOCK] + works["expert"][u][:, w.BLOCK]
    gathered = np.where(table.zero >= 3, 2 * block_weights * (2.0 + trainer["grads"]), 0.0)
    shared = np.where((table.dp > 1) & (table.zero < 3), (dense + expert) * trainer["shared"], 0.0)
    buffers = gathered + shared + trainer["buffers_gib"] * GIB * (table.devices > 1)
    slack = c["memory.slack"] * (activations + edge)
    away = np.isin(table.offload, [OFFLOADS.index("activations"), OFFLOADS.index("all")])
    activations = np.where(away, activations * 0.1, activations)
    return {
        **held, "activations": activations + edge + logits, "buffers": buffers, "other": rebuilt + slack,
    }  # fmt: skip


def _held(
    table: Table, trainer: dict[str, np.ndarray], dense: np.ndarray, expert: np.ndarray
) -> dict[str, np.ndarray]:
    """Weights, gradients, optimizer states: whole, or a share of the data-parallel group."""
    zero, group = table.zero, table.dp * table.cp
    shard = np.where(zero >= 3, group / table.replicate, group)
    experts = np.maximum(shard * table.tp / (table.ep * table.etp), 1.0)

    def share(stage: int) -> np.ndarray:
        return np.asarray(np.where(zero >= stage, dense / shard + expert / experts, dense + expert))

    optimizer_away = np.isin(table.offload, [OFFLOADS.index("optimizer"), OFFLOADS.index("all")])
    weights_away = np.isin(table.offload, [OFFLOADS.index("parameters"), OFFLOADS.index("all")])
    weights, grads, states = trainer["held_weights"], trainer["held_grads"], trainer["held_optimizer"]
    return {
        "parameters": np.where(weights_away, 0.0, share(3) * weights),
        "gradients": share(2) * grads,
        "optimizer": np.where(optimizer_away, 0.0, share(1) * states),
    }


def _activations(
    table: Table,
    facts: Facts,
    trainer: dict[str, np.ndarray],
    kept: np.ndarray,
    blocks: np.ndarray,
    stage: int,
    c: Constants,
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that blocks keep for the backward, and what rebuilding one of them needs for a moment."""
    eager = np.isin(trainer["kernels"], [KERNELS.index("eager"), KERNELS.index("fused")])
    copies = np.where(table.pp > 1, c["memory.copies_pipeline"], c["memory.copies"])
    none = kept[:, w.BLOCK, 0] + eager * kept[:, w.BLOCK, 4] * copies
    square = trainer["attention"] < 2
    pairs = kept[:, w.BLOCK, 5]
    scores = np.where(square, pairs * np.where(trainer["dropout"] > 0, 5.0, 2.0), 0.0)
    masks = np.where(trainer["dropout"] > 0, facts.works["stream"][table.unit], 0.0)
    gathered = np.where(
        (trainer["gathered"] > 0) & (table.sp > 0), 2.0 * facts.works["stream"][table.unit], 0.0
    )
    whole = none + scores + masks + gathered
    by_kind = np.stack([
        whole, none + masks, np.where(square, none + masks, kept[:, w.BLOCK, 2]), kept[:, w.BLOCK, 3],
        (1 - table.share) * whole + table.share * kept[:, w.BLOCK, 3], 0.7 * whole,
        0.5 * (whole + kept[:, w.BLOCK, 3]), whole,
    ])  # fmt: skip
    assert len(by_kind) == len(RECOMPUTE)
    chosen = np.choose(table.recompute, by_kind)
    rebuilt = np.where(table.recompute == 0, 0.0, whole - chosen)
    return chosen * blocks * under_way(table, stage), np.maximum(rebuilt, 0.0)
