"""Other trainers' logs beside truths that were written by hand, field by field; and how long 100 MB take."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.result import Result, table
from scalewright.diagnose.diagnose import diagnose

STEP = (  # of a truth, and of an answer
    ("step", "step"), ("step_time_s", "step_time_s"), ("loss", "loss"), ("grad_norm", "grad_norm"),
    ("lr", "lr"),
    ("tokens_per_s", "tokens_per_s"), ("tokens_per_s_per_device", "tokens_per_s_per_device"),
    ("tflops_per_device", "tflops"), ("memory_gib", "memory_gib"),
)  # fmt: skip
NEAR = 1e-6  # relative: truths are rounded to seven digits
TRUTHS_ERRORS = {("2024-lora-phi2", "model"): "the sample's path has no organisation: out/finetune/lora-phi-2"}
SIZE = 100e6  # bytes of the generated log


def training_logs(folder: Path, result: Result) -> None:
    """Compares every field of every sample, and measures the CPU time of a large log."""
    rows: list[list[str]] = []
    counts = []
    for path in sorted(folder.glob("*/*.truth.json")):
        if path.parent.name == "nccl":
            continue
        name = path.name.removesuffix(".truth.json")
        [sample] = (file for file in path.parent.glob(f"{name}*") if file != path)
        truth = json.loads(path.read_text())
        log = diagnose([sample])["log"]
        fields = list(_fields(log, truth))
        different = [(key, ours, theirs) for key, ours, theirs in fields if not _equal(ours, theirs)]
        for key, ours, theirs in different:
            why = TRUTHS_ERRORS.get((name, key), "DIFFERENT")
            rows.append([name, key, str(ours), str(theirs), why])
        equal = len(fields) - len(different)
        counts.append([f"{path.parent.name}/{name}", log["framework"], len(log["steps"]), f"{equal} of {len(fields)}"])
    result.put("training_logs", {"counts": counts, "different": rows})
    result.say(
        f"**Logs of trainers**: {len(counts)} samples, every field that was written by hand.",
        table(["sample", "trainer", "steps", "fields equal"], counts),
    )
    if rows:
        result.say("Others:", table(["sample", "field", "here", "by hand", "why"], rows))
    seconds = {f"{100 * share:g}%": _cpu_seconds(share) for share in (0.02, 1.0)}
    result.put("training_log_cpu_s", seconds)
    figures = ", ".join(f"{spent:.1f} s where {share} of the lines are steps" for share, spent in seconds.items())
    result.say(f"A generated log of {SIZE / 1e6:.0f} MB takes {figures} (CPU seconds).")
    assert not any(row[-1] == "DIFFERENT" for row in rows)


def _fields(log: dict[str, Any], truth: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Each field as it is here and in the truth; what only this tool reads is left out."""
    for key in ("framework", "version", "model", "devices", "restarts"):
        yield key, log[key], truth[key]
    layout = log["layout"] | {"num_layers": log["dims"].get("layers"), "hidden": log["dims"].get("hidden")}
    for key, value in truth["layout"].items():
        yield f"layout.{key}", layout.get(key), value
    yield "steps", len(log["steps"]), len(truth["steps"])
    for number, (ours, theirs) in enumerate(zip(log["steps"], truth["steps"], strict=False)):
        for truths, name in STEP:
            if truths in theirs:
                yield f"steps[{number}].{name}", ours[name], theirs[truths]


def _equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, (int, float)):
        return abs(ours - theirs) <= NEAR * abs(theirs)
    return bool(ours == theirs)


def _cpu_seconds(share: float) -> float:
    """CPU seconds of a log in which this share of the lines are steps, the rest a logger's words."""
    source = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.log"
        with path.open("w") as file:
            step = 0
            while file.tell() < SIZE:
                for _ in range(1000):
                    step += (is_step := source.random() < share)
                    file.write(_step(step, source) if is_step else _words(source))
        begun = time.process_time()
        answer = diagnose([path])
        spent = time.process_time() - begun
        assert len(answer["log"]["steps"]) == step
    return spent


def _step(step: int, source: random.Random) -> str:
    return (
        f" [2026-09-23 {step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02}.284603] iteration "
        f"{step:8d}/ 9999999 | "
        f"consumed samples: {step:12d} | elapsed time per iteration (ms): {source.gauss(690, 5):.1f} | "
        f"throughput per GPU "
        f"(TFLOP/s/GPU): 203.4 | learning rate: 8.571429E-05 | global batch size:     4 | lm loss: "
        f"{source.gauss(3, 0.05):.6E} | loss scale: 1.0 | grad norm: 0.754 | number of skipped "
        f"iterations:   0 | number of "
        "nan iterations:   0 |\n"
    )


def _words(source: random.Random) -> str:
    return (
        f"[rank{source.randrange(64)}]: 2025-06-04 11:02:37,404 - root - INFO - what a module does with "
        f"layers.{source.randrange(80)}.attention.wq of shape torch.Size([4096, 4096])\n"
    )
