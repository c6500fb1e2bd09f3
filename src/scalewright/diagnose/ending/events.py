"""What the lines of a job's output tell of its end, in order: signs, exceptions with the place that raised them.

[rank3]: Traceback (most recent call last):            an event "raised", of rank 3,
[rank3]:   File "train.py", line 12, in step           at train.py:12, in step
[rank3]: ValueError: a batch is empty                  with its type and its words

Ranks are told apart by what stands before a line, by its own words, or by the file's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scalewright.diagnose.ending.signs import CAUSE, CONSEQUENCE, RAISED, Sign, marks, sign_of
from scalewright.diagnose.logs.lines import MarkedLines, clock

EXCEPTION = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.){0,6}[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Failure|NotFound))"
    r"(?:: (?P<words>.*))?$"
)
FRAME = re.compile(r'^ {2,8}File "(?P<path>[^"]{1,300})", line (?P<line>\d{1,7}), in (?P<name>\S{1,120})')
TRACEBACK = "Traceback (most recent call last)"
PREFIX = re.compile(
    r"^(?:\[(?:rank|default|RANK)_?(?P<a>\d{1,6})\]:? ?|(?P<b>\d{1,6}): ?|\[\d{1,6},(?P<c>\d{1,6})\]<std\w{3}>: ?)"
)
# A failure that torch's agent, or mpirun, lists: some lines about one process.
SUMMARY = re.compile(
    r"^ +(?:host +: (?P<host>[\w.-]+)|rank +: (?P<rank>\d+) \(local_rank: \d+\)|Process name: \[\[\d+,\d+\],(?P<mpi>\d+)\])\s*$"
)
IN_FILE = re.compile(r"(?:rank|RANK|task)[-_]?(\d{1,6})|[-_.](\d{1,6})\.(?:err|out|log)$|/(\d{1,4})/std(?:err|out)")
GLOG = re.compile(r"\[[EWIF]\d{3,4} (\d\d):(\d\d):(\d\d\.\d+)")
HOST = re.compile(r"^([A-Za-z][\w.-]{0,60}):(?:\d+:\d+)? ?\[\d+\] ")
# Exceptions of libraries that only report what another rank, or the launcher, did.
NOTICED = (
    "ChildFailedError",
    "SignalException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "KeyboardInterrupt",
)
RAISES = ("Error", "Exception", "Interrupt", "Exit", "Timeout", "Failure", "NotFound")
KEPT = 4000  # events of a file: a log that repeats one for gigabytes
WORDS = 300


@dataclass(frozen=True)
class Event:
    """One thing that a line tells; `order` counts lines that tell something."""

    name: str
    kind: str
    grade: str
    order: int
    text: str
    rank: int | None = None
    host: str | None = None
    seconds: float | None = None  # by a date, or by a time of day
    fix: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    place: str = ""  # of an exception: file:line, in function
    file: str = ""


@dataclass
class Traceback:
    """One that isn't complete yet: the innermost place so far."""

    place: str = ""


def events(files: Sequence[Path]) -> list[Event]:
    """All of some files; raises OSError where one can't be read."""
    return [event for path in files for event in file_events(path)]


def file_events(path: Path) -> Iterator[Event]:
    """Those of one file, in its order."""
    open_: dict[str, Traceback] = {}
    summary: dict[str, str] = {}  # of the failure that torch's agent lists
    named = IN_FILE.search(path.name)
    rank_of_file = int(next(group for group in named.groups() if group)) if named else None
    count = 0
    for order, line in enumerate(
        MarkedLines(path, [*marks(), TRACEBACK, '  File "', "(local_rank:", "host      :", "Process name:", *RAISES])
    ):
        whole = line.source + line.text
        rank, text = _rank(whole)
        rank = rank_of_file if rank is None else rank
        source = line.source or str(rank)
        if listed := SUMMARY.match(text):
            summary |= {key: value for key, value in listed.groupdict().items() if value}
            continue
        if TRACEBACK in text:
            open_[source] = Traceback()
            continue
        if frame := FRAME.match(text):
            if source in open_ and "site-packages" not in frame["path"]:
                open_[source].place = f"{frame['path']}:{frame['line']}, in {frame['name']}"
            continue
        event = _event(text, order, rank, open_.get(source), path)
        stated = summary.get("rank") or summary.get("mpi")
        if event is not None and summary and text.startswith("  "):
            event = replace(event, rank=int(stated) if stated else rank, host=summary.get("host"))
        if event is not None and count < KEPT:
            count += 1
            yield event
        if EXCEPTION.match(text):
            open_.pop(source, None)


def _rank(text: str) -> tuple[int | None, str]:
    """The rank before a line, and the line without it."""
    match = PREFIX.match(text)
    if match is None:
        return None, text
    return int(match["a"] or match["b"] or match["c"]), text[match.end() :]


def _event(text: str, order: int, rank: int | None, traceback: Traceback | None, path: Path) -> Event | None:
    host = HOST.match(text)
    event = Event(
        "", RAISED, CAUSE, order, text.strip()[:WORDS], rank, host[1] if host else None, _seconds(text), file=path.name
    )
    event = replace(event, place=traceback.place if traceback else "")
    if (known := sign_of(text)) is not None:
        sign, facts = known
        rank = int(facts["rank"]) if "rank" in facts else rank
        return replace(
            event, name=sign.name, kind=sign.kind, grade=sign.grade, rank=rank, host=facts.get("host", event.host),
            fix=sign.fix, facts=facts,
        )  # fmt: skip
    exception = EXCEPTION.match(text)
    if exception is None or exception["type"].endswith("Warning") or traceback is None:
        return None
    name = exception["type"].rpartition(".")[2]
    grade = CONSEQUENCE if name in NOTICED else CAUSE
    return replace(event, name=name, grade=grade, facts={"words": exception["words"] or ""})


def _seconds(text: str) -> float | None:
    date = clock(text)
    if date is not None:
        return date
    match = GLOG.search(text, 0, 200)
    return int(match[1]) * 3600 + int(match[2]) * 60 + float(match[3]) if match else None


__all__ = ["Event", "Sign", "events", "file_events"]
