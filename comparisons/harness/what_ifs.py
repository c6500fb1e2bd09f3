"""Tables of pipelines' operations beside their authors' own what-if: S by stage, replica and operation."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.result import Result, table
from scalewright.diagnose.diagnose import diagnose

NEAR = 0.01  # relative
PARTS = {"by_stage": "by_stage", "by_replica": "by_dp_rank", "by_operation": "by_optype"}
RENAMED = {"forward-transfer": "forward-pp-comm", "backward-transfer": "backward-pp-comm"}


def what_ifs(folder: Path, result: Result) -> None:
    """Compares every factor of every table, and asserts that all are within 1%."""
    reference = json.loads((folder / "wia_reference.json").read_text())["runs"]
    rows, worst = [], 0.0
    for name, theirs in reference.items():
        begun = time.process_time()
        answer = diagnose([folder / f"trace-{name}.parquet"])
        spent = time.process_time() - begun
        ours = answer["slowdown"]
        pairs = [(ours["factor"], theirs["blocking_slowdown"]), *_factors(ours, theirs)]
        far = max(abs(a / b - 1) for a, b in pairs)
        worst = max(worst, far)
        slowest = max(ours["workers"], key=lambda worker: worker["factor"])
        rows.append([
            name, f"{ours['factor']:.4f}", f"{theirs['blocking_slowdown']:.4f}",
            max(ours["by_stage"], key=ours["by_stage"].get),
            f"stage {slowest['stage']} of replica {slowest['replica']}",
            f"{ours['by_worst_workers_pct']:.1f} ({100 * theirs['M_W']:.1f})",
            f"{ours['by_last_stage_pct']:.1f} ({100 * theirs['M_S']:.1f})",
            f"{len(pairs)}, {100 * far:.2f}%", answer["verdicts"][0]["cause"],
            f"{spent:.1f} ({theirs['cpu_s']:.1f})",
        ])  # fmt: skip
    result.put("what_ifs", rows)
    heads = ["table", "S", "theirs", "worst stage", "worst worker", "M_W, % (theirs)", "M_S, % (theirs)",
             "factors, farthest", "first cause", "CPU s (theirs)"]  # fmt: skip
    result.say("**Pipelines' operations** beside the what-if of those who recorded them.", table(heads, rows))
    assert worst <= NEAR


def _factors(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[tuple[float, float]]:
    """Every factor of both."""
    for mine, other in PARTS.items():
        for key, factor in ours[mine].items():
            yield factor, theirs[other][RENAMED.get(key, key)]
