"""The events of a run in time: its lives as bars over wall-clock time, saves and faults upon them.

├──start──▏▏▏▏▏──✕ fault     ├──resume──▏▏▏──● finish
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.report.folder import RunFolder, resumes, spans
from scalewright.report.page import Section
from scalewright.report.sections.health import change
from scalewright.spec.base import read_yaml
from scalewright.spec.common.formatting import counted, decimal, duration

KINDS: dict[str, dict[str, str]] = read_yaml(Path(__file__).with_name("events.yaml"))
# Told elsewhere on the page, or of no use to a reader.
HIDDEN = {
    "time", "kind", "step", "environment", "run_id", "pid", "world", "precision", "parameters", "flops_per_token",
    "peak_flops", "of", "began", "until", "peak_source", "peak_device", "breakdown_s", "memory_gib", "comm_bytes",
}  # fmt: skip
UNLISTED = ("evaluate",)  # told with the wall time
LABELS = {"peak_how": "peak"}
MOST = 400  # rows of the list; the newest are kept


@dataclass(frozen=True)
class Moment:
    """One event: where on the bar (0..1), and its line in the list."""

    at: float
    kind: str
    word: str
    colour: str
    after: str
    step: str
    details: str


def section(run: RunFolder) -> Section | None:
    timed = (event for event in run.events if isinstance(event.get("time"), (int, float)))
    events = [event for event in timed if event["kind"] not in UNLISTED]
    if not events:
        return None
    begin, end = min(e["time"] for e in events), max(e["time"] for e in events)
    length = end - begin or 1.0
    moments = [_moment(event, begin, length) for event in events]
    rows = grouped(moments)
    data = {
        "number": len(moments), "rows": rows[-MOST:], "left_out": max(len(rows) - MOST, 0),
        "ticks": [moment for moment in moments if moment.kind != "save"][-MOST:],
        "saves": [moment for moment in moments if moment.kind == "save"][-MOST:],
        "lives": [((start - begin) / length, (stop - start) / length) for start, stop in spans(events)],
        "began": _clock(begin), "ended": _clock(end), "length": duration(end - begin), "counts": _counts(events),
    }  # fmt: skip
    return Section("timeline", "What happened", "timeline.html", data)


def grouped(moments: Sequence[Moment]) -> list[Moment]:
    """The list's rows: three or more saves in a row are one."""
    rows: list[Moment] = []
    for _, same in itertools.groupby(moments, key=lambda moment: moment.kind):
        run = list(same)
        if run[0].kind == "save" and len(run) > 2:
            steps = f"{run[0].step} – {run[-1].step}"
            run = [dataclasses.replace(run[0], word=f"saved {len(run)} checkpoints", step=steps, details="")]
        rows += run
    return rows


def _moment(event: Mapping[str, Any], begin: float, length: float) -> Moment:
    kind, step = event["kind"], event.get("step")
    known = KINDS.get(kind, {})
    return Moment(
        at=(event["time"] - begin) / length, kind=kind, word=known.get("word", kind),
        colour=known.get("colour", "plain"), after=duration(event["time"] - begin),
        step=f"{step:,}" if isinstance(step, int) else "", details=", ".join(_details(event)),
    )  # fmt: skip


def _details(event: Mapping[str, Any]) -> list[str]:
    """An event in words: its message, which has its numbers in it, or else its keys."""
    message, changes = event.get("message"), event.get("changes")
    if message and isinstance(changes, Mapping) and changes:  # of which the message names the first ones
        return [f"{str(message).partition(': ')[0]}: {_detail('changes', changes)}"]
    names = ("message",) if message else event
    return [_detail(name, event[name]) for name in names if name not in HIDDEN and event.get(name) not in (None, "")]


def _detail(key: str, value: Any) -> str:
    if key == "changes" and isinstance(value, Mapping):
        return ", ".join(f"{name} {change(pair)}" for name, pair in value.items())
    if key in ("message", "error", "reason", "name"):
        return str(value)
    if key == "seconds" and isinstance(value, (int, float)):
        return f"{value:.3g} s"
    if isinstance(value, Mapping):
        return " ".join(f"{name} = {item}" for name, item in value.items())
    return f"{LABELS.get(key, key.replace('_', ' '))}: {decimal(value, 4) if isinstance(value, float) else value}"


def _counts(events: Sequence[Mapping[str, Any]]) -> list[str]:
    several = {kind: known["several"] for kind, known in KINDS.items() if "several" in known}
    counts = {kind: sum(event["kind"] == kind for event in events) for kind in several}
    counts["resume"] = len(resumes(events))
    return [counted(number, several[kind]) for kind, number in counts.items() if number]


def _clock(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
