"""Hugging Face's `trainer_state.json`: a document with the steps under `log_history`.

    {"global_step": 240, "log_history": [{"step": 5, "loss": 2.09, "grad_norm": 1.95, ...}, ...]}

The last entry is the run's summary, and evaluations stand between the steps: neither has a `loss`.
"""

from __future__ import annotations

import math
from pathlib import Path

from scalewright.diagnose.logs.facts import Facts
from scalewright.diagnose.logs.steps import Step, Steps
from scalewright.diagnose.logs.values import real
from scalewright.diagnose.traces.unpack import Unpacked
from scalewright.spec.common.untrusted import JSON_BYTES, parse_json

HISTORY = b'"log_history"'
RATE = "train_steps_per_second"  # of the summary
KEYS = {"step": "step", "loss": "loss", "grad_norm": "grad_norm", "learning_rate": "lr", "epoch": "epoch"}
START = 1 << 16  # bytes: its keys are sorted, and few stand before `log_history`


def is_trainer_state(start: bytes) -> bool:
    """Whether the first bytes of a file are those of a trainer_state.json."""
    return start.lstrip()[:1] == b"{" and HISTORY in start


def read_trainer_state(path: Path) -> tuple[list[Step], Facts, list[str]] | None:
    """Steps, facts and notes; None where the file is something else."""
    content = b""
    for piece in Unpacked(path):
        content += piece
        if not is_trainer_state(content[:START]) or len(content) > JSON_BYTES:
            return None
    try:
        document = parse_json(content)
    except ValueError:
        return [], {}, ["it is no whole JSON: the file was cut off or damaged"]
    history = document.get("log_history") if isinstance(document, dict) else None
    if not isinstance(history, list):
        return None
    steps = Steps()
    for entry in history:
        if isinstance(entry, dict) and "loss" in entry:
            values = {ours: real(entry.get(key)) for key, ours in KEYS.items()}
            known = {key: value for key, value in values.items() if value is not None}
            steps.add(known if math.isfinite(known.get("step", 0)) else {"loss": known.get("loss", math.nan)})
    facts: Facts = {}
    if isinstance(batch := document.get("train_batch_size"), int):
        facts["micro_batch"] = batch
    rates = [real(entry[RATE]) for entry in history if isinstance(entry, dict) and RATE in entry]
    if rates and (rate := rates[-1] or 0.0) > 0:
        facts["mean_step_s"] = 1 / rate
    return steps.all, facts, []
