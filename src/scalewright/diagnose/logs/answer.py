"""The answers of `diagnose` for logs of training, and for a run of our own: the keys of its JSON.

A run of our own has its metrics and events, beside the step time that was predicted when it began.

metrics.jsonl   a line a step, each once      events.jsonl   predicted, resumes, skips
run.yaml        model, layout, data
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scalewright.diagnose.logs.causes import causes
from scalewright.diagnose.logs.expected import Given, expected, verdict
from scalewright.diagnose.logs.facts import DIMS, LAYOUT
from scalewright.diagnose.logs.forms import NAMES
from scalewright.diagnose.logs.lines import real
from scalewright.diagnose.logs.log import Log, read_logs, stated
from scalewright.diagnose.logs.steps import SHOWN, Step
from scalewright.diagnose.logs.times import usual
from scalewright.diagnose.nccl.answer import nccl_part
from scalewright.diagnose.nccl.answer import verdicts as nccl_verdicts
from scalewright.diagnose.nccl.log import read_logs as read_nccl
from scalewright.diagnose.nccl.summary import summary
from scalewright.spec.base import read_yaml
from scalewright.spec.common.jsonl import lost_lines, read_jsonl
from scalewright.spec.errors import UserError

METRICS, EVENTS, RUN = "metrics.jsonl", "events.jsonl", "run.yaml"
SAME = ("step_time_s", "tokens_per_s", "loss", "grad_norm", "lr", "memory_gib")


def log_answer(files: Sequence[Path], given: Given) -> dict[str, object]:
    """What the logs of one run show.

    Raises OSError where a file can't be read, UserError for a wrong flag.
    """
    log = read_logs(files)
    measured = usual(log.steps, log.facts.get("mean_step_s"))
    expectation, why = expected(log, measured, given) if log.steps else (None, "")
    verdicts = [cause.dump() for cause in causes(log, expectation)]
    answer: dict[str, object] = {
        "kind": "log",
        "log": log_part(log),
        "expected": expectation,
        "verdicts": verdicts,
        "warnings": log.notes + _missing(log) + [why] * bool(why),
    }
    if log.nccl:
        run = summary(read_nccl(files))
        answer["nccl"] = nccl_part(run)
        zero = {"p10": 0.0, "p50": 0.0, "p90": 0.0}
        verdicts += [{**verdict.dump(), "gain_pct": zero} for verdict in nccl_verdicts(run)]
    return answer


def log_part(log: Log) -> dict[str, object]:
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


def is_run_folder(path: Path) -> bool:
    """Whether a folder is one that `train` wrote."""
    return path.is_dir() and (path / METRICS).is_file() and (path / RUN).is_file()


def run_answer(folder: Path) -> dict[str, object]:
    """What a run of ours shows; raises OSError where a file can't be read."""
    events = read_jsonl(folder / EVENTS)
    log = _log(folder, events)
    expectation = _expected(events, log)
    notes = [] if expectation else ["the run recorded no prediction" + _why(events)]
    return {
        "kind": "run",
        "log": log_part(log),
        "expected": expectation,
        "verdicts": [cause.dump() for cause in causes(log, expectation)],
        "warnings": log.notes + notes,
    }


def _log(folder: Path, events: list[dict[str, object]]) -> Log:
    rows = [row for row in read_jsonl(folder / METRICS) if row.get("kind") == "train"]
    lost = lost_lines(rows, events)
    begun = [_step(event) for event in events if event.get("kind") == "resume"]
    broken = {_step(event) for event in events if event.get("kind") == "nonfinite"}
    steps = [_row(row, begun, broken) for row in rows]
    facts, notes = _facts(folder / RUN)
    overflows = sum(event.get("kind") == "overflow" for event in events)
    return Log("scalewright", facts, steps, len(begun), overflows, notes=notes + lost)


def _row(row: Mapping[str, Any], begun: list[int], broken: set[int]) -> Step:
    """A line of metrics.jsonl; the first steps after a resume are warm-up again."""
    number = _step(row)
    step = Step(number, life=sum(at < number for at in begun))
    step.fill({key: value for key in SAME if (value := real(row.get(key))) is not None})
    if number in broken:
        step.nan = 1.0
    return step


def _facts(path: Path) -> tuple[dict[str, object], list[str]]:
    try:
        run = read_yaml(path)
    except UserError as error:
        return {}, [str(error)]
    run = run if isinstance(run, dict) else {}
    layout, data, model = (run.get(key) for key in ("layout", "data", "model"))
    layout = layout if isinstance(layout, dict) else {}
    data = data if isinstance(data, dict) else {}
    name = model.get("name") if isinstance(model, dict) else model
    facts = {key: layout[key] for key in (*LAYOUT, "devices") if layout.get(key) is not None}
    facts |= {"seq_len": data["seq_len"]} if data.get("seq_len") else {}
    return facts | ({"model": name} if isinstance(name, str) else {}), []


def _expected(events: list[dict[str, object]], log: Log) -> dict[str, object] | None:
    """The newest prediction that has a band, beside the usual step."""
    bands = [event for event in events if event.get("kind") == "predicted" and real(event.get("p50"))]
    measured = usual(log.steps)
    if not bands or measured.step_time_s is None:
        return None
    band = {key: value for key in ("p10", "p50", "p90") if (value := real(bands[-1].get(key))) and value > 0}
    if len(band) < 3:
        return None
    return {**band, "verdict": verdict(band, measured.step_time_s), "measured_s": measured.step_time_s,
            "compared_by": "step time", "assumed": []}  # fmt: skip


def _why(events: list[dict[str, object]]) -> str:
    notes = [event.get("note") for event in events if event.get("kind") == "predicted"]
    return f": {notes[-1]}" if notes and notes[-1] else ""


def _step(row: Mapping[str, Any]) -> int:
    value = real(row.get("step"))
    return int(value) if value is not None and math.isfinite(value) else 0
