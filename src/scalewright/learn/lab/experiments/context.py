"""Context parallelism in three kinds on two processes: bytes of each, and what a rank computes under the causal mask.

    ring        keys and values pass from rank to rank       3 (c - 1) / c b s 2 kv       forward, backward, gradients
    all-gather  all keys and values, before the core         as many, at once
    Ulysses     tokens for heads, and back                   2 (c - 1) / c² b s (2 h + 2 kv)

A causal mask gives late tokens more work: rank r of c contiguous parts has 2 r + 1 of c² shares; an early chunk beside
a late one (zigzag) gives every rank the same. `kv`: the width of all keys.
"""

from __future__ import annotations

from typing import Any

from scalewright.learn.communication import context_volume, ring_volume
from scalewright.learn.lab.bench import TRAINER, Bench
from scalewright.learn.lab.outcome import Outcome, Value, bars, table
from scalewright.learn.speedup import imbalance
from scalewright.spec.common.formatting import metric, share
from scalewright.spec.zigzag import SequenceCut

RANKS, TOKENS = 2, 64
FP32 = 4.0
KINDS = ("ring", "allgather", "ulysses")
WIDE = 8  # ranks of the picture of shares


def run(bench: Bench) -> Outcome:
    """Bytes of each kind by a real step; shares of the mask by counting queries and keys."""
    kinds = KINDS[:1] if bench.short else KINDS
    sent = bench.each(kinds, lambda kind: _measure(bench, kind))
    model = TRAINER["model"]
    numbers = {
        kind: model["num_hidden_layers"] * context_volume(1, TOKENS, model["hidden_size"], RANKS, kind)
        for kind in kinds
    }
    formulas = {
        "ring": "3 (c - 1) / c b s 2 kv L", "allgather": "3 (c - 1) / c b s 2 kv L",
        "ulysses": "2 (c - 1) / c² b s 4 h L",
    }  # fmt: skip
    shares = {name: mask_shares(WIDE, 1024, name == "zigzag") for name in ("contiguous", "zigzag")}
    values = [
        Value(f"{kind}: sent by a rank in a micro-batch", sent[kind], numbers[kind] * FP32, "B", formulas[kind], 0.0,
              "counted")
        for kind in kinds
    ]  # fmt: skip
    values += [
        Value(f"contiguous: the last of {WIDE} ranks' share of the mask", shares["contiguous"][-1],
              (2 * WIDE - 1) / WIDE**2, "share", "(2 c - 1) / c²", 0.01, "the diagonal counts half a chunk more"),
        Value(f"zigzag: the last of {WIDE} ranks' share", shares["zigzag"][-1], 1 / WIDE, "share", "1 / c", 0.01,
              "the same"),
        Value("contiguous: time waited for the last rank", imbalance(shares["contiguous"]), 1 - WIDE / (2 * WIDE - 1),
              "share", "1 - c / (2 c - 1)", 0.01, "the same"),
    ]  # fmt: skip
    rows = [[f"rank {rank}", share(shares["contiguous"][rank]), share(shares["zigzag"][rank])] for rank in range(WIDE)]
    return Outcome(
        values,
        [bars("sent by a rank in a micro-batch", [(kind, sent[kind], metric(sent[kind], "B")) for kind in kinds]),
         table("shares of the causal mask", ["", "contiguous", "zigzag"], rows)],
    )  # fmt: skip


def mask_shares(ranks: int, tokens: int, zigzag: bool) -> list[float]:
    """Of each rank the share of all (query, key) pairs under the mask: of its queries, all keys before them."""
    whole = tokens * (tokens + 1) / 2
    parts = [SequenceCut("ring" if zigzag else "ulysses", ranks, rank).tokens(tokens) for rank in range(ranks)]
    return [sum(int(position) + 1 for position in part) / whole for part in parts]


def _measure(bench: Bench, kind: str) -> float:
    layout: dict[str, Any] = {
        "devices": RANKS,
        "cp": RANKS,
        "cp_kind": kind,
        "micro_batch": 1,
        "global_batch": 1,
        "zero_stage": 0,
    }
    trained = bench.run(kind, {"layout": layout})
    counted = trained.sent["cp"]
    # a ring's messages are counted one by one, the others' tensors whole
    return counted if kind == "ring" else ring_volume("all_gather", counted, RANKS)
