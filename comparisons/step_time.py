"""What each technique does to a step's time and to traffic: the trainer's own runs, beside one device's.

    python comparisons/step_time.py            1, 2 and 4 CPU processes of one thread each; minutes
    python comparisons/step_time.py --quick    a tiny model, to see that it runs
    --timed LAYOUT ...                         bytes of all, time of these: bytes don't mind a busy machine

Every layout takes the same samples. Layouts take turns, round after round, so that a machine that slows down
slows all of them; a layout's figure is the median over rounds of a run's median step. Two processes on two
cores can at best halve a step, and four do no better: what is missing to 0.5 is communication, waiting, and
work done twice. Bytes are watched in a run of their own, since watching takes time (harness/live_traffic.py).
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
from harness.live_traffic import Seen, busiest, measure
from harness.result import Result, facts_text, table

from scalewright.api import train
from scalewright.spec.model import ModelSpec

SHAPE = {"vocab_size": 4096, "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8}
TINY = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 8}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}
BATCH, WARM = 8, 2  # samples a step; steps that are left out at a run's start

ONE, MIXTURE = "one device", "mixture"  # what others' times are divided by
LAYOUTS: dict[str, dict[str, Any]] = {
    ONE: {},
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
    "devices=2 zero_stage=3 offload=all": {"devices": 2, "zero_stage": 3, "offload": "all"},
    "devices=4 dp_replicate=2 zero_stage=3": {"devices": 4, "dp_replicate": 2, "zero_stage": 3},
    "devices=2 tp=2 sp=false": {"devices": 2, "tp": 2, "sp": False},
    "devices=2 tp=2": {"devices": 2, "tp": 2},
    "devices=2 cp=2": {"devices": 2, "cp": 2, "zero_stage": 0},
    "devices=2 cp=2 cp_kind=allgather": {"devices": 2, "cp": 2, "zero_stage": 0, "cp_kind": "allgather"},
    "devices=2 cp=2 cp_kind=ulysses": {"devices": 2, "cp": 2, "zero_stage": 0, "cp_kind": "ulysses"},
    "devices=2 pp=2 schedule=gpipe": {"devices": 2, "pp": 2, "schedule": "gpipe"},
    "devices=2 pp=2 schedule=1f1b": {"devices": 2, "pp": 2, "schedule": "1f1b"},
    "devices=2 pp=2 schedule=interleaved": {"devices": 2, "pp": 2, "schedule": "interleaved"},
    "devices=2 pp=2 schedule=zb-h1": {"devices": 2, "pp": 2, "schedule": "zb-h1"},
    "devices=2 pp=2 schedule=zb-interleaved": {"devices": 2, "pp": 2, "schedule": "zb-interleaved"},
    "devices=2 pp=2 schedule=zbv": {"devices": 2, "pp": 2, "schedule": "zbv"},
    "devices=2 pp=2 schedule=dualpipev": {"devices": 2, "pp": 2, "schedule": "dualpipev"},
}
DDP = {"devices": 2, "zero_stage": 0}
POWERSGD = {"powersgd": {"rank": 4, "start_after": 0}}
RUNS: dict[str, dict[str, Any]] = {
    **{name: {"layout": keys} for name, keys in LAYOUTS.items()},
    "devices=2 zero_stage=0 compress=bf16": {"layout": DDP, "train": {"compress": "bf16"}},
    "devices=2 zero_stage=0 compress={powersgd: {rank: 4}}": {"layout": DDP, "train": {"compress": POWERSGD}},
    "optimizer.name=adamw_bf16": {"optimizer": {"name": "adamw_bf16"}},
    "optimizer.name=adamw_8bit": {"optimizer": {"name": "adamw_8bit"}},
    "optimizer.name=muon": {"optimizer": {"name": "muon"}},
    "devices=2 zero_stage=1 optimizer.name=muon": {
        "layout": {"devices": 2, "zero_stage": 1},
        "optimizer": {"name": "muon"},
    },
    MIXTURE: {},
    f"{MIXTURE}, devices=2 zero_stage=0": {"layout": DDP},
    f"{MIXTURE}, devices=2 zero_stage=3": {"layout": {"devices": 2, "zero_stage": 3}},
    f"{MIXTURE}, devices=2 zero_stage=0 ep=2": {"layout": {**DDP, "ep": 2}},
    f"{MIXTURE}, devices=2 zero_stage=0 etp=2": {"layout": {**DDP, "etp": 2}},
    f"{MIXTURE}, devices=2 tp=2 ep=2": {"layout": {"devices": 2, "tp": 2, "ep": 2}},
}


def base_of(name: str) -> str:
    """The run on one device whose time a run's is divided by."""
    return MIXTURE if name.startswith(MIXTURE) else ONE


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description="Step time and traffic of every technique, measured.")
    parser.add_argument("--rounds", type=int, default=3, help="how often every layout has its turn")
    parser.add_argument("--steps", type=int, default=10, help="steps of a turn")
    parser.add_argument("--quick", action="store_true", help="a tiny model, one round, nothing kept")
    parser.add_argument("--layouts", nargs="+", choices=RUNS, metavar="LAYOUT", help="these alone")
    parser.add_argument("--timed", nargs="+", choices=RUNS, metavar="LAYOUT", help="time these alone")
    parser.add_argument("--out", type=Path, help="a folder for the result, instead of results/")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    rounds, steps = (1, 4) if options.quick else (options.rounds, options.steps)
    torch.set_num_threads(1)  # one device, too: the layouts of two have a core each
    seq_len = 64 if options.quick else 128
    model = ModelSpec.parse({"name": "small-llama", "context": seq_len, **(TINY if options.quick else SHAPE), **HEADS})
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
        names = with_bases(options.layouts or list(RUNS))
        result.put("model", model.dump())
        sent: dict[str, list[Seen]] = {}
        for name in names:
            run = describe(model, name, seq_len, steps, folder / "watched")
            sent[name] = measure(run)
            result.put("collectives", sent)
        timed = with_bases(options.timed or names)
        times: dict[str, list[float]] = {name: [] for name in timed}
        loads = [load_average()]
        for turn in range(rounds):
            for name in timed:
                run = describe(model, name, seq_len, steps, folder / f"{turn}-{len(times[name])}")
                times[name].append(step_seconds(run, steps))
            loads.append(load_average())
            result.put("times_s", times)
            result.put("load_average_between_rounds", loads)
        show(result, times, sent)
        result.close()
        if options.json:
            print(json.dumps(result.data))


def with_bases(names: list[str]) -> list[str]:
    """Some runs, in the table's order, with those that their times are divided by."""
    wanted = {*names, *map(base_of, names)}
    return [name for name in RUNS if name in wanted]


def describe(model: ModelSpec, name: str, seq_len: int, steps: int, out: Path) -> dict[str, Any]:
    """A run of some steps; pipelines and accumulation work on one sample at a time."""
    keys = RUNS[name]
    if base_of(name) == MIXTURE:
        width = model.intermediate_size // 4
        moe = {"num_experts": 8, "top_k": 2, "moe_intermediate_size": width}
        model = model.replace(family="qwen3_moe", moe=moe)
    return {
        "model": model.dump(),
        "out_dir": str(out),
        "device": "cpu",
        "layout": {"global_batch": BATCH, "precision": "fp32", **keys.get("layout", {})},
        "optimizer": keys.get("optimizer", {}),
        "data": {"train": str(out.parent / "tokens.npy"), "valid": str(out.parent / "tokens.npy"), "seq_len": seq_len},
        "train": {"steps": steps, **keys.get("train", {})},
        "checkpoint": {"every": 0, "at_end": False},
    }


def step_seconds(run: dict[str, Any], steps: int) -> float:
    """The median step of one run, without its first ones."""
    out = train(run, quiet=True).out_dir
    rows = map(json.loads, (Path(out) / "metrics.jsonl").read_text().splitlines())
    seconds = [row["step_time_s"] for row in rows if row["kind"] == "train"]
    assert len(seconds) == steps
    return float(statistics.median(seconds[WARM:]))


def show(result: Result, times: dict[str, list[float]], sent: dict[str, list[Seen]]) -> None:
    """The table."""
    one = {name: statistics.median(times[name]) for name in (ONE, MIXTURE) if name in times}
    rows = [
        [f"`{name}`", *time_cells(times.get(name, []), times[base_of(name)]), megabytes(busiest(seen))]
        for name, seen in sent.items()
    ]
    result.put("one_device_s", one)
    load = load_average()
    result.say(f"Load average at the end: {' '.join(map(str, load)) if load else 'unknown'}.")
    result.say("MB: what the busiest rank sends in one step on a ring, by axis, from the collectives that were seen.")
    result.say(table(["`layout`", "ms a step", "of one device", "range", "MB sent in a step"], rows))


def time_cells(found: list[float], base: list[float]) -> list[str]:
    """A layout's median step, and its ratios to one device's in the same rounds; dashes: it wasn't timed."""
    if not found:
        return ["–"] * 3
    ratios = [mine / one for mine, one in zip(found, base, strict=True)]
    return [
        f"{statistics.median(found) * 1e3:.0f}",
        f"{statistics.median(ratios):.2f}",
        f"{min(ratios):.2f} – {max(ratios):.2f}",
    ]


def megabytes(by_axis: dict[str, float]) -> str:
    """Bytes by axis as the table writes them."""
    return ", ".join(f"{axis} {amount / 1e6:.1f}" for axis, amount in by_axis.items() if amount) or "–"


if __name__ == "__main__":
    main()
