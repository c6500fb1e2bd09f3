"""A mixture of experts on two processes: rows that travel, experts that are full, tokens that go past them.

    dispatch and combine, forward and backward      4 k b s h numbers of a rank and layer
    capacity C = ceil(factor k T / E)               rows beyond it are dropped (GShard, Switch)

A router that has learned nothing sends tokens nearly at random; random rows already overfill some experts: with n_e
of a sequence's rows at expert e, the share sum(max(0, n_e - C)) / (k T) is dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from scalewright.learn.communication import expert_volume
from scalewright.learn.lab.bench import TRAINER, Bench
from scalewright.learn.lab.outcome import Curve, Outcome, Value, curves, table
from scalewright.spec.common.formatting import decimal, share
from scalewright.spec.expert_volumes import capacity
from scalewright.spec.model import MoE

RANKS, TOKENS = 2, 64
FP32 = 4.0
MIXTURE = {"num_experts": 8, "top_k": 2, "moe_intermediate_size": 32}
FACTORS = (1.0, 1.25, 1.5, 2.0)


def run(bench: Bench) -> Outcome:
    """Bytes of a step without a capacity; shares dropped at several, beside random routing's."""
    factors = FACTORS[:1] if bench.short else FACTORS
    free = bench.part("all tokens taken", lambda: _measure(bench, None))
    full = bench.each(factors, lambda factor: _measure(bench, factor))
    model = TRAINER["model"]
    numbers = model["num_hidden_layers"] * expert_volume(1, TOKENS, model["hidden_size"], MIXTURE["top_k"])
    chance = {factor: random_drops(factor, bench.seed) for factor in FACTORS}
    values = [
        Value("sent by the busiest rank for one sequence", free["sent"], numbers * FP32, "B", "4 k b s h L", 0.25,
              "rows go where the router sends them, and the busiest rank's counts are sent first"),
        *(Value(f"capacity {factor}: rows dropped", row["dropped"], chance[factor], "share",
                "sum(max(0, n_e - C)) / (k T), random", 0.1, "no router is better balanced than chance; 48 sequences",
                "at least") for factor, row in full.items()),
        Value("without a capacity: rows dropped", free["dropped"], 0.0, "share", "none", 0.0, "counted"),
    ]  # fmt: skip
    lines = [
        Curve("this router", [(factor, row["dropped"]) for factor, row in full.items()]),
        Curve("at random", list(chance.items()), expected=True),
    ]
    rows = [[f"{factor}", f"{capacity(factor, MoE.parse(MIXTURE), TOKENS)}", share(row["dropped"]),
             share(chance[factor]),
             decimal(row["load"], 2)] for factor, row in full.items()]  # fmt: skip
    heads = ["capacity factor", "rows an expert takes", "dropped", "at random", "busiest expert over the mean"]
    return Outcome(
        values,
        [curves("rows dropped by capacity", "capacity factor", "share of all rows", lines, ("", "share")),
         table(f"{MIXTURE['num_experts']} experts, {MIXTURE['top_k']} a token, sequences of {TOKENS}", heads, rows)],
    )  # fmt: skip


def rows_taken(factor: float, tokens: int, top_k: int, experts: int) -> int:
    """Rows of a sequence that an expert takes: ceil(factor k T / E)."""
    return capacity(factor, MoE.parse({**MIXTURE, "num_experts": experts, "top_k": top_k}), tokens)


def random_drops(factor: float, seed: int, draws: int = 2000) -> float:
    """The mean share of rows that a capacity drops when each token draws its experts at random."""
    moe, generator = MoE.parse(MIXTURE), np.random.default_rng(seed)
    most, rows = capacity(factor, moe, TOKENS), TOKENS * moe.top_k
    order = generator.random((draws, TOKENS, moe.num_experts)).argpartition(moe.top_k, axis=2)[:, :, : moe.top_k]
    counts = (order[..., None] == np.arange(moe.num_experts)).sum(axis=(1, 2))
    return float(np.maximum(counts - most, 0).sum(axis=1).mean() / rows)


def _measure(bench: Bench, factor: float | None) -> dict[str, Any]:
    layout = {"devices": RANKS, "ep": RANKS, "micro_batch": 1, "global_batch": RANKS, "zero_stage": 0}
    trained = bench.run(
        f"capacity-{factor}", {"layout": layout, "model": {"moe": MIXTURE},
                               "train": {"steps": 6, "balance": {"capacity_factor": factor}}},
    )  # fmt: skip
    rows = trained.rows
    return {
        "sent": trained.sent["ep"], "dropped": float(np.mean([row["expert_drop_share"] for row in rows])),
        "load": float(np.mean([row["expert_load_max"] for row in rows])),
    }  # fmt: skip
