"""The attempts of a run, from its events: each from a start or resume to its end, without the time between.

start ── save ── fault      resume ── save ── finish      resume ── finish     (nothing was left to do)
└──── a life ───────┘       └───────── a life ────────┘   └── idle: none ──┘
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

STARTS = ("start", "resume")  # the event that opens each life of a run
ENDS = ("finish", "stop", "fault")

Event = Mapping[str, Any]


def attempts(events: Sequence[Event]) -> list[list[Event]]:
    """The events of every life that did something.

    A fault that the run outlives, such as a save that failed, ends none. The notes on damaged checkpoints
    that a resume writes before its own event lie between two lives.
    """
    return [life for life in _split(events) if not _is_idle(life)]


def resumes(events: Sequence[Event]) -> list[Event]:
    """The resumes that went on with the run."""
    return [life[0] for life in attempts(events) if life[0]["kind"] == "resume"]


def spans(events: Sequence[Event]) -> list[tuple[float, float]]:
    """(begin, end) of every life, in seconds since the epoch."""
    timed = [event for event in events if isinstance(event.get("time"), (int, float))]
    return [(float(life[0]["time"]), float(life[-1]["time"])) for life in attempts(timed)]


def elapsed(events: Sequence[Event]) -> float | None:
    """Seconds that the lives took in all; None before anything happened."""
    return sum(end - begin for begin, end in spans(events)) or None


def _split(events: Sequence[Event]) -> Iterator[list[Event]]:
    life: list[Event] = []
    later: list[Event] = []  # after an end: of this life only if it turns out to have gone on
    for event in events:
        kind = event["kind"]
        if kind in STARTS:
            if life:
                yield life
            life, later = [event], []
        elif not life:
            continue
        elif life[-1]["kind"] in ENDS and kind in ENDS:
            later.append(event)
        else:
            life += [*later, event]
            later = []
    if life:
        yield life


def _is_idle(life: Sequence[Event]) -> bool:
    """A resume that ended at the step where it began, with nothing saved or changed."""
    if life[0]["kind"] != "resume" or life[-1]["kind"] not in ("finish", "stop"):
        return False
    worked = any(event["kind"] in ("save", "changed") for event in life)
    return not worked and life[-1].get("step") == life[0].get("step")
