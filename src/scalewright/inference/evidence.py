"""The measured runs nearest to a question, each beside its own prediction.

distance    model (its active parameters) + device + engine + precision + lengths + devices, in units of "another one"
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from scalewright.inference.constants import Constants, fold
from scalewright.inference.counts import counts
from scalewright.inference.load import Load
from scalewright.inference.rows import RowOfTable
from scalewright.inference.score import predicted, read_table, runs_of
from scalewright.inference.setup import Question

SHOWN = 3
Row = Mapping[str, Any]


@lru_cache(maxsize=1)
def _rows() -> tuple[tuple[Row, RowOfTable], ...]:
    """The rows of the table that measure a server."""
    runs = runs_of(read_table())
    return tuple(
        (row, asked)
        for row, asked, rate in zip(runs.rows, runs.asked, runs.measured, strict=True)
        if math.isfinite(rate)
    )


def nearest(q: Question, asked: Load, c: Constants) -> list[dict[str, Any]]:
    """The nearest rows, one for each different setup: what was measured, and what is predicted of it."""
    ranked = sorted(_rows(), key=lambda pair: _distance(q, asked, pair[1]))
    shown: dict[str, dict[str, Any]] = {}
    for row, near in ranked:
        q_ = near.question
        key = str((q_.model.name, q_.weights.name, q_.cluster.device.id, q_.engine.name, q_.shape, near.load.number))
        if key in shown:
            continue
        runs = runs_of([row])
        shown[key] = {
            "source": row["source"], "source_ref": row["source_ref"], "model": near.question.model.name,
            "device": near.question.cluster.device.id, "n_devices": near.question.shape.total,
            "engine": near.question.engine.name, "precision": near.question.weights.name,
            "input_len": near.question.input_len, "output_len": near.question.output_len,
            "concurrency": None if near.load.number >= 1e9 else near.load.number, "of": near.rate_kind,
            "measured": near.rate, "predicted": float(predicted(runs, c)[0]), "ttft_s": near.ttft_s,
            "tpot_s": near.tpot_s,
        }  # fmt: skip
        if len(shown) == SHOWN:
            break
    return list(shown.values())


def _distance(q: Question, asked: Load, near: RowOfTable) -> float:
    """How unlike a row is: 0 for the same run."""
    other = near.question
    size = abs(math.log(counts(q.model).active / counts(other.model).active))
    size += abs(math.log(counts(q.model).params / counts(other.model).params))
    same_family = q.cluster.device.resolved_family.kernels.name == other.cluster.device.resolved_family.kernels.name
    device = 0.0 if q.cluster.device.id == other.cluster.device.id else 0.5 if same_family else 1.5
    lengths = sum(
        abs(math.log((a + 16) / (b + 16)))
        for a, b in ((q.input_len, other.input_len), (q.output_len, other.output_len))
    )
    load_ = (
        abs(math.log(min(asked.number, 1e3) / min(max(near.load.number, 1), 1e3))) if asked.kind == "closed" else 0.5
    )
    words = (fold(q.engine.name) != fold(other.engine.name)) + 0.5 * (q.weights.name != other.weights.name)
    devices = abs(math.log(q.shape.devices / other.shape.devices))
    return 0.7 * size + device + 0.3 * lengths + 0.15 * load_ + 0.6 * words + 0.3 * devices
