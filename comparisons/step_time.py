"""What each technique does to a step's time and to traffic: the trainer's own runs, beside one device's.

    python comparisons/step_time.py            1 and 2 CPU processes of one thread each; minutes
    python comparisons/step_time.py --quick    a tiny model, to see that it runs

Every layout takes the same samples. Layouts take turns, round after round, so that a machine that slows down
slows all of them; a layout's figure is the median over rounds of a run's median step. Two processes on two
cores can at best halve a step: what is missing to 0.5 is communication, waiting, and work done twice. Bytes
are those that one rank sends in a step (`spec/traffic.py`, which tests hold against real ranks).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness.facts import facts, load_average
from harness.result import Result, facts_text, table

from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.traffic import step_traffic
from scalewright.train.run import train

SHAPE = {"vocab_size": 4096, "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8}
TINY = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 8}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}
BATCH, WARM = 8, 2  # samples a step; steps that are left out at a run's start

LAYOUTS: dict[str, dict[str, Any]] = {
    "one device": {},
    "recompute=selective": {"recompute": "selective"},
    "recompute={every: 2}": {"recompute": {"every": 2}},
    "recompute={budget: 0.5}": {"recompute": {"budget": 0.5}},
    "recompute=full": {"recompute": "full"},
    "offload=activations": {"offload": "activations"},
    "offload=optimizer": {"offload": "optimizer"},
    "devices=2 zero_stage=0": {"devices": 2, "zero_stage": 0},
    "devices=2 zero_stage=1": {"devices": 2, "zero_stage": 1},
    "devices=2 zero_stage=2": {"devices": 2, "zero_stage": 2},
    "devices=2 zero_stage=3": {"devices": 2, "zero_stage": 3},
    "devices=2 zero_stage=3 offload=parameters": {"devices": 2, "zero_stage": 3, "offload": "parameters"},
    "devices=2 tp=2 sp=false": {"devices": 2, "tp": 2, "sp": False},
    "devices=2 tp=2": {"devices": 2, "tp": 2},
    "devices=2 pp=2 schedule=gpipe": {"devices": 2, "pp": 2, "schedule": "gpipe"},
    "devices=2 pp=2 schedule=1f1b": {"devices": 2, "pp": 2, "schedule": "1f1b"},
    "devices=2 pp=2 schedule=interleaved": {"devices": 2, "pp": 2, "schedule": "interleaved"},
    "devices=2 pp=2 schedule=zb-h1": {"devices": 2, "pp": 2, "schedule": "zb-h1"},
    "devices=2 pp=2 schedule=zb-interleaved": {"devices": 2, "pp": 2, "schedule": "zb-interleaved"},
    "devices=2 pp=2 schedule=zbv": {"devices": 2, "pp": 2, "schedule": "zbv"},
    "devices=2 pp=2 schedule=dualpipev": {"devices": 2, "pp": 2, "schedule": "dualpipev"},
}


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description="Step time and traffic of every technique, measured.")
    parser.add_argument("--rounds", type=int, default=3, help="how often every layout has its turn")
    parser.add_argument("--steps", type=int, default=10, help="steps of a turn")
    parser.add_argument("--quick", action="store_true", help="a tiny model, one round, nothing kept")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, metavar="LAYOUT", help="these alone")
    parser.add_argument("--out", type=Path, help="a folder for the result, instead of results/")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    rounds, steps = (1, 4) if options.quick else (options.rounds, options.steps)
    torch.set_num_threads(1)  # one device, too: the layouts of two have a core each
    seq_len = 64 if options.quick else 128
    model = ModelSpec.parse(
        {"name": "small-llama", "context": seq_len, **(TINY if options.quick else SHAPE), **HEADS}
    )
    with tempfile.TemporaryDirectory(prefix="scalewright-times-") as scratch:
        folder = Path(scratch)
        result = Result(
            "step-time",
            "What each technique does to a step's time and to traffic",
            facts(),
            options.out or (folder if options.quick else None),
            quiet=options.json,
        )
        result.say("Hardware and versions:", "", facts_text(result.data["facts"]))
        tokens = np.random.default_rng(0).integers(0, model.vocab_size, 200_000, dtype=np.uint16)
        np.save(folder / "tokens.npy", tokens)
        names = ["one device", *(options.layouts or list(LAYOUTS)[1:])]
        times: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(rounds):
            for name in names:
                run = describe(model, LAYOUTS[name], seq_len, steps, folder / f"{turn}-{name}")
                times[name].append(step_seconds(run, steps))
        result.put("model", model.dump())
        result.put("load_average_at_the_end", load_average())
        result.put("times_s", times)
        show(result, model, seq_len, times)
        result.close()
        if options.json:
            print(json.dumps(result.data))


def describe(model: ModelSpec, keys: dict[str, Any], seq_len: int, steps: int, out: Path) -> dict[str, Any]:
    """A run of some steps under a layout; pipelines and accumulation work on one sample at a time."""
    return {
        "model": model.dump(),
        "out_dir": str(out),
        "device": "cpu",
        "layout": {"global_batch": BATCH, "precision": "fp32", **keys},
        "data": {
            "train": str(out.parent / "tokens.npy"),
            "valid": str(out.parent / "tokens.npy"),
            "seq_len": seq_len,
        },
        "train": {"steps": steps},
        "checkpoint": {"every": 0, "at_end": False},
    }


def step_seconds(run: dict[str, Any], steps: int) -> float:
    """The median step of one run, without its first ones."""
    out = train(run, quiet=True).out_dir
    rows = map(json.loads, (Path(out) / "metrics.jsonl").read_text().splitlines())
    seconds = [row["step_time_s"] for row in rows if row["kind"] == "train"]
    assert len(seconds) == steps
    return statistics.median(seconds[WARM:])


def show(result: Result, model: ModelSpec, seq_len: int, times: dict[str, list[float]]) -> None:
    """The table."""
    one = statistics.median(times["one device"])
    rows = []
    for name, found in times.items():
        ratios = [mine / base for mine, base in zip(found, times["one device"], strict=True)]
        layout = Layout.parse({"global_batch": BATCH, "precision": "fp32", **LAYOUTS[name]})
        rows.append(
            [
                f"`{name}`",
                f"{statistics.median(found) * 1e3:.0f}",
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f} – {max(ratios):.2f}",
                sent(model, layout, seq_len),
            ]
        )
    result.put("one_device_s", one)
    result.say(
        table(["`layout`", "ms a step", "of one device", "range", "MB sent by the busiest rank"], rows)
    )


def sent(model: ModelSpec, layout: Layout, seq_len: int) -> str:
    """Megabytes by axis, of the rank that sends the most."""
    best: dict[str, int] = {}
    for rank in range(layout.devices):
        by_axis: dict[str, int] = {}
        for (axis, _), traffic in step_traffic(model, layout, seq_len, rank).items():
            by_axis[axis] = by_axis.get(axis, 0) + traffic.bytes
        best = max(best, by_axis, key=lambda found: sum(found.values()))
    return ", ".join(f"{axis} {amount / 1e6:.1f}" for axis, amount in best.items() if amount) or "–"


if __name__ == "__main__":
    main()
