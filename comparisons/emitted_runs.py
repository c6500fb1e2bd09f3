"""Whether what `emit` writes trains as `train` does: losses of emitted runs beside ours, step by step.

    python comparisons/emitted_runs.py [accelerate transformers deepspeed] [--steps 20]     a minute a case

The same weights of a tiny Llama, the same samples, the same update, on 2 CPU processes over Gloo. A case
whose trainer isn't installed here is left out, and the result says so.
"""

from __future__ import annotations

import argparse
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.emitted_runs import CASES, TOLERANCE, Case, make_inputs, ours, theirs
from harness.facts import facts
from harness.result import Result, facts_text, table

TRAINERS = sorted({case.trainer for case in CASES})


def main() -> None:
    """Trains here, then each case, and writes the result; fails where losses differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("trainers", nargs="*", metavar="TRAINER", help=f"of {', '.join(TRAINERS)}; default: all")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, help="where the result goes")
    options = parser.parse_args()
    result = Result("emitted-runs", "What `emit` writes, trained beside ours", facts(), options.out)
    result.data["deepspeed"] = metadata.version("deepspeed") if find_spec("deepspeed") else None
    result.say(facts_text(result.data["facts"]), f"- DeepSpeed: {result.data['deepspeed'] or 'not installed'}")
    cases = [case for case in CASES if case.trainer in (options.trainers or TRAINERS)]
    with tempfile.TemporaryDirectory() as folder:
        rows = compared(Path(folder), options.steps, cases, result)
    summary(rows, options.steps, result)
    result.close()
    assert all(row["worst"] <= TOLERANCE for row in rows if "worst" in row)


def compared(folder: Path, steps: int, cases: list[Case], result: Result) -> list[dict[str, Any]]:
    """A row a case: losses of both, and the largest difference of any step."""
    make_inputs(folder)
    references = {masks: ours(folder, steps, masks) for masks in sorted({case.masks for case in cases})}
    rows: list[dict[str, Any]] = []
    for case in cases:
        row: dict[str, Any] = {"trainer": case.trainer, "case": case.title, "layout": case.layout}
        if missing := [name for name in case.needs if find_spec(name) is None]:
            row["left_out"] = f"{', '.join(missing)} is not installed"
        else:
            reference, losses = references[case.masks], theirs(folder, steps, case)
            assert losses.keys() == reference.keys(), (case, sorted(losses))
            differences = {step: abs(losses[step] - reference[step]) for step in reference}
            row |= {"losses": losses, "ours": reference, "worst": max(differences.values())}
        rows.append(row)
        result.put("cases", rows)
        print(case.trainer, case.title, row.get("left_out", f"{row.get('worst', 0):.1e}"), flush=True)
    return rows


def summary(rows: list[dict[str, Any]], steps: int, result: Result) -> None:
    """The table, and what the numbers mean."""
    heads = ["trainer", "what it does", "first loss", "last loss", "ours, last", "largest difference"]
    cells = [
        [row["trainer"], row["case"], *(f"{row['losses'][step]:.6f}" for step in (1, steps)),
         f"{row['ours'][steps]:.6f}", f"{row['worst']:.1e}"]
        for row in rows if "worst" in row
    ]  # fmt: skip
    result.say(table(heads, cells))
    left_out = [f"{row['trainer']}, {row['case']}: {row['left_out']}" for row in rows if "left_out" in row]
    result.say(*(f"- left out: {text}" for text in left_out))
    result.say(
        f"Losses of {steps} steps, in nats per counted token, before each update, fp32. Differences up to "
        f"{TOLERANCE:g} are sums in another order, carried on by AdamW. FSDP2 runs on CPUs, which Accelerate "
        "takes for accelerators; DeepSpeed sums by Gloo, not by its own code in shared memory."
    )


if __name__ == "__main__":
    main()
