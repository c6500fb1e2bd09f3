"""Recorded steps of pipelines, made by the ideal clock with some noise, as the trainer writes them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalewright.spec.schedule import Action, StageCost, schedule, simulate


def make_trace(
    kind: str, ranks: int, virtual_stages: int, micros: int, step: int = 5, noise: float = 0.0,
    slower: Mapping[int, float] = {},
) -> dict[str, Any]:  # fmt: skip
    """A step in which a forward takes 10 ms, and each part of a backward too, but for some noise.

    `slower`: factors of stages.
    """
    dice = random.Random(0)
    cost = StageCost(0.01, 0.01, 0.01)
    plan = schedule(kind, ranks, virtual_stages, micros)

    def seconds(a: Action) -> float:
        return float(getattr(cost, a.kind)) * slower.get(a.stage, 1.0) * (1 + noise * dice.random())

    timing = simulate(plan, seconds, send=noise * 0.002)
    return {
        "schedule": kind, "ranks": ranks, "virtual_stages": virtual_stages, "micro_batches": micros,
        "step": step, "rank_of": list(plan.rank_of),
        "actions": [
            [
                {"kind": a.kind, "stage": a.stage, "micro": a.micro, "start_s": 0.5 + s, "end_s": 0.5 + e}
                for a, (s, e) in zip(actions, spans, strict=True)
            ]
            for actions, spans in zip(plan.actions, timing.spans, strict=True)
        ],
    }  # fmt: skip


def write_trace(folder: Path, trace: dict[str, Any]) -> None:
    """Where the trainer puts it."""
    (folder / "traces").mkdir(parents=True, exist_ok=True)
    path = folder / "traces" / f"pipeline-step-{trace['step']:08d}.json"
    path.write_text(json.dumps(trace), encoding="utf-8")
