"""Step time as predicted for this machine, beside step time as measured: the layouts that two cores can run.

    python comparisons/predicted.py            1 and 2 CPU processes of one thread each; five minutes
    python comparisons/predicted.py --quick    a few layouts, one round, nothing kept

A round probes the machine (kernels and messages, seconds), then trains every layout for some steps; the next
round does so again in the opposite order. A layout's figure is the median over rounds of a run's median step,
and its prediction the median over the rounds' probes. The planner knows the probes and nothing of the runs.
Names of layouts are those of the parity matrix (tests/parity/matrix.py).
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # one thread a process, here and in the processes below; read by import torch

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from harness.facts import facts, load_average
from harness.result import Result, facts_text, table

from scalewright.api import train
from scalewright.machine.local import timed_cluster
from scalewright.machine.timings import cpu_timings
from scalewright.plan.fitting.score import kendall_tau, regret
from scalewright.plan.predict import predict
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.model import ModelSpec

WARM = 2  # steps that are left out at a run's start
RUN_S, LEAST, MOST = 1.2, 4, 12  # what a run's steps are to take together, and how many they are


@dataclass(frozen=True)
class Setting:
    """A model and its samples; every step takes `batch` of them."""

    model: dict[str, Any]
    seq_len: int
    batch: int = 8


def shape(words: int, hidden: int, inner: int, layers: int, heads: int, kv: int) -> dict[str, Any]:
    """A Llama-shaped model."""
    return {
        "vocab_size": words, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv,
    }  # fmt: skip


SETTINGS: dict[str, Setting] = {
    "parity": Setting(shape(67, 24, 40, 5, 4, 2), 16),  # the matrix's own: all of it is the host's
    "narrow": Setting(shape(2048, 192, 512, 8, 6, 2), 128),
    "wide": Setting(shape(4096, 384, 1024, 8, 6, 2), 128),
    "long": Setting(shape(1024, 256, 704, 4, 4, 2), 512, 4),
}
AGAIN = {"selective": "selective", "full": "full", "every2": {"every": 2}, "budget": {"budget": 0.5}}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-interleaved", "zbv", "dualpipev")
LAYOUTS: dict[str, dict[str, Any]] = {
    "one-device": {"micro_batch": 4},
    "one-device-accumulated": {"micro_batch": 1},
    **{f"one-device-recompute-{key}": {"recompute": kind, "micro_batch": 2} for key, kind in AGAIN.items()},
    **{f"dp2-zero{stage}": {"zero_stage": stage, "micro_batch": 2} for stage in range(4)},
    **{f"dp2-zero{stage}-accumulated": {"zero_stage": stage, "micro_batch": 1} for stage in (0, 3)},
    "tp2": {"tp": 2, "micro_batch": 4},
    "tp2-no-sp": {"tp": 2, "sp": False, "micro_batch": 4},
    "tp2-accumulated": {"tp": 2, "micro_batch": 1},
    **{f"pp2-{kind}": {"pp": 2, "schedule": kind, "micro_batch": 1} for kind in SCHEDULES},
    "dp2-recompute-full": {"micro_batch": 2, "recompute": "full", "zero_stage": 3},
    "tp2-recompute-full": {"tp": 2, "micro_batch": 2, "recompute": "full"},
    "pp2-recompute-selective": {"pp": 2, "micro_batch": 1, "recompute": "selective"},
}
SOME = ("one-device", "dp2-zero0", "dp2-zero3", "tp2-no-sp", "pp2-1f1b")  # of the other settings
QUICK = ("one-device", "dp2-zero1", "pp2-1f1b")


@dataclass
class Case:
    """One layout of one setting, with what came of it; seconds."""

    setting: str
    name: str
    layout: Layout
    predicted: list[float] = field(default_factory=list)  # one a probe
    measured: list[float] = field(default_factory=list)  # one a run: its median step
    spread: list[tuple[float, float]] = field(default_factory=list)  # p10 and p90
    parts: dict[str, float] = field(default_factory=dict)  # of the last prediction

    @property
    def both(self) -> tuple[float, float]:
        """Predicted and measured."""
        return statistics.median(self.predicted), statistics.median(self.measured)

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        predicted, measured = self.both
        return predicted / measured - 1

    @property
    def inside(self) -> bool:
        """Whether the measured time lies between p10 and p90."""
        low, high = (statistics.median(ends) for ends in zip(*self.spread, strict=True))
        return bool(low <= self.both[1] <= high)

    def dump(self) -> dict[str, Any]:
        """Plain data."""
        keys = ("setting", "name", "predicted", "measured", "spread", "parts")
        return {**{key: getattr(self, key) for key in keys}, "layout": self.layout.dump(), "error": self.error}


def main() -> None:
    """Probes, predicts, measures, and writes the result."""
    parser = argparse.ArgumentParser(description="Predicted beside measured step time on this machine.")
    parser.add_argument("--rounds", type=int, default=2, help="how often the machine is probed and all run")
    parser.add_argument("--quick", action="store_true", help="a few layouts, one round, nothing kept")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, help="these models alone")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, metavar="LAYOUT", help="these alone")
    parser.add_argument("--out", type=Path, help="a folder for the result, instead of results/")
    options = parser.parse_args()
    cases = list(choose(options))
    with tempfile.TemporaryDirectory(prefix="scalewright-predicted-") as scratch:
        folder = Path(scratch)
        out = options.out or (folder if options.quick else None)
        result = Result("predicted", "Predicted and measured step time on this machine", facts(), out)
        result.say("Hardware and versions:", "", facts_text(result.data["facts"]))
        loads = []
        for number in range(1 if options.quick else options.rounds):
            loads.append(load_average())
            places = probe(sorted({case.layout.devices for case in cases}))
            for case in cases if number % 2 == 0 else reversed(cases):
                ask(case, places[case.layout.devices])
                case.measured.append(measure(case, folder / f"{number}-{case.setting}-{case.name}"))
                result.put("cases", [entry.dump() for entry in cases if entry.measured])
            result.put("timings", {count: place.dump()["measured"] for count, place in places.items()})
        result.put("load_averages", [*loads, load_average()])
        show(result, cases)
        result.close()


def choose(options: argparse.Namespace) -> Iterator[Case]:
    """The cases that are asked for."""
    names = options.settings or (["parity", "narrow"] if options.quick else list(SETTINGS))
    for setting in names:
        usual = list(LAYOUTS) if setting == "narrow" else list(SOME)
        for name in options.layouts or (QUICK if options.quick else usual):
            layout = layout_of(name, SETTINGS[setting].batch)
            check_layout(layout, model_of(setting), SETTINGS[setting].seq_len, train=True)
            yield Case(setting, name, layout)


def layout_of(name: str, batch: int) -> Layout:
    """A layout by its name; what has an axis of 2 runs on two processes."""
    devices = 1 if name.startswith("one") else 2
    return Layout.parse({"devices": devices, "global_batch": batch, "precision": "fp32", **LAYOUTS[name]})


def model_of(setting: str) -> ModelSpec:
    """A setting's model."""
    found = SETTINGS[setting]
    return ModelSpec.parse({"name": setting, "context": found.seq_len, **found.model})


def probe(counts: Sequence[int]) -> dict[int, ClusterSpec]:
    """This machine as so many processes find it, timed here and now."""
    return {count: timed_cluster(count, cpu_timings(count, fresh=True)) for count in counts}


def ask(case: Case, place: ClusterSpec) -> None:
    """Adds what this probe predicts."""
    found = predict(model_of(case.setting), place, case.layout, SETTINGS[case.setting].seq_len)
    case.predicted.append(found.step_time_s)
    case.spread.append(found.band_s)
    case.parts = found.breakdown


def measure(case: Case, out: Path) -> float:
    """The median step of a run, without its first ones."""
    setting = SETTINGS[case.setting]
    steps = WARM + min(MOST, max(LEAST - WARM, round(RUN_S / case.predicted[-1])))
    tokens = out.parent / f"{case.setting}.npy"
    if not tokens.exists():
        words = setting.model["vocab_size"]
        np.save(tokens, np.random.default_rng(0).integers(0, words, 200_000, dtype=np.uint16))
    run = {
        "model": model_of(case.setting).dump(),
        "out_dir": str(out),
        "device": "cpu",
        "layout": case.layout.dump(),
        "data": {"train": str(tokens), "seq_len": setting.seq_len},
        "train": {"steps": steps},
        "checkpoint": {"every": 0, "at_end": False},
    }
    lines = (Path(train(run, quiet=True).out_dir) / "metrics.jsonl").read_text().splitlines()
    seconds = [row["step_time_s"] for row in map(json.loads, lines) if row["kind"] == "train"]
    return float(statistics.median(seconds[WARM:]))


# -- what came of it ------------------------------------------------------------------------------


def show(result: Result, cases: Sequence[Case]) -> None:
    """A table for every setting, and a summary."""
    for setting in dict.fromkeys(case.setting for case in cases):
        some = [case for case in cases if case.setting == setting]
        keys = ", ".join(f"{key} {value}" for key, value in SETTINGS[setting].model.items())
        result.say(f"## {setting}: {keys}, {SETTINGS[setting].batch} x {SETTINGS[setting].seq_len} tokens")
        heads = ["layout", "predicted ms", "measured ms", "error", "p10 – p90", "most of it, beside computing"]
        result.say(table(heads, [row(case) for case in some]))
    rows = [summary(setting, cases) for setting in dict.fromkeys(case.setting for case in cases)]
    large = [case for case in cases if case.setting != "parity"] or list(cases)
    result.put("summary", [*rows, figures("all but parity", large)])
    heads = ["setting", "layouts", "median error", "worst", "bias", "within p10–p90", "Kendall tau", "regret"]
    result.say("## Summary", "", table(heads, [words(found) for found in result.data["summary"]]))


def row(case: Case) -> list[str]:
    """A case's line."""
    predicted, measured = case.both
    low, high = (statistics.median(ends) for ends in zip(*case.spread, strict=True))
    rest = {name: seconds for name, seconds in case.parts.items() if name != "compute"}
    part = max(rest, key=lambda name: rest[name])
    return [
        f"`{case.name}`", f"{predicted * 1e3:.1f}", f"{measured * 1e3:.1f}", f"{100 * case.error:+.0f}%",
        f"{low * 1e3:.1f} – {high * 1e3:.1f}", f"{part} {100 * rest[part] / predicted:.0f}%",
    ]  # fmt: skip


def summary(setting: str, cases: Sequence[Case]) -> dict[str, Any]:
    """A setting's figures, with how well it ranks."""
    some = [case for case in cases if case.setting == setting]
    predicted, measured = (np.array(column) for column in zip(*(case.both for case in some), strict=True))
    found = figures(setting, some)
    if len(some) > 2:
        found |= {"tau": kendall_tau(predicted, measured), "regret": regret(predicted, measured)}
    return found


def figures(name: str, some: Sequence[Case]) -> dict[str, Any]:
    """Errors over some cases."""
    errors = [case.error for case in some]
    return {
        "setting": name,
        "layouts": len(some),
        "median_error": statistics.median(abs(error) for error in errors),
        "worst": max(errors, key=abs),
        "bias": statistics.median(errors),
        "covered": sum(case.inside for case in some) / len(some),
    }


def words(found: dict[str, Any]) -> list[str]:
    """A summary's line."""
    shares = [f"{100 * found[key]:.0f}%" for key in ("median_error",)]
    shares += [f"{100 * found[key]:+.0f}%" for key in ("worst", "bias")]
    tau, cost = found.get("tau"), found.get("regret")
    return [
        found["setting"], str(found["layouts"]), *shares, f"{100 * found['covered']:.0f}%",
        "–" if tau is None else f"{tau:.2f}", "–" if cost is None else f"{100 * cost:.1f}%",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
