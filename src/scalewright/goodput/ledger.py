"""Where the wall time of a run went, by its folder: every second of all attempts, in one of ten parts.

    events.jsonl    start ... save ... evaluate ... fault │ resume, lost ... finish    wall clock; seconds of each
    metrics.jsonl   step_time_s, breakdown_s.data of each step that counted            work that was done once

    time  │ attempt 1: begins ─ opened ─ steps, saves ─ last sign │ found │ attempt 2: begins ─ opened ─ steps ...
            └── restart, load ──┘└── inside ───────────────────────┘└detect┘└restart┘ └── restart, load ──┘

productive   steps that count: less their wait for data, and what an attempt's first steps took longer than usual
save_stall   saves, as long as they stop the run            evaluate    validations
lost_work    steps that a later attempt did again           data_wait   of the steps that count
detect       the last sign of an attempt to the fault that was noted, or where nobody noted one to the next begin
restart      that fault to the next command's begin, and from a command's begin to its record, but for
load         reading the checkpoint                         compile     the first steps' excess
idle         after a stop that was asked for, and inside an attempt what is none of these (tracing, closing)

In folders of older releases, whose events lack `began`, `lost` and `evaluate`, what lies between two attempts is a
restart, and lost steps are counted by their number; the answer says so. The same shares in a simulation's five words
(`lost_s`): restart there is load and compile, too; other is data, validation and idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.errors import UserError

Event = Mapping[str, Any]
BEGINS = ("start", "resume")
ENDS = ("fault", "stop", "finish", "regroup")
BROKEN = ("fault", "regroup")  # of these, what isn't asked for
AFTER = ("tracker", "restart", "back")  # what others may write after an attempt's end
NO_SIGN = (*AFTER, "stalled", "hang")  # what isn't the run's own progress
PARTS = ("productive", "save_stall", "lost_work", "detect", "restart", "load", "data_wait", "compile", "evaluate",
         "idle")  # fmt: skip
IN_SIMULATION = {
    "save": ("save_stall",), "work": ("lost_work",), "detect": ("detect",), "restart": ("restart", "load", "compile"),
    "other": ("data_wait", "evaluate", "idle"),
}  # fmt: skip
COLD = 3  # first steps of an attempt, which set up memory and kernels, and compile


class Segment(NamedTuple):
    """A stretch of the run's life, in seconds from its beginning; `part` is one of PARTS."""

    part: str
    begin: float
    end: float


@dataclass(frozen=True)
class Attempt:
    """One command that worked on the run: from its begin to its last sign, in seconds from the run's beginning."""

    begin: float
    end: float
    first: int  # the step that it went on from
    last: int  # the last that is known of it
    ended: str  # finish | stop | fault | unknown | running
    segments: tuple[Segment, ...] = ()  # with what lies between it and the next


@dataclass(frozen=True)
class Ledger:
    """A run's time in seconds, by what took it; `notes` has what the folder doesn't tell."""

    wall_s: float
    seconds: Mapping[str, float]  # PARTS; together wall_s
    stops: int
    saves: Sequence[float]  # seconds of each
    step_s: float | None  # median
    devices: int | None
    notes: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()

    @property
    def work_s(self) -> float:
        """Seconds of steps that count, with their wait for data where that isn't told apart."""
        return self.seconds["productive"]

    @property
    def lost_s(self) -> dict[str, float]:
        """The rest in a simulation's words."""
        return {name: sum(self.seconds[part] for part in parts) for name, parts in IN_SIMULATION.items()}

    def dump(self) -> dict[str, object]:
        """The keys of `ledger` in `goodput --json`."""
        wall = max(self.wall_s, 1e-9)
        return {
            "goodput": self.work_s / wall, "wall_s": self.wall_s, "work_s": self.work_s, "failures": self.stops,
            "lost": {name: seconds / wall for name, seconds in self.lost_s.items()}, "saves": len(self.saves),
            "save_s": median(self.saves) if self.saves else None, "step_time_s": self.step_s,
            "devices": self.devices, "notes": list(self.notes), "seconds": dict(self.seconds),
            "attempts": [{**vars(a), "segments": [list(segment) for segment in a.segments]} for a in self.attempts],
        }  # fmt: skip


@dataclass
class _Life:
    """An attempt by its events; times are those of the events."""

    events: list[Event]
    began: float | None  # when its command did
    opened: float = field(init=False)
    signs: float = field(init=False)  # the last event of its own
    end: Event | None = field(init=False)

    def __post_init__(self) -> None:
        self.opened = float(self.events[0]["time"])
        last = next(event for event in reversed(self.events) if event.get("kind") not in AFTER)
        self.end = last if last.get("kind") in ENDS else None
        ended = self.end is not None and self.end["kind"] == "fault"
        own = [event for event in self.events if event.get("kind") not in NO_SIGN and not (ended and event is last)]
        self.signs = max(float(event["time"]) for event in own)

    @property
    def born(self) -> float:
        return self.opened if self.began is None else min(self.began, self.opened)

    @property
    def first(self) -> int:
        return _step(self.events[0])

    def all(self, kind: str) -> Iterator[Event]:
        return (event for event in self.events if event.get("kind") == kind)

    def resumed(self) -> Event | None:
        """What it had to do again when it was opened, and the last sign before that; None in older folders."""
        return next((event for event in self.all("lost") if "until" in event), None)

    def rewound(self) -> list[Event]:
        """The same of each time that it went back by itself."""
        first = self.resumed()
        return [event for event in self.all("lost") if event is not first]


def read_ledger(folder: Path, asynchronous: bool = False) -> Ledger:
    """The ledger of a run's folder. Raises UserError where its events don't tell a start and a later moment.

    `asynchronous`: of an older release, whose saves' seconds are then those until they were written.
    """
    if not folder.is_dir():
        raise UserError("no such run folder", str(folder), "give the out_dir of a run")
    events = [event for event in read_jsonl(folder / "events.jsonl") if _number(event.get("time")) is not None]
    events.sort(key=lambda event: float(event["time"]))
    first = next((at for at, event in enumerate(events) if event.get("kind") in BEGINS), None)
    if first is None:
        how = "give a folder that `scalewright train` wrote, or --devices N to simulate one"
        raise UserError("events.jsonl has no start of a run", str(folder), how)
    lives = _lives(events[first:])
    rows = _rows(folder)
    if not rows:
        raise UserError("the run has no steps yet", str(folder), "look again once metrics.jsonl has some")
    return _account(lives, rows, asynchronous)


def _account(lives: Sequence[_Life], rows: Mapping[int, tuple[float, float]], asynchronous: bool) -> Ledger:
    usual = median(seconds for seconds, _ in rows.values())
    totals, notes = dict.fromkeys(PARTS, 0.0), list[str]()
    saves = [
        save for life in lives for event in life.all("save") if (save := _number(event.get("seconds"))) is not None
    ]
    of_old = asynchronous and not any("written_s" in event for life in lives for event in life.all("save"))
    if of_old:
        notes.append("saves were asynchronous: what they stopped of the run is in idle")
    for life, later in pairwise(lives):
        _between(life, later, totals, notes)
    totals["save_stall"] = 0.0 if of_old else sum(saves)
    totals["evaluate"] = sum(_number(event.get("seconds")) or 0.0 for life in lives for event in life.all("evaluate"))
    totals["lost_work"] += sum(_lost(life, later, usual) for life, later in pairwise(lives))
    totals["lost_work"] += sum(_number(e.get("seconds")) or 0.0 for life in lives for e in life.rewound())
    for life in lives:
        load = min(_number(life.events[0].get("load_s")) or 0.0, life.opened - life.born)
        totals["load"] += load
        totals["restart"] += life.opened - life.born - load
    work = sum(seconds for seconds, _ in rows.values())
    totals["data_wait"] = sum(data for _, data in rows.values())
    cold = {life.first + step for life in lives for step in range(1, COLD + 1)}
    warm = median(seconds - data for seconds, data in rows.values())
    totals["compile"] = sum(max(seconds - data - warm, 0.0) for at, (seconds, data) in rows.items() if at in cold)
    totals["productive"] = work - totals["data_wait"] - totals["compile"]
    begin, end = lives[0].born, max(float(lives[-1].events[-1]["time"]), lives[-1].signs)
    if lives[-1].end is None:  # it goes on: its steps since the last event count, too
        since = max((_step(event) for event in lives[-1].events), default=0)
        end += sum(seconds for at, (seconds, _) in rows.items() if at > since)
    wall = end - begin
    if wall <= 0:
        raise UserError("the run has no steps yet", "events.jsonl", "look again once metrics.jsonl has some")
    rest = wall - sum(totals.values())
    if (warming := min(sum(_old_warm_up(life, usual) for life in lives[1:]), rest)) > 0:
        totals["restart"] += warming
        rest -= warming
    totals["idle"] += max(rest, 0.0)
    if (scale := min(1.0, wall / sum(totals.values()))) < 0.999:
        notes.append("steps and saves add up to more than the time between the first event and the last")
    totals = {name: seconds * scale for name, seconds in totals.items()}
    world = next((e["world"] for life in reversed(lives) for e in life.events if type(e.get("world")) is int), None)
    stops = sum(life.end is None or life.end["kind"] == "fault" for life in lives[:-1])
    stops += lives[-1].end is not None and lives[-1].end["kind"] == "fault"
    attempts = tuple(_attempt(life, later, begin, end) for life, later in zip(lives, [*lives[1:], None], strict=True))
    return Ledger(wall, totals, stops, saves, usual, world, tuple(notes), attempts)


def _between(life: _Life, later: _Life, totals: dict[str, float], notes: list[str]) -> None:
    """The time from an attempt's last sign to the next one's begin."""
    until = _until(life, later)
    gap = later.born - until
    if later.began is None:
        totals["restart"] += later.opened - (until if life.end is None else float(life.end["time"]))
        if life.end is None:
            step = max(_step(event) for event in life.events)
            notes.append(f"an attempt that ended after step {step} wrote no reason: its last steps count as restart")
    elif life.end is None:
        totals["detect"] += max(gap, 0.0)
    elif life.end["kind"] in BROKEN:
        noted = max(float(life.end["time"]) - until, 0.0)
        totals["detect"] += min(noted, max(gap, 0.0))
        totals["restart"] += max(gap - noted, 0.0)
    else:
        totals["idle"] += max(gap, 0.0)


def _until(life: _Life, later: _Life | None) -> float:
    """The last sign of an attempt: an event of its own, or its last line in metrics.jsonl, as the next one saw it."""
    if life.end is not None and life.end["kind"] != "fault":
        return float(life.end["time"])
    event = later.resumed() if later is not None else None
    seen = _number(event.get("until")) if event is not None else None
    if seen is None:
        return float(life.end["time"]) if life.end is not None else life.signs
    latest = later.born if later is not None else seen
    return min(max(life.signs, seen), latest)


def _lost(life: _Life, later: _Life, usual: float) -> float:
    """Seconds of steps that the later attempt does again."""
    event = later.resumed()
    if event is not None and (seconds := _number(event.get("seconds"))) is not None:
        return seconds
    return max(max(map(_step, life.events)) - later.first, 0) * usual


def _attempt(life: _Life, later: _Life | None, zero: float, end: float) -> Attempt:
    """An attempt with its stretches in order of time; waits for data and first steps are among the steps here."""
    until = _until(life, later) if later is not None else end
    load = min(_number(life.events[0].get("load_s")) or 0.0, life.opened - life.born)
    stretches = [Segment("restart", life.born, life.opened - load), Segment("load", life.opened - load, life.opened)]
    kept = max([_stood(e) for e in life.all("save") if later and _step(e) <= later.first], default=life.opened)
    at = life.opened
    for event in sorted([*life.all("save"), *life.all("evaluate")], key=_stood):
        stop = min(_stood(event), until)
        begin = max(stop - (_number(event.get("seconds")) or 0.0), at)
        stretches += _steps(at, begin, kept if later is not None else until)
        stretches.append(Segment("save_stall" if event["kind"] == "save" else "evaluate", begin, stop))
        at = stop
    saved = life.end is not None and life.end["kind"] != "fault"
    stretches += _steps(at, until, kept if later is not None and not saved else until)
    if later is not None:
        noted = float(life.end["time"]) if life.end is not None else later.born
        found = min(max(noted, until), later.born)
        broken = not saved or (life.end is not None and life.end["kind"] in BROKEN)
        after = ("detect", "restart") if broken else ("idle", "idle")
        stretches += [Segment(after[0], until, found), Segment(after[1], found, later.born)]
    placed = tuple(Segment(part, a - zero, b - zero) for part, a, b in stretches if b > a)
    steps = [_step(event) for event in life.events]
    ended = "unknown" if life.end is None and later is not None else "running" if life.end is None else life.end["kind"]
    return Attempt(life.born - zero, until - zero, life.first, max(steps), str(ended), placed)


def _stood(event: Event) -> float:
    """When a save or a validation let the run go on: its event may come later, when it is written."""
    written = _number(event.get("written_s"))
    stall = _number(event.get("seconds")) or 0.0
    return float(event["time"]) - (max(written - stall, 0.0) if written is not None else 0.0)


def _steps(begin: float, end: float, kept: float) -> list[Segment]:
    """Steps between two moments: until `kept` they count, and after it they are done again."""
    middle = min(max(kept, begin), end)
    return [Segment("productive", begin, middle), Segment("lost_work", middle, end)]


def _rows(folder: Path) -> dict[int, tuple[float, float]]:
    """(seconds, of them waiting for data) of each step that counted, by its last line."""
    found = {}
    for row in read_jsonl(folder / "metrics.jsonl"):
        step, seconds, parts = row.get("step"), _number(row.get("step_time_s")), row.get("breakdown_s")
        if row.get("kind") == "train" and type(step) is int and seconds is not None and seconds >= 0:
            data = _number(parts.get("data")) if isinstance(parts, Mapping) else None
            found[step] = seconds, min(max(data or 0.0, 0.0), seconds)
    return found


def _lives(events: Sequence[Event]) -> list[_Life]:
    """The attempts. What one wrote after its command's begin and before it was opened are its own notes."""
    lives: list[list[Event]] = []
    for event in events:
        if event.get("kind") in BEGINS:
            lives.append([])
        lives[-1].append(event)
    begun = [_number(life[0].get("began")) for life in lives]
    cuts = [*begun[1:], None]
    return [
        _Life([event for event in life if cut is None or event is life[0] or float(event["time"]) < cut], began)
        for life, began, cut in zip(lives, begun, cuts, strict=True)
    ]


def _old_warm_up(life: _Life, usual: float) -> float:
    """Seconds from an attempt's record to the end of its first step, less a step, where only its events tell it."""
    measured = next((event for event in life.events if event.get("kind") in ("measured", "save")), None)
    if measured is None or life.began is not None:
        return 0.0
    return max(float(measured["time"]) - life.opened - (_step(measured) - life.first) * usual, 0.0)


def _step(event: Event) -> int:
    step = event.get("step")
    return step if type(step) is int else 0


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
