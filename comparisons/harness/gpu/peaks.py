"""A run's peak memory beside its dry run's and the plan's, each in a process of its own.

    scalewright train, eager ──► memory_gib of its rows      torch.cuda.max_memory_allocated
    the same, --dry-run      ──► peak of the worst rank      by a GPU's operators (dry_run/no_numbers.py)
    predict                  ──► memory_gib.peak

On a CPU a process's memory can't be told from Python's own: the runs and the counts stand beside each other,
and no share is given.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.gpu.budget import Check
from harness.gpu.runs import run_of

CASES: dict[str, dict[str, Any]] = {
    "bf16": {},
    "bf16, packed rows off": {"data": {"document_mask": False}},
    "fp32": {"layout": {"precision": "fp32"}},
    "full recomputation": {"layout": {"recompute": "full"}},
    "offloaded activations": {"layout": {"offload": "activations"}},
    "8-bit states": {"optimizer": {"name": "adamw_8bit"}},
}


def peaks(check: Check) -> None:
    """GiB measured, by the dry run and by the plan."""
    for name, changes in CASES.items():
        if not check.want(name, 5.0):
            continue
        with check.trying(name), tempfile.TemporaryDirectory() as folder:
            keys = json.loads(json.dumps(changes))
            train = {"compile": False, **keys.pop("train", {})}
            run = run_of(check, Path(folder), 5, train=train, **keys)
            file = Path(folder) / "run.yaml"
            file.write_text(json.dumps(run), encoding="utf-8")
            command(check, folder, "train", str(file))
            dry = json.loads(command(check, folder, "train", str(file), "--dry-run", "--json", f"out_dir={folder}/dry"))
            rows = [json.loads(line) for line in (Path(folder) / "run/metrics.jsonl").read_text().splitlines()]
            measured = max(row["memory_gib"] for row in rows)
            counted = max(group["memory_bytes"]["peak"] for group in dry["groups"]) / 2**30
            value = {"measured_gib": measured, "dry_run_gib": counted}
            if check.device.type == "cuda":
                planned = json.loads(command(check, folder, "predict", "--from", str(file), "--json"))["memory_gib"][
                    "peak"
                ]
                value |= {
                    "planned_gib": planned,
                    "dry_run_is": counted / measured - 1,
                    "plan_is": planned / measured - 1,
                }
            check.note(name, value)


def command(check: Check, folder: str | Path, *words: str) -> str:
    """Runs a verb of ours; its stdout. Raises RuntimeError with its last line of stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "scalewright", *words], cwd=folder, capture_output=True, text=True,
        timeout=max(5.0, check.left), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"scalewright {words[0]}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return done.stdout
