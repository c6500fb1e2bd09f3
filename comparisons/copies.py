"""What comparing copies costs a run (`train.guard.check_copies`): seconds of one comparison beside those of a step.

    python comparisons/copies.py            two models, 2 and 4 replicas on this machine's cores
    python comparisons/copies.py --quick    a tiny model, to see that it runs

Steps and comparisons take turns in one session of the trainer, AdamW in fp32; medians of each. The share is that of a
run with a comparison every 100 steps, the default.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from harness.facts import facts, load_average
from harness.models import TINY
from harness.result import Result, facts_text, table
from harness.setting import prepare_corpus

from scalewright.launch.local import run_local
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec
from scalewright.train.resolve import read_run, resolve, with_data
from scalewright.train.run import PRELOAD, enter
from scalewright.train.session import Session
from scalewright.train.start import Start

EVERY = 100
MODELS = ("llama-15m", "llama-56m")


def main() -> None:
    """A row for each model and number of replicas."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scalewright-comparison-") as folder:
        work = Path(folder)
        out = Path(options.out) if options.out else (work if options.quick else None)
        result = Result("copies", "What comparing the copies of weights and states costs", facts(), out)
        result.say("Hardware and versions:", "", facts_text(result.data["facts"]))
        models = (TINY,) if options.quick else tuple(map(load_model_spec, MODELS))
        rows = [measure(model, ranks, work, 5 if options.quick else 15) for model in models for ranks in (2, 4)]
        result.put("rows", rows)
        lines = [
            [row["model"], str(row["ranks"]), f"{1e3 * row['step_s']:.1f} ms", f"{1e3 * row['comparison_s']:.2f} ms",
             f"{row['share']:.3%}"] for row in rows
        ]  # fmt: skip
        result.say(table(["model", "replicas", "step", "one comparison", f"of a run, every {EVERY} steps"], lines))
        result.say(f"Load average at the end: {load_average()}")
        result.close()


def measure(model: ModelSpec, ranks: int, work: Path, rounds: int) -> dict[str, Any]:
    """Medians of a step's and a comparison's seconds on rank 0."""
    data = prepare_corpus(work, model.vocab_size)
    answers = work / "answers.json"
    run = {
        "name": "copies", "out_dir": str(work / "run"), "device": "cpu", "resume": "never", "model": model.dump(),
        "layout": {"devices": ranks, "zero_stage": 0, "micro_batch": 1, "precision": "fp32"},
        "data": {"train": str(data), "seq_len": 128}, "train": {"steps": 1}, "checkpoint": {"at_end": False},
    }  # fmt: skip
    prepare = partial(_take_turns, answers=answers, rounds=rounds)
    start = Start(with_data(resolve(read_run(run, ()), read_data=False)), "cpu", quiet=True, prepare=prepare)
    run_local(enter, (start,), ranks, preload=PRELOAD, threads=1)
    seconds = json.loads(answers.read_text())
    step, comparison = (median(seconds[name]) for name in ("steps", "comparisons"))
    share = comparison / (EVERY * step + comparison)
    return {"model": model.name, "ranks": ranks, "step_s": step, "comparison_s": comparison, "share": share}


def _take_turns(session: Session, *, answers: Path, rounds: int) -> None:
    steps, comparisons = [], []
    with closing(session.batches()) as batches:
        micros, counted = next(iter(batches))
    for _ in range(rounds):
        begun = time.perf_counter()
        session.step(micros, counted).tolist()
        between = time.perf_counter()
        session.copies.after(1, saves=True)
        steps.append(between - begun)
        comparisons.append(time.perf_counter() - between)
    if session.mesh.rank == 0:
        answers.write_text(json.dumps({"steps": steps[2:], "comparisons": comparisons[2:]}))


if __name__ == "__main__":
    main()
