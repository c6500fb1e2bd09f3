"""Whether a run can be trusted, before any of its numbers: diverged, skipped, spiked, stalled, hung, changed.

    events.jsonl   nonfinite spike stalled hang fault changed finish ...   ──┐
    metrics.jsonl  null losses and gradient norms, `skipped` steps         ──┴──► findings, worst first

A run whose newest losses aren't finite has diverged, whatever its last event is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalewright.diagnose.logs.lines import real
from scalewright.report.folder import STARTS, RunFolder, Table
from scalewright.report.page import Section
from scalewright.spec.common.formatting import against, counted, decimal, short_time

Severity = Literal["bad", "warn", "good"]
ORDER = {"bad": 0, "warn": 1, "good": 2}
ENDS = {"finish": ("finished", "good"), "stop": ("stopped, and saved", "warn"), "fault": ("failed", "bad")}
MOST_STEPS = 6  # steps named in a line


@dataclass(frozen=True)
class Finding:
    """One line: what happened, what it means, and how bad it is."""

    severity: Severity
    title: str
    text: str


def section(run: RunFolder) -> Section | None:
    """The findings; None before the run has done anything."""
    if not len(run.train) and not run.events:
        return None
    rows = findings(run)
    if not rows and (steps := len(run.train)):
        finite = counted(steps, "steps have a finite loss and gradient norm")
        text = f"All {finite}; none was skipped and no rank failed."
        rows = [Finding("good", "Nothing to report", text)]
    return Section("health", "Health", "health.html", {"rows": rows}) if rows else None


def status(run: RunFolder) -> tuple[str, str]:
    """How the newest life of the run ended, and its colour; divergence and hangs outweigh a finish."""
    text, kind = _ending(run)
    if _guard_stops(run):
        return "diverged, and stopped", "bad"
    if non_finite_since(run) is not None:
        return ("diverged" if kind == "good" else f"diverged, {text}"), "bad"
    if _events(run, "hang") and kind != "good" and not _after(run, "hang", STARTS):
        return f"hung, {text}" if text != "running, or killed" else "hung", "bad"
    skipped = len(skipped_steps(run))
    if kind == "good" and skipped:
        return f"{text}, {counted(skipped, 'steps')} skipped", "warn"
    return text, kind


def findings(run: RunFolder) -> list[Finding]:
    """Every finding, worst first; in the order below where equally bad."""
    results = [
        _diverged(run), _corrupt(run), _hangs(run), _skipped(run), _non_finite(run), _rising(run), _spikes(run),
        _stalls(run), *_failures(run), _changed(run), _slower(run), _load(run),
    ]  # fmt: skip
    return sorted((finding for finding in results if finding is not None), key=lambda finding: ORDER[finding.severity])


def non_finite_since(run: RunFolder) -> int | None:
    """The step from which on no loss (or gradient norm) is finite; None when the newest is."""
    train = run.train
    if not len(train):
        return None
    bad = _not_finite(train, train.has("loss") or bool(_events(run, "nonfinite")))
    bad &= ~(train.get("skipped") == 1)
    if not bad[-1]:
        return None
    good = np.flatnonzero(~bad)
    return int(train.steps[good[-1] + 1 if len(good) else 0])


def _not_finite(train: Table, has_loss: bool) -> NDArray[np.bool_]:
    """Where the loss, or the gradient norm of a run that has some, isn't finite."""
    bad = ~np.isfinite(train.get("loss")) & has_loss
    return bad | ~np.isfinite(train.get("grad_norm")) & train.has("grad_norm")


def skipped_steps(run: RunFolder) -> list[int]:
    """Steps whose update was skipped, by the metrics or the events."""
    rows = {int(step) for step in run.train.steps[run.train.get("skipped") == 1]}
    events = [event for event in _events(run, "nonfinite", "spike") if event.get("action") == "skipped"]
    return sorted(rows | {step for event in events if isinstance(step := event.get("step"), int)})


def _diverged(run: RunFolder) -> Finding | None:
    since = non_finite_since(run)
    stops, last = _guard_stops(run), run.train.last_finite("loss")
    if since is None and not stops:
        return None
    lines = [f"The loss or the gradient norm isn't finite from step {since:,} on."] if since is not None else []
    lines += [f"The run was stopped at step {_step(stops[-1])}{_place(stops[-1])}."] if stops else []
    lines += [f"The last finite loss is {decimal(last[1], 4)}, at step {last[0]:,}."] if last is not None else []
    lines += [] if stops else ["Weights saved after that are not to be used."]  # a guard has left such updates out
    return Finding("bad", "Diverged", " ".join(lines))


def _corrupt(run: RunFolder) -> Finding | None:
    if not (events := _events(run, "corrupt")):
        return None
    tensors = [entry for entry in events[-1].get("tensors") or () if isinstance(entry, Mapping)]
    parts = [f"{entry.get('of')} of {entry.get('tensor')} on ranks {entry.get('ranks')}" for entry in tensors[:3]]
    text = f"At step {_step(events[-1])} copies of the same numbers differ: {', '.join(parts)}."
    stopped = events[-1].get("action") == "stopped"
    return Finding(
        "warn" if stopped else "bad", "Silent corruption" + (", the run was stopped" if stopped else ""), text
    )


def _guard_stops(run: RunFolder) -> list[Mapping[str, Any]]:
    """The events of a guard that stopped the newest life; empty where the run went on since."""
    if _after(run, "nonfinite", STARTS):
        return []
    return [event for event in _events(run, "nonfinite") if event.get("action") == "stopped"]


def _skipped(run: RunFolder) -> Finding | None:
    if not (steps := skipped_steps(run)):
        return None
    where = next((_place(event) for event in _events(run, "nonfinite") if event.get("where")), "")
    text = f"The update of {_named(steps)} was skipped on all ranks{where and f'; first{where}'}."
    return Finding("warn", f"{counted(len(steps), 'steps')} skipped", text)


def _non_finite(run: RunFolder) -> Finding | None:
    """Values that weren't finite for a while, and whose updates were made nevertheless."""
    train, since, skipped = run.train, non_finite_since(run), set(skipped_steps(run))
    bad = _not_finite(train, train.has("loss"))
    steps = [int(s) for s in train.steps[bad] if int(s) not in skipped and (since is None or s < since)]
    if not steps:
        return None
    text = f"The loss or the gradient norm of {_named(steps)} isn't finite; later ones are."
    return Finding("warn", "Not finite for a while", text)


def _rising(run: RunFolder) -> Finding | None:
    """A loss that ends well above its best: the medians of twentieths of the run are compared."""
    loss = run.train.get("loss")
    finite = np.isfinite(loss)
    steps, values = run.train.steps[finite], loss[finite]
    if len(values) < 100:
        return None
    size = len(values) // 20
    medians = [float(np.median(values[start : start + size])) for start in range(0, len(values) - size + 1, size)]
    best = int(np.argmin(medians))
    if medians[-1] <= max(1.15 * medians[best], medians[best] + 0.3):
        return None
    text = f"From about {decimal(medians[best], 4)} around step {steps[best * size + size // 2]:,.0f}"
    return Finding("warn", "The loss rose again", f"{text} to about {decimal(medians[-1], 4)} at the end.")


def _spikes(run: RunFolder) -> Finding | None:
    if not (events := _events(run, "spike")):
        return None
    largest = max(events, key=lambda event: real(event.get("z")) or 0.0)
    value, usual = real(largest.get("value")), real(largest.get("usual"))
    what = "gradient norm" if largest.get("of") == "grad_norm" else "loss"
    text = f"The largest is at step {_step(largest)}: {what} {decimal(value, 4)}"
    text += f", usually {decimal(usual, 4)}" if usual is not None else ""
    actions = dict.fromkeys(str(event.get("action")) for event in events if event.get("action"))
    text += f" ({', '.join(actions)})." if actions else "."
    text += _rewinds(events)
    return Finding("warn", counted(len(events), "spikes"), text)


def _rewinds(events: Sequence[Mapping[str, Any]]) -> str:
    """The samples that rewinds left out, ranges that touch joined; empty without any."""
    pairs = [event.get("left_out") for event in events if event.get("action") == "rewound"]
    lists = [pair for pair in pairs if isinstance(pair, list) and len(pair) == 2]
    ranges = sorted((pair[0], pair[1]) for pair in lists if all(isinstance(number, int) for number in pair))
    joined: list[list[int]] = []
    for first, end in ranges:
        if joined and first <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([first, end])
    if not joined:
        return ""
    shown = ", ".join(f"{first:,} to {end - 1:,}" for first, end in joined[:MOST_STEPS])
    more = f" and {len(joined) - MOST_STEPS:,} ranges more" if len(joined) > MOST_STEPS else ""
    return f" The run was rewound {counted(len(ranges), 'times')}; it was trained without samples {shown}{more}."


def _stalls(run: RunFolder) -> Finding | None:
    if not (events := _events(run, "stalled")):
        return None
    by_step = {_step(event): event for event in events}  # a heartbeat repeats: the longest counts
    longest = max(by_step.values(), key=lambda event: real(event.get("seconds")) or 0.0)
    seconds, usual = real(longest.get("seconds")), real(longest.get("usual_s"))
    text = f"The longest: step {_step(longest)} took over {short_time(seconds)}"
    text += f", usually {short_time(usual)}." if usual else "."
    return Finding("warn", f"Stalled {counted(len(by_step), 'times')}", text)


def _hangs(run: RunFolder) -> Finding | None:
    if not (events := _events(run, "hang")):
        return None
    hang = events[-1]
    call = " ".join(str(hang[key]) for key in ("collective", "number") if hang.get(key) is not None)
    text = f"Rank {hang.get('rank', '?')} did not reach {call or 'a collective'}"
    text += f" of {hang['axis']}" if hang.get("axis") else ""
    text += f", at {hang['where']}" if hang.get("where") else ""
    gone = _after(run, "hang", (*STARTS, "finish"))
    return Finding("warn" if gone else "bad", "A rank hung" + (", the run went on later" if gone else ""), text + ".")


def _failures(run: RunFolder) -> list[Finding]:
    """The fault that ended the newest life, and those that the run outlived."""
    faults, ended = _events(run, "fault"), _ending(run)[1] == "bad"
    survived = faults[:-1] if ended else faults
    failed = [Finding("bad", "Failed", _message(faults[-1]))] if ended else []
    if not survived:
        return failed
    title = f"{counted(len(survived), 'failures')}, resumed"
    return [*failed, Finding("warn", title, _message(survived[-1]))]


def _slower(run: RunFolder) -> Finding | None:
    """A median step beyond the prediction's p90."""
    predicted, seconds = run.newest("predicted"), run.train.get("step_time_s")[run.warm()]
    p50, p90 = real(predicted.get("p50")), real(predicted.get("p90"))
    median = float(np.median(seconds[np.isfinite(seconds)])) if np.isfinite(seconds).any() else 0.0
    if not p50 or not p90 or median <= p90:
        return None
    text = f"The median step takes {short_time(median)}, {against(median, p50)} against the predicted {short_time(p50)}"
    return Finding("warn", "Slower than predicted", f"{text}, beyond its p90 of {short_time(p90)}.")


def _load(run: RunFolder) -> Finding | None:
    events = _events(run, "load")
    return Finding("warn", "Cores were short at the start", _message(events[-1])) if events else None


def _changed(run: RunFolder) -> Finding | None:
    lines = []
    for event in _events(run, "changed"):
        if isinstance(changes := event.get("changes"), Mapping) and changes:
            pairs = ", ".join(f"{key} {change(pair)}" for key, pair in changes.items())
            lines.append(f"at step {_step(event)}: {pairs}")
    text = "; ".join(lines)
    return Finding("warn", "Resumed with changes", f"{text[:1].upper()}{text[1:]}.") if lines else None


def _ending(run: RunFolder) -> tuple[str, str]:
    """The last event that ends or opens a life; a fault with a life after it was survived."""
    for event in reversed(run.events):
        if event["kind"] in ENDS:
            return ENDS[event["kind"]]
        if event["kind"] in STARTS:
            return "running, or killed", "warn"
    return ("no events", "plain") if len(run.train) else ("not started", "plain")


def _events(run: RunFolder, *kinds: str) -> list[Mapping[str, Any]]:
    return [event for event in run.events if event["kind"] in kinds]


def _after(run: RunFolder, kind: str, later: Sequence[str]) -> bool:
    """Whether one of the `later` kinds follows the last event of `kind`."""
    kinds = [event["kind"] for event in run.events]
    return kind in kinds and any(name in later for name in kinds[len(kinds) - kinds[::-1].index(kind) :])


def _step(event: Mapping[str, Any]) -> str:
    """Its step with thousands separated; a question mark where the file holds no number there."""
    step = event.get("step")
    return f"{step:,}" if isinstance(step, int) and not isinstance(step, bool) else "?"


def _place(event: Mapping[str, Any]) -> str:
    """` in layers.3.mlp (rank 2)`; empty where the event names neither."""
    where, rank = event.get("where"), event.get("rank")
    return (f" in {where}" if where else "") + (f" (rank {rank})" if rank is not None else "")


def _message(event: Mapping[str, Any]) -> str:
    text = next((str(event[key]) for key in ("message", "error", "reason") if event.get(key)), "No reason was noted")
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


def change(pair: Any) -> str:
    values = pair if isinstance(pair, (list, tuple)) else [pair]
    return " → ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def _named(steps: Sequence[int]) -> str:
    """`step 3`, `steps 3, 4, 9 and 12 more`."""
    shown = ", ".join(f"{step:,}" for step in steps[:MOST_STEPS])
    more = f" and {len(steps) - MOST_STEPS:,} more" if len(steps) > MOST_STEPS else ""
    return f"step{'' if len(steps) == 1 else 's'} {shown}{more}"
