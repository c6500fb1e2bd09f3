"""Hundreds of faults on ten layouts of four ranks, saves at once and beside training: which runs come back, and equal?

    python comparisons/chaos.py --seconds 420      goes on where the last call stopped, for so long
    --lane 1/2                                     every second portion, for two calls at a time
    python comparisons/chaos.py --quick            two faults on one layout, to see that it runs
    python comparisons/chaos.py --show             the table of what was done so far

Each portion is one `scalewright chaos` of a layout with a seed of its own: an undisturbed run, then runs under eight
faults, started again by nobody's hand, and their weights, states and numbers compared bit for bit. Portions go round
the layouts, every second time with `checkpoint.async`. What was done is added to the result's file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from harness.facts import facts, load_average
from harness.models import TINY
from harness.result import Result, facts_text, table
from harness.setting import prepare_corpus

from scalewright.chaos.chaos import chaos
from scalewright.chaos.faults import KINDS
from scalewright.spec.base import write_yaml
from scalewright.spec.run import load_run

EACH = 8  # faults of a portion
MIXTURE = {"moe": {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 32}}
LAYOUTS: dict[str, dict[str, Any]] = {
    "four replicas": {"zero_stage": 0}, "ZeRO-1": {"zero_stage": 1}, "ZeRO-3": {"zero_stage": 3},
    "two replicas of shards": {"zero_stage": 3, "dp_replicate": 2}, "tp 2": {"zero_stage": 0, "tp": 2},
    "tp 4": {"tp": 4}, "pp 2": {"zero_stage": 0, "pp": 2}, "tp 2, pp 2": {"tp": 2, "pp": 2},
    "cp 2": {"cp": 2, "zero_stage": 3}, "ep 2": {"ep": 2, "zero_stage": 3},
}  # fmt: skip
NAME = "chaos"


def main() -> None:
    """Portions until the time is over; then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--lane", default="1/1")
    parser.add_argument("--state", type=Path, default=Path(tempfile.gettempdir()) / "scalewright-chaos-portions.jsonl")
    parser.add_argument("--out")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    portions = read(options.state)
    with tempfile.TemporaryDirectory(prefix="scalewright-comparison-") as folder:
        work = Path(folder)
        if options.quick:
            write([portion(0, work, faults=2)], Path(options.out) if options.out else work)
            return
        longest = 0.0
        lane, lanes = map(int, options.lane.split("/"))
        done_before = {part["seed"] for part in portions}
        numbers = (number for number in itertools.count(lane - 1, lanes) if number not in done_before)
        while not options.show and time.monotonic() + longest < end:
            begun = time.monotonic()
            done = portion(next(numbers), work, faults=EACH, seconds=end - begun - 30)
            portions.append(done)
            with options.state.open("a") as file:
                file.write(json.dumps(done) + "\n")
            longest = max(longest, time.monotonic() - begun)
    write(read(options.state), Path(options.out) if options.out else None)


def read(state: Path) -> list[dict[str, Any]]:
    """The portions so far."""
    return [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []


def portion(number: int, work: Path, faults: int, seconds: float | None = None) -> dict[str, Any]:
    """One layout under some faults."""
    name = list(LAYOUTS)[number % len(LAYOUTS)]
    beside = number // len(LAYOUTS) % 2 == 1
    data = prepare_corpus(work, TINY.vocab_size)
    model = {**TINY.dump(), "num_hidden_layers": 4, "num_key_value_heads": 4, **(MIXTURE if "ep" in name else {})}
    run = {
        "name": "chaos", "out_dir": str(work / "out"), "device": "cpu", "model": model,
        "layout": {"devices": 4, "global_batch": 8, "micro_batch": 1, "precision": "fp32", **LAYOUTS[name]},
        "data": {"train": str(data), "valid": str(data), "seq_len": 64},
        "train": {"steps": 120, "valid_every": 25, "valid_batches": 1},
        "checkpoint": {"every": 10, "async": beside},
    }  # fmt: skip
    file = work / "run.yaml"
    write_yaml(file, run)
    keep = work / f"portion-{number}"
    answer = chaos(load_run(file), faults=faults, seed=number, steps=120, keep=keep, seconds=seconds, tell=print)
    return {
        "layout": name, "async": beside, "source": facts()["source"],
        **{key: answer[key] for key in ("faults", "equal", "recovered", "orphans", "runs", "seed", "seconds")},
    }  # fmt: skip


def write(portions: list[dict[str, Any]], out: Path | None) -> None:
    """The dated result: by layout, and by kind of fault."""
    result = Result(NAME, "Runs under faults", facts(), out)
    result.say("Hardware and versions:", "", facts_text(result.data["facts"]))
    result.put("portions", portions)
    every = [fault for part in portions for fault in part["faults"]]
    runs = [run for part in portions for run in part["runs"]]
    equal, back = sum(run["equal"] is True for run in runs), sum(fault["recovered"] for fault in every)
    orphans = sum(part["orphans"] for part in portions)
    result.say(
        f"{back} of {len(every)} faults were got over by nobody's hand; {equal} of {len(runs)} runs ended with the "
        f"undisturbed run's weights, optimizer states and numbers of every step, bit for bit; {orphans} processes left."
    )
    lines = []
    for name in LAYOUTS:
        for beside in (False, True):
            mine = [part for part in portions if part["layout"] == name and part["async"] == beside]
            faults, ends = ([item for part in mine for item in part[key]] for key in ("faults", "runs"))
            if mine:
                saves = "beside training" if beside else "at once"
                lines.append([name, saves, f"{sum(f['recovered'] for f in faults)} of {len(faults)}",
                              f"{sum(e['equal'] is True for e in ends)} of {len(ends)}"])  # fmt: skip
    result.say(table(["layout", "saves", "faults recovered", "runs equal"], lines))
    rows = []
    for kind, count in sorted(Counter(fault["kind"] for fault in every).items()):
        of_kind = [fault for fault in every if fault["kind"] == kind]
        seconds = [fault["seconds"] for fault in of_kind if fault["recovered"]]
        rows.append([
            kind, KINDS[kind].words, f"{len(seconds)} of {count}", f"{median(seconds):.1f} s" if seconds else "–",
            f"{max(seconds):.1f} s" if seconds else "–", str(sum(fault["lost_steps"] for fault in of_kind)),
        ])  # fmt: skip
    result.say(table(["fault", "what", "recovered", "median", "at most", "steps done again"], rows))
    result.say(f"Load average at the end: {load_average()}")
    result.close()


if __name__ == "__main__":
    main()
