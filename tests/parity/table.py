"""The matrix as a table: what was compared, how far apart it was, and how long it took."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from parity.matrix import Case
from scalewright.launch.begin import cores
from scalewright.parity.result import Parity


@dataclass(frozen=True)
class Line:
    """One layout's worst relative deviations."""

    name: str
    layout: dict[str, Any]
    variant: str
    steps: int
    loss_rel: float
    grad_norm_rel: float
    weights_rel: float
    tolerance: float
    ok: bool
    seconds: float

    @classmethod
    def of(cls, case: Case, found: Parity, seconds: float) -> Line:
        """The line of a case."""
        return cls(
            name=case.name,
            layout=case.layout,
            variant=case.variant,
            steps=len(found.deviation.steps),
            loss_rel=max(step.loss_rel for step in found.deviation.steps),
            grad_norm_rel=max(step.grad_norm_rel for step in found.deviation.steps),
            weights_rel=found.deviation.weights_rel,
            tolerance=found.tolerance,
            ok=found.ok,
            seconds=round(seconds, 2),
        )

    def __str__(self) -> str:
        numbers = (self.loss_rel, self.grad_norm_rel, self.weights_rel)
        return "loss {:.1e}, gradient norm {:.1e}, weights {:.1e}".format(*numbers)


def markdown(lines: Sequence[Line]) -> str:
    """The table, with what it was made on."""
    import torch

    total = sum(line.seconds for line in lines)
    fp32 = [line for line in lines if line.layout["precision"] == "fp32"]
    worst = max((max(n.loss_rel, n.grad_norm_rel, n.weights_rel) for n in fp32), default=0.0)
    head = [
        f"# Parity of {len(lines)} layouts with one device, {date.today()}",
        "",
        f"{lines[0].steps} steps on Gloo CPU processes; {cores()} cores, {platform.machine()}, torch "
        f"{torch.__version__}, {total:.0f} s in all.",
        "Largest relative deviation of loss and gradient norm with AdamW, and of the final weights with SGD.",
        f"Worst in fp32: {worst:.1e}; {sum(not line.ok for line in lines)} beyond their tolerance.",
        "",
        "| layout | run | ranks | loss | gradient norm | weights | tolerance | s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = [
        f"| {n.name} | {n.variant} | {n.layout['devices']} | {n.loss_rel:.1e} | {n.grad_norm_rel:.1e} | "
        f"{n.weights_rel:.1e} | {n.tolerance:.0e} | {n.seconds:.1f} |"
        for n in lines
    ]
    return "\n".join([*head, *rows, ""])


def save(lines: Sequence[Line], folder: Path) -> Path:
    """Writes the table as Markdown and JSON, dated; returns the Markdown file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{date.today()}-parity.md"
    path.write_text(markdown(lines))
    path.with_suffix(".json").write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")
    return path
