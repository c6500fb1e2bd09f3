"""DiLoCo: islands that train by themselves and meet every H steps, against replicas that meet in each.

    data parallel   all gradients in every step            2 (n - 1) / n Psi numbers
    DiLoCo          all changes every H steps              2 (n - 1) / n Psi / H         a step, on average

Islands drift apart between two meetings: the loss after the same tokens is a little higher, or not, which is the price
(Douillard et al. 2023, arXiv 2311.08105).
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from scalewright.learn.communication import outer_volume, ring_volume
from scalewright.learn.lab.bench import Bench
from scalewright.learn.lab.outcome import Curve, Outcome, Value, curves, table
from scalewright.spec.common.formatting import decimal, metric

RANKS = 2
FP32 = 4.0
LAST = 5  # steps whose mean is a run's loss at its end
DRIFT = "single seeds, and 5 steps' mean: runs of 160 steps this small differ by some hundredths"


def run(bench: Bench) -> Outcome:
    """One data-parallel run and islands with growing H: bytes a step, and losses."""
    steps, rounds = (16, (4,)) if bench.short else (160, (4, 16, 40))
    plain = bench.part("data parallel", lambda: _measure(bench, steps, None))
    islands = bench.each(rounds, lambda every: _measure(bench, steps, every))
    psi = plain["held"] / FP32
    values = [
        Value("data parallel: sent in a step", plain["sent"], ring_volume("all_reduce", psi, RANKS) * FP32, "B",
              "2 (n - 1) / n Psi", 0.001, "a step's report"),
        *(Value(f"H = {every}: sent in a step", row["sent"], outer_volume(psi, RANKS, every) * FP32, "B",
                "2 (n - 1) / n Psi / H", 0.001, "counted over a round") for every, row in islands.items()),
    ]  # fmt: skip
    if not bench.short:
        values += [
            Value(f"H = {every}: loss at the end, over data parallel's", row["loss"], plain["loss"], "nats",
                  "as good", 0.05, DRIFT, "at most")
            for every, row in islands.items()
        ]  # fmt: skip
    every_run = {"data parallel": plain, **{f"H = {every}": row for every, row in islands.items()}}
    lines = [Curve(name, [(at + 1, loss) for at, loss in enumerate(row["losses"])]) for name, row in every_run.items()]
    rows = [[name, metric(row["sent"], "B"), decimal(row["loss"], 3)] for name, row in every_run.items()]
    return Outcome(
        values,
        [curves("loss by step", "step", "nats a token", lines),
         table("a meeting less often", ["run", "sent in a step", "loss at the end"], rows)],
    )  # fmt: skip


def _measure(bench: Bench, steps: int, every: int | None) -> dict[str, Any]:
    layout = {"devices": RANKS, "micro_batch": 2, "global_batch": 2 * RANKS, "zero_stage": 0}
    changes: dict[str, Any] = {"layout": layout, "train": {"steps": steps}, "optimizer": {"lr": 2e-3}}
    if every is not None:
        changes["layout"] = {**layout, "dp_replicate": RANKS}
        changes["diloco"] = {"inner_steps": every}
    trained = bench.run(f"h-{every}", changes)
    losses = [row["loss"] for row in trained.rows]
    return {
        "sent": ring_volume("all_reduce", trained.sent["dp"], RANKS), "held": trained.held["parameters"],
        "loss": fmean(losses[-LAST:]), "losses": losses,
    }  # fmt: skip
