"""The answers of `diagnose` for logs of training, and for a run of our own: the keys of its JSON.

A run of our own has its metrics (metrics.jsonl, a line a step), what it is (run.yaml), and its events (events.jsonl):
resumes, skips, and the step time that was predicted when it began.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from scalewright.diagnose.ending.ending import Ending, ending, ends_before
from scalewright.diagnose.ending.signs import DEVICE_MEMORY, FINISHED, fix
from scalewright.diagnose.logs.causes import causes
from scalewright.diagnose.logs.expected import expected, fitting, verdict
from scalewright.diagnose.logs.facts import DIMS, LAYOUT
from scalewright.diagnose.logs.forms import NAMES
from scalewright.diagnose.logs.given import EVENTS, METRICS, RUN, Given
from scalewright.diagnose.logs.lines import real
from scalewright.diagnose.logs.log import Log, read_logs
from scalewright.diagnose.logs.steps import SHOWN, Step
from scalewright.diagnose.logs.times import traced_steps, usual
from scalewright.diagnose.nccl.answer import nccl_part
from scalewright.diagnose.nccl.answer import verdicts as nccl_verdicts
from scalewright.diagnose.nccl.log import read_logs as read_nccl
from scalewright.diagnose.nccl.summary import summary
from scalewright.diagnose.verdict import Gain, Verdict
from scalewright.spec.base import read_yaml
from scalewright.spec.common.formatting import counted, short_time
from scalewright.spec.common.jsonl import lost_lines, read_jsonl
from scalewright.spec.errors import UserError

SAME = ("step_time_s", "tokens_per_s", "loss", "grad_norm", "lr", "memory_gib")


def log_answer(files: Sequence[Path], given: Given) -> dict[str, object]:
    """What the logs of one run show; raises OSError where a file can't be read, UserError for a wrong flag."""
    log = read_logs(files)
    measured = usual(log.steps, log.facts.get("mean_step_s"))
    expectation, why = expected(log, measured, given) if log.steps else (None, "")
    verdicts, more = [cause.dump() for cause in causes(log, expectation)], {}
    lives = list(Counter(step.life for step in log.steps).values())
    end = ending(log.events, log.facts.get("devices"), len(log.steps))
    if end is not None and end.kind == DEVICE_MEMORY:
        plan, absent = fitting(log, measured, given, end.needed_gib)
        fixes = [text for text in (end.fix, plan, absent) if text and not (plan and text == fix("gpu"))]
        end = replace(end, fix="; ".join(fixes))
    if end is not None and end.kind != FINISHED:
        verdicts.insert(0, Verdict(end.what, end.evidence, end.fix, gain=Gain(0.0, 0.0, 0.0)).dump())
    if log.nccl:
        run, nothing = summary(read_nccl(files)), {"gain_pct": Gain(0.0, 0.0, 0.0)._asdict()}
        verdicts += [verdict.dump() | nothing for verdict in nccl_verdicts(run)]
        more = {"nccl": nccl_part(run)}
    return {
        "kind": "log",
        "log": log_part(log) | {"ended_before": ends_before(log.events, lives[:-1])},
        "ended": None if end is None else end.dump(),
        "expected": expectation,
        "verdicts": verdicts,
        "warnings": log.notes + _missing(log, end) + [why] * bool(why) + _traced(log.steps),
        **more,
    }


def log_part(log: Log) -> dict[str, object]:
    """The steps and what the log states of the run; `measured` are medians after warm-up."""
    facts = log.facts
    return {
        "framework": log.framework, "version": facts.get("version"), "model": facts.get("model"),
        "dims": {key: facts[key] for key in DIMS if key in facts},
        "layout": {key: facts[key] for key in LAYOUT if key in facts},
        "bus_gb_per_s": facts.get("bus_gb_per_s"), "devices": facts.get("devices"), "device": facts.get("device"),
        "measured": asdict(usual(log.steps, facts.get("mean_step_s"))),
        "steps": [{key: getattr(step, key) for key in SHOWN} for step in log.steps],
        "restarts": log.restarts,
    }  # fmt: skip


def _missing(log: Log, end: Ending | None) -> list[str]:
    """For a log without steps, how far it came and which formats are known."""
    if log.steps or end is not None:
        return []
    if "bus_gb_per_s" in log.facts:
        return [f"nccl-tests: {log.facts['bus_gb_per_s']:,} GB/s of bus bandwidth, on average over its sizes"]
    known = f"known are {', '.join(NAMES)}"
    if log.facts:
        return [f"no step's line in it: the log ends before the first step, or is of another kind ({known})"]
    return [f"no line of a known trainer is in it; {known}"]


def run_answer(folder: Path) -> dict[str, Any]:
    """What a run of ours shows; raises OSError where a file can't be read."""
    events = read_jsonl(folder / EVENTS)
    log = _log(folder, events)
    expectation = _expected(events, log)
    why = [event.get("note") for event in events if event.get("kind") == "predicted"][-1:]
    because = f": {why[0]}" if why and why[0] else ""
    notes = [] if expectation else [f"the run recorded no prediction{because}"]
    return {
        "kind": "run",
        "log": log_part(log),
        "expected": expectation,
        "verdicts": [
            cause.dump() for cause in _ended(events) + [_weighed(cause, events) for cause in causes(log, expectation)]
        ],
        "warnings": log.notes + notes + _traced(log.steps),
    }


def _traced(steps: Sequence[Step]) -> list[str]:
    """A line about the steps that a profiler slowed: what they took is no fault of the run."""
    if not (times := [step.step_time_s for step in steps if step.traced and step.step_time_s is not None]):
        return []
    words = f"{short_time(min(times))} to {short_time(max(times))}" if len(times) > 1 else short_time(times[0])
    return [f"{counted(len(times), 'steps')} of {words} that a profiler recorded, or wrote its file in, aren't judged"]


def _ended(events: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """What ended the newest life, or holds it up: a rank that hung, a fault."""
    begun = max((at for at, event in enumerate(events) if event.get("kind") in ("start", "resume")), default=0)
    last = {event.get("kind"): event for event in events[begun:]}
    words = {"hang": "the rank's stack is in hangs/", "fault": "mend that and start the run again: it resumes"}
    return [
        Verdict(kind, [str(last[kind].get("message") or "no reason was noted")], fix, gain=Gain(0.0, 0.0, 0.0))
        for kind, fix in words.items()
        if kind in last and "finish" not in last
    ]


def _weighed(cause: Verdict, events: Sequence[Mapping[str, Any]]) -> Verdict:
    """A slow run's cause with the load of which the run warned at its start: that is looked at first."""
    loads = [str(event.get("message")) for event in events if event.get("kind") == "load"]
    if not loads or cause.cause not in ("slower than expected", "stalls", "periodic slow steps"):
        return cause
    line = f"the run itself warned at its start: {loads[-1]}"
    fix = f"first what the run warned of, {loads[-1].rpartition('; ')[2]}; then {cause.fix}"
    return replace(cause, evidence=[*cause.evidence, line], fix=fix)


def _log(folder: Path, events: list[dict[str, object]]) -> Log:
    rows = [row for row in read_jsonl(folder / METRICS) if row.get("kind") == "train"]
    begun = [_step(event) for event in events if event.get("kind") == "resume"]
    broken = {_step(event) for event in events if event.get("kind") == "nonfinite"}
    facts, notes, traced = _facts(folder)
    steps = []
    for row in rows:  # the first steps after a resume are warm-up again
        number = _step(row)
        step = Step(number, life=sum(at < number for at in begun), nan=1.0 if number in broken else None)
        step.traced = number in traced
        step.fill({key: value for key in SAME if (value := real(row.get(key))) is not None})
        steps.append(step)
    overflows = sum(event.get("kind") == "overflow" for event in events)
    return Log("scalewright", facts, steps, len(begun), overflows, notes=notes + lost_lines(rows, events))


def _facts(folder: Path) -> tuple[dict[str, object], list[str], set[int]]:
    try:
        run = read_yaml(folder / RUN)
    except UserError as error:
        return {}, [str(error)], traced_steps(folder, None)
    model = run.get("model") if isinstance(run, dict) else None
    parts = [run.get(key) if isinstance(run, dict) else None for key in ("layout", "data")]
    layout, data = (part if isinstance(part, dict) else {} for part in parts)
    name = model.get("name") if isinstance(model, dict) else model
    facts = {key: layout[key] for key in (*LAYOUT, "devices") if layout.get(key) is not None}
    facts |= {"seq_len": data["seq_len"]} if data.get("seq_len") else {}
    return facts | ({"model": name} if isinstance(name, str) else {}), [], traced_steps(folder, run)


def _expected(events: list[dict[str, object]], log: Log) -> dict[str, object] | None:
    """The newest prediction that has a band, beside the usual step."""
    bands = [event for event in events if event.get("kind") == "predicted" and real(event.get("p50"))]
    seconds = usual(log.steps).step_time_s
    if not bands or seconds is None:
        return None
    band = {key: value for key in ("p10", "p50", "p90") if (value := real(bands[-1].get(key))) and value > 0}
    if len(band) < 3:
        return None
    return {**band, "verdict": verdict(band, seconds), "measured_s": seconds, "compared_by": "step time", "assumed": []}


def _step(row: Mapping[str, Any]) -> int:
    value = real(row.get("step"))
    return int(value) if value is not None and math.isfinite(value) else 0
