"""The answer of `diagnose` for logs of training: the keys of its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scalewright.diagnose.logs.causes import causes
from scalewright.diagnose.logs.expected import Given, expected
from scalewright.diagnose.logs.facts import DIMS, LAYOUT
from scalewright.diagnose.logs.forms import NAMES
from scalewright.diagnose.logs.log import Log, stated
from scalewright.diagnose.logs.several import read_logs
from scalewright.diagnose.logs.steps import SHOWN
from scalewright.diagnose.logs.times import usual
from scalewright.diagnose.nccl.answer import nccl_part
from scalewright.diagnose.nccl.log import read_logs as read_nccl
from scalewright.diagnose.nccl.rules import verdicts as nccl_verdicts
from scalewright.diagnose.nccl.summary import summary


def log_answer(files: Sequence[Path], given: Given) -> dict[str, Any]:
    """What the logs of one run show.

    Raises OSError where a file can't be read, UserError for a wrong flag.
    """
    log = read_logs(files)
    measured = usual(log.steps, log.facts.get("mean_step_s"))
    expectation, why = expected(log, measured, given) if log.steps else (None, "")
    answer: dict[str, Any] = {
        "kind": "log",
        "log": log_part(log),
        "expected": expectation,
        "verdicts": [cause.dump() for cause in causes(log, expectation)],
        "warnings": log.notes + _missing(log) + [why] * bool(why),
    }
    if log.nccl:
        run = summary(read_nccl(files))
        answer["nccl"] = nccl_part(run)
        zero = {"p10": 0.0, "p50": 0.0, "p90": 0.0}
        answer["verdicts"] += [{**verdict.dump(), "gain_pct": zero} for verdict in nccl_verdicts(run)]
    return answer


def log_part(log: Log) -> dict[str, Any]:
    """The steps and what the log states of the run; `measured` are medians after warm-up."""
    return {
        "framework": log.framework,
        "version": log.facts.get("version"),
        "model": log.facts.get("model"),
        "dims": stated(log.facts, DIMS),
        "layout": stated(log.facts, LAYOUT),
        "devices": log.facts.get("devices"),
        "device": log.facts.get("device"),
        "measured": asdict(usual(log.steps, log.facts.get("mean_step_s"))),
        "steps": [{key: getattr(step, key) for key in SHOWN} for step in log.steps],
        "restarts": log.restarts,
    }


def _missing(log: Log) -> list[str]:
    """For a log without steps, how far it came and which formats are known."""
    if log.steps:
        return []
    known = f"known are {', '.join(NAMES)}"
    if log.facts:
        return [f"no step's line in it: the log ends before the first step, or is of another kind ({known})"]
    return [f"no line of a known trainer is in it; {known}"]
