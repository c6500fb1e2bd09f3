"""ZeRO on four processes: what each rank holds of weights, gradients and optimizer states, and what a step sends.

    held between steps     ZeRO-0: 16 Psi      every stage from 1 on, in this trainer: 16 Psi / n
    sent in a step         0: Psi, summed      1, 2: 2 Psi (reduce-scatter, all-gather)
                           3: 3 Psi less what is gathered once: embedding, last norm, head
                           HSDP: 3's over its shards, and a rank's part summed between replicas

During a step stages 1 and 2 hold all weights (2 its own part of the gradients), stage 3 a block's. The counters take a
tensor's bytes once for each collective, where papers count a ring's two passes of a sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scalewright.learn.communication import replica_volume, zero_volume
from scalewright.learn.lab.bench import TRAINER, Bench, Trained
from scalewright.learn.lab.outcome import Outcome, Value, bars, table
from scalewright.learn.memory import model_states
from scalewright.spec.common.formatting import metric

RANKS = 4
FP32 = 4.0  # bytes of a number: a weight, its gradient, each of AdamW's two moments
LAYOUTS: dict[str, dict[str, Any]] = {
    "ZeRO-0": {"zero_stage": 0}, "ZeRO-1": {"zero_stage": 1}, "ZeRO-2": {"zero_stage": 2},
    "ZeRO-3": {"zero_stage": 3}, "HSDP 2 x 2": {"zero_stage": 3, "dp_replicate": 2},
}  # fmt: skip
REPORT = "a step's report takes some tens of bytes more"


def run(bench: Bench) -> Outcome:
    """Five layouts of the same four processes."""
    chosen = {name: LAYOUTS[name] for name in (("ZeRO-0", "ZeRO-3") if bench.short else LAYOUTS)}
    seen = bench.each(chosen, lambda name: _measure(bench, name))
    psi = seen["ZeRO-0"]["held"]["parameters"] / FP32
    values = [value for name in chosen for value in _values(name, psi, seen[name])]
    kinds = ("parameters", "gradients", "optimizer")
    rows = [[name, *(metric(held["held"][kind], "B") for kind in kinds), metric(held["sent"], "B")]
            for name, held in seen.items()]  # fmt: skip
    return Outcome(
        values,
        [
            bars("held by a rank", [(n, sum(s["held"].values()), metric(sum(s["held"].values()), "B"))
                                    for n, s in seen.items()]),
            bars("sent in a step", [(n, s["sent"], metric(s["sent"], "B")) for n, s in seen.items()]),
            table("by kind", ["layout", "weights", "gradients", "optimizer", "sent in a step"], rows),
        ],
    )  # fmt: skip


def _measure(bench: Bench, name: str) -> dict[str, Any]:
    layout = {"devices": RANKS, "micro_batch": 1, "global_batch": RANKS, **LAYOUTS[name]}
    trained: Trained = bench.run(name.replace(" ", "-"), {"layout": layout})
    kinds = ("parameters", "gradients", "optimizer")
    return {"held": {kind: trained.held[kind] for kind in kinds}, "sent": trained.sent.get("dp", 0.0)}


def _values(name: str, psi: float, seen: Mapping[str, Any]) -> Iterator[Value]:
    layout = LAYOUTS[name]
    stage, replicas = layout["zero_stage"], layout.get("dp_replicate", 1)
    shards = RANKS // replicas
    states = model_states(psi, FP32, FP32, 2 * FP32, 3 if stage else 0, shards)
    formula = "16 Psi / n" if stage else "16 Psi"
    yield Value(f"{name}: held by a rank", sum(seen["held"].values()), states.total, "B", formula, 0.001, REPORT)
    numbers, formula = zero_volume(psi, stage), f"{3 if stage == 3 else 2} passes of 4 Psi"
    if stage == 0:
        numbers, formula = psi, "4 Psi, a sum counted once"
    if stage == 3:
        numbers, formula = numbers - gathered_once(), formula + ", less what is gathered once"
    if replicas > 1:
        numbers, formula = numbers + replica_volume(psi, shards) / 2, formula + ", and a part's sum"
    yield Value(f"{name}: sent in a step", seen["sent"], numbers * FP32, "B", formula, 0.001, REPORT)


def gathered_once() -> int:
    """Numbers outside the blocks, which stay gathered from forward to backward: embedding, norm, head."""
    model = TRAINER["model"]
    return int(2 * model["vocab_size"] * model["hidden_size"] + model["hidden_size"])
