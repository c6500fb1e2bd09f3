"""Data against tensor against pipeline parallelism on two processes: what each holds, what it sends, how long it takes.

    data       all weights on both       gradients once a step               4 Psi bytes
    tensor     half of every matrix      activations, all the time           (10 L + 4) b s h numbers a micro-batch
    pipeline   half of the layers        activations at the cut              b s h numbers a micro-batch and way

A rank sends (n - 1) / n of what a collective gathers or scatters, twice that of a sum. Tensor parallelism here is with
sequence parallelism: two gathers and two scatters a layer and way, two gathers more to keep less, and the ends.
"""

from __future__ import annotations

from typing import Any

from scalewright.learn.communication import pipeline_volume, ring_volume, tensor_volume
from scalewright.learn.lab.bench import TRAINER, Bench
from scalewright.learn.lab.outcome import Outcome, Value, bars, table
from scalewright.spec.common.formatting import metric, short_time

RANKS, MICROS, TOKENS = 2, 4, 64
FP32 = 4.0
LAYOUTS: dict[str, dict[str, Any]] = {"data": {}, "tensor": {"tp": RANKS}, "pipeline": {"pp": RANKS}}
AXES = {"data": "dp", "tensor": "tp", "pipeline": "pp"}


def run(bench: Bench) -> Outcome:
    """The same model and batch, cut in three ways."""
    steps = 6 if bench.short else 12
    seen = bench.each(LAYOUTS, lambda name: _measure(bench, name, steps), timed=True)
    model = TRAINER["model"]
    hidden, layers = model["hidden_size"], model["num_hidden_layers"]
    weights, norms = seen["data"]["held"] / FP32, (2 * layers + 1) * hidden
    ends = 4 * TOKENS * hidden * (RANKS - 1) / RANKS  # out of the embedding, into the head, and back
    numbers = {
        "data": ring_volume("all_reduce", weights, RANKS),
        "tensor": MICROS * (tensor_volume(1, TOKENS, hidden, RANKS, layers, gathered_again=True) + ends),
        "pipeline": pipeline_volume(1, TOKENS, hidden, MICROS),
    }
    formulas = {"data": "2 (n - 1) / n Psi", "tensor": "m (10 L + 4) b s h (t - 1) / t", "pipeline": "m b s h"}
    reasons = {
        "data": "a step's report",
        "tensor": "the loss's maxima and sums, norms' gradients",
        "pipeline": "counted",
    }
    values = [
        Value(f"{name}: sent by a rank in a step", seen[name]["sent"], numbers[name] * FP32, "B", formulas[name], 0.01,
              reasons[name])
        for name in LAYOUTS
    ]  # fmt: skip
    halves = (weights - norms) / RANKS + norms
    values += [
        Value("tensor: weights held by a rank", seen["tensor"]["held"], halves * FP32, "B", "matrices / t + norms",
              0.001,
              "counted"),
        Value("pipeline: weights held by a rank", seen["pipeline"]["held"], weights * FP32 / RANKS, "B", "Psi / p",
              0.001,
              "the last norm is on one side"),
    ]  # fmt: skip
    rows = [
        [name, metric(row["held"], "B"), metric(row["sent"], "B"), short_time(row["seconds"])] for name,
        row in seen.items()
    ]  # fmt: skip
    return Outcome(
        values,
        [bars("sent by a rank in a step", [(n, row["sent"], metric(row["sent"], "B")) for n, row in seen.items()]),
         bars("seconds of a step here", [(n, row["seconds"], short_time(row["seconds"])) for n, row in seen.items()]),
         table("two ranks", ["cut by", "weights of a rank", "sent in a step", "seconds"], rows)],
        ["on one machine messages cost little more than copies: the seconds here say nothing of networks"],
    )  # fmt: skip


def _measure(bench: Bench, name: str, steps: int) -> dict[str, float]:
    batch = {
        "devices": RANKS,
        "micro_batch": 1,
        "zero_stage": 0,
        "global_batch": MICROS * (RANKS if name == "data" else 1),
    }
    trained = bench.run(name, {"layout": {**batch, **LAYOUTS[name]}, "train": {"steps": steps}})
    sent = trained.sent[AXES[name]]
    # counted are tensors of collectives, of which a rank's ring sends a share; a pipeline's messages go whole
    kind = {"data": "all_reduce", "tensor": "all_gather", "pipeline": "send"}[name]
    return {
        "held": trained.held["parameters"], "sent": ring_volume(kind, sent, RANKS), "seconds": trained.seconds(),
    }  # fmt: skip
