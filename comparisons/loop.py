"""The whole loop on this machine: plan, run, compare, calibrate, and plan better.

    python comparisons/loop.py                 16 layouts of 4 CPU processes, out of all that `train` takes
    python comparisons/loop.py --most 1000     every one of them: hours
    python comparisons/loop.py --quick         a tiny model on 2 processes, four layouts, nothing kept

    probe ──► profile ──► predict every layout ──► train some ──► error, tau, regret
                 ▲                                    │
                 └──────── calibrate on half ◄────────┘ ──► the same of the other half, before and after

More processes than cores share them, in the probe as in the runs. Layouts are drawn evenly over predicted
time and run in an order of their own, so that a machine that gets busier doesn't look like a slow layout.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # one thread a process, here and below; read by import torch

import argparse
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from harness.facts import facts, load_average
from harness.result import Result, facts_text, table

from scalewright.api import train
from scalewright.bench.correct import calibrate, measured_step
from scalewright.machine.local import timed_cluster
from scalewright.machine.timings import cpu_timings
from scalewright.plan.fitting.score import kendall_tau, regret
from scalewright.plan.predict import predict
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.model import ModelSpec

MODEL: dict[str, Any] = {
    "vocab_size": 2048, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip
TINY = {**MODEL, "vocab_size": 67, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 4}
SEQ_LEN, BATCH = 128, 8
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zbv")
PROBE_S = 480.0  # that a probe may take on a busy machine


@dataclass(frozen=True)
class Case:
    """A layout and its predicted step, in seconds."""

    name: str
    layout: Layout
    predicted_s: float


def layouts(devices: int, model: ModelSpec) -> Iterator[Layout]:
    """Every layout of these axes that `train` takes."""
    sizes = [size for size in (1, 2, 4, 8) if size <= devices]
    for tp, pp, zero, micro_batch, recompute in product(sizes, sizes, range(4), (1, 2, 4, 8), ("none", "full")):
        rest = devices // (tp * pp)
        if tp * pp * rest != devices or (rest == 1 and zero):
            continue
        keys = {"devices": devices, "global_batch": BATCH, "precision": "fp32", "tp": tp, "pp": pp}
        keys |= {"zero_stage": zero, "micro_batch": micro_batch, "recompute": recompute}
        for schedule in SCHEDULES if pp > 1 else ("1f1b",):
            try:
                layout = Layout.parse({**keys, "schedule": schedule})
                check_layout(layout, model, SEQ_LEN, train=True)
            except UserError:
                continue
            yield layout


def name_of(layout: Layout) -> str:
    """A layout in a folder's name."""
    pipeline = f"-pp{layout.pp}-{layout.schedule}" if layout.pp > 1 else ""
    again = "-recompute" if layout.recompute != "none" else ""
    return f"tp{layout.tp}{pipeline}-zero{layout.zero_stage}-batch{layout.micro_batch}{again}"


def spread(cases: Sequence[Case], most: int) -> list[Case]:
    """So many of the cases, evenly over their predicted time, in an order of their own."""
    ranked = sorted(cases, key=lambda case: case.predicted_s)
    places = np.unique(np.linspace(0, len(ranked) - 1, min(most, len(ranked))).round().astype(int))
    chosen = [ranked[place] for place in places]
    random.Random(0).shuffle(chosen)
    return chosen


def measure(case: Case, model: ModelSpec, tokens: Path, steps: int) -> Path:
    """Trains a layout for some steps; its run folder."""
    run = {
        "model": model.dump(), "out_dir": str(tokens.parent / case.name), "device": "cpu",
        "layout": case.layout.dump(), "data": {"train": str(tokens), "seq_len": SEQ_LEN},
        "train": {"steps": steps}, "checkpoint": {"every": 0, "at_end": False},
    }  # fmt: skip
    return Path(train(run, quiet=True, simulate=True).out_dir)


def figures(predicted: Sequence[float], measured: Sequence[float]) -> dict[str, float]:
    """How far off the predictions are, and how well they rank."""
    before, truth = np.array(predicted), np.array(measured)
    return {
        "median_error": statistics.median(float(error) for error in abs(before / truth - 1)),
        "tau": kendall_tau(before, truth),
        "regret": regret(before, truth),
    }


def main() -> None:
    """Probes, predicts, measures, calibrates, and writes the result."""
    parser = argparse.ArgumentParser(description="Plan, run, compare, calibrate, and plan better.")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--most", type=int, default=16, help="layouts to run")
    parser.add_argument("--steps", type=int, default=12, help="of each run; the first three aren't timed")
    parser.add_argument("--quick", action="store_true", help="little of everything, nothing kept")
    parser.add_argument("--out", type=Path, help="a folder for the result, instead of results/")
    options = parser.parse_args()
    if options.quick:
        options.processes, options.most, options.steps = 2, 4, 8
    with tempfile.TemporaryDirectory(prefix="scalewright-loop-") as scratch:
        folder = Path(scratch)
        out = options.out or (folder if options.quick else None)
        result = Result("loop", "Plan, run, compare, calibrate, and plan better", facts(), out)
        result.say("Hardware and versions:", "", facts_text(result.data["facts"]))
        go_round(result, options, folder)
        result.close()


def go_round(result: Result, options: argparse.Namespace, folder: Path) -> None:
    """The loop, once."""
    shape = TINY if options.quick else MODEL
    model = ModelSpec.parse({"name": "loop", "context": SEQ_LEN, **shape})
    words = shape["vocab_size"]
    np.save(folder / "tokens.npy", np.random.default_rng(0).integers(0, words, 100_000, dtype=np.uint16))
    loads = [load_average()]
    timings = cpu_timings(options.processes, fresh=True, patience=PROBE_S)
    place = timed_cluster(options.processes, timings)

    def price(layout: Layout, cluster: ClusterSpec) -> float:
        return predict(model, cluster, layout, SEQ_LEN).step_time_s

    every = [Case(name_of(layout), layout, price(layout, place)) for layout in layouts(options.processes, model)]
    cases = {case.name: case for case in spread(every, options.most)}
    folders: list[Path] = []
    for case in cases.values():
        folders.append(measure(case, model, folder / "tokens.npy", options.steps))
        result.put("measured", {path.name: measured_step(path) for path in folders})
    loads.append(load_average())
    answer, _ = calibrate(folders, place, lambda path, cluster: price(cases[path.name].layout, cluster))
    answer["fitted_to"] = [Path(path).name for path in answer["fitted_to"]]
    answer["scored_on"] = [{**row, "run": Path(row["run"]).name} for row in answer["scored_on"]]
    result.put("calibration", answer)
    result.put("load_averages", loads)
    result.put("cases", {name: case.layout.dump() for name, case in cases.items()})
    show(result, cases, len(every), answer)


def show(result: Result, cases: dict[str, Case], every: int, answer: dict[str, Any]) -> None:
    """The tables: all that ran, and the left-out half before and after calibration."""
    measured: dict[str, float] = result.data["measured"]
    after = {row["run"]: row["after_s"] for row in answer["scored_on"]}
    rows = [
        [
            f"`{name}`", f"{case.predicted_s * 1e3:.0f}", f"{measured[name] * 1e3:.0f}",
            f"{case.predicted_s / measured[name] - 1:+.0%}",
            f"{after[name] * 1e3:.0f}" if name in after else "fitted to",
            f"{after[name] / measured[name] - 1:+.0%}" if name in after else "",
        ]
        for name, case in sorted(cases.items(), key=lambda pair: pair[1].predicted_s)
    ]  # fmt: skip
    result.say(f"{len(cases)} of {every} layouts were run; milliseconds a step.")
    heads = ["layout", "predicted", "measured", "error", "calibrated", "error"]
    result.say(table(heads, rows))
    left_out = answer["scored_on"]
    truth = [row["measured_s"] for row in left_out]
    summary = {
        "all, before": figures([case.predicted_s for case in cases.values()], list(measured.values())),
        "left out, before": figures([row["before_s"] for row in left_out], truth),
        "left out, calibrated": figures([row["after_s"] for row in left_out], truth),
    }
    result.put("summary", summary)
    lines = [
        [name, f"{row['median_error']:.0%}", f"{row['tau']:.2f}", f"{row['regret']:.1%}"]
        for name, row in summary.items()
    ]
    result.say(table(["layouts", "median error", "Kendall tau", "regret"], lines))
    for name, factor in answer["factors"].items():
        low, high = answer["interval"][name]
        result.say(f"{name} take {factor:.2f} times what the probe has ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
