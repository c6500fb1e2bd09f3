"""A run under DeepSpeed's engine beside the same run under ours: losses and gradient norms, step by step.

    pip install deepspeed transformers
    python comparisons/deepspeed_engine.py [--steps 20]          ten minutes on two cores

The same weights of a tiny Llama, the same samples (packed, masked, unequal counts of tokens), AdamW with a
warm-up and clipping in every step; on CPU processes over Gloo. The control is our own engine on one device.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from harness.emitted_runs import make_inputs, run_of
from harness.facts import facts
from harness.result import Result, facts_text, table

from scalewright.api import train

# fp32 sums in another order differ by about 1e-7 a step; 20 updates carry them on, and 1e-5 leaves a factor
# of ten. In bf16 such a difference rounds a weight to another of 8 bits, 4e-3 apart, now and then.
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-3}
KEYS = ("loss", "grad_norm")


class Case(NamedTuple):
    """What DeepSpeed does, and the layout that makes it do so."""

    title: str
    layout: dict[str, Any]
    then: dict[str, Any] | None = None  # of our own engine, which goes on from half of the steps


CASES = (
    *(Case(f"ZeRO {stage}", {"zero_stage": stage}) for stage in range(4)),
    Case("ZeRO 1, bf16", {"zero_stage": 1, "precision": "bf16"}),
    Case("ZeRO 2, bf16", {"zero_stage": 2, "precision": "bf16"}),
    Case("ZeRO 1, optimizer offloaded", {"zero_stage": 1, "offload": "optimizer"}),
    Case("ZeRO 3, parameters offloaded", {"zero_stage": 3, "offload": "parameters"}),
    Case("ZeRO 3, blocks recomputed", {"zero_stage": 3, "recompute": "full"}),
    Case("PipelineModule, 2 stages", {"zero_stage": 1, "pp": 2}),
    Case("PipelineModule, 2 stages, ZeRO 1 over 2", {"zero_stage": 1, "pp": 2, "devices": 4}),
    Case("ZeRO 3, then ours with tp 2", {"zero_stage": 3}, {"tp": 2, "zero_stage": 0}),
)


def main() -> None:
    """Trains the controls, then each case, and writes the result; fails where numbers differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, help="where the result goes")
    options = parser.parse_args()
    result = Result("deepspeed-engine", "DeepSpeed's engine beside ours", facts(), options.out)
    result.data["deepspeed"] = metadata.version("deepspeed")
    result.say(facts_text(result.data["facts"]), f"- DeepSpeed: {result.data['deepspeed']}, sums by Gloo")
    with tempfile.TemporaryDirectory() as folder:
        rows = compared(Path(folder), options.steps, result)
    summary(rows, options.steps, result)
    result.close()
    for row in rows:
        tolerance = TOLERANCE[row["layout"].get("precision", "fp32")]
        assert all(row["worst"][key] <= tolerance for key in KEYS), row["case"]


def compared(folder: Path, steps: int, result: Result) -> list[dict[str, Any]]:
    """A row a case: numbers of both engines, and the largest relative difference of any step."""
    make_inputs(folder)
    controls: dict[str, list[dict[str, Any]]] = {}
    rows: list[dict[str, Any]] = []
    for number, case in enumerate(CASES):
        precision = case.layout.get("precision", "fp32")
        if precision not in controls:
            alone = {"devices": 1, "zero_stage": 0, "precision": precision}
            controls[precision] = trained(folder, f"ours-{precision}", steps, "scalewright", alone)
        ours = controls[precision]
        half = steps // 2 if case.then is not None else None
        theirs = trained(folder, f"case-{number}", steps, "deepspeed", case.layout, half)
        if case.then is not None:
            theirs = trained(folder, f"case-{number}", steps, "scalewright", case.then)
        assert [row["sample_ids_hash"] for row in theirs] == [row["sample_ids_hash"] for row in ours]
        worst = {
            key: max(abs(a[key] - b[key]) / abs(b[key]) for a, b in zip(theirs, ours, strict=True)) for key in KEYS
        }
        numbers = {name: {key: [row[key] for row in of] for key in KEYS}
                   for name, of in (("deepspeed", theirs), ("ours", ours))}  # fmt: skip
        rows.append({"case": case.title, "layout": case.layout, "then": case.then, "worst": worst, **numbers})
        result.put("cases", rows)
        print(case.title, *(f"{key} {value:.1e}" for key, value in worst.items()), flush=True)
    return rows


def trained(
    folder: Path, name: str, steps: int, engine: str, layout: dict[str, Any], until: int | None = None
) -> list[dict[str, Any]]:
    """A run's lines, one a step."""
    run = run_of(folder, steps, True, **layout)
    run |= {"engine": engine, "out_dir": str(folder / name), "checkpoint": {"at_end": True}}
    run["optimizer"] = {"lr": 1e-3, "clip_norm": 0.5}
    out = Path(train(run, steps=until, quiet=True).out_dir)
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == "train"]


def summary(rows: list[dict[str, Any]], steps: int, result: Result) -> None:
    """The tables, and what the numbers mean."""
    heads = ["engine: deepspeed", "last loss", "ours", "largest difference of losses", "of gradient norms"]
    cells = [
        [row["case"], f"{row['deepspeed']['loss'][-1]:.7f}", f"{row['ours']['loss'][-1]:.7f}",
         *(f"{row['worst'][key]:.1e}" for key in KEYS)]
        for row in rows
    ]  # fmt: skip
    result.say(table(heads, cells))
    shown = [row for row in rows if row["case"] in ("ZeRO 1", "ZeRO 2", "ZeRO 3", CASES[9].title)]
    by_step = [
        [step + 1, f"{rows[0]['ours']['loss'][step]:.7f}", *(f"{row['deepspeed']['loss'][step]:.7f}" for row in shown)]
        for step in range(steps)
    ]
    result.say(table(["step", "ours, one device", *(row["case"] for row in shown)], by_step))
    result.say(
        f"Losses of {steps} steps, in nats per counted token, before each update; gradient norms before "
        "clipping (at 0.5, which every step's norm exceeds); differences are relative. The control is our "
        "own engine on one device, in bf16 for the cases in bf16, where a weight now and then rounds to "
        "another of 8 bits. The last case goes on from DeepSpeed's checkpoint under our own engine after "
        "half of the steps."
    )


if __name__ == "__main__":
    main()
