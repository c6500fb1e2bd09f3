"""What the lines of a job's output tell of its end, in order: signs, exceptions with the place that raised them.

[rank3]: Traceback (most recent call last):            an event "raised", of rank 3,
[rank3]:   File "train.py", line 12, in step           at train.py:12, in step
[rank3]: ValueError: a batch is empty                  with its type and its words

Ranks are told apart by what stands before a line, by its own words, or by the file's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from scalewright.diagnose.ending.signs import CAUSE, CONSEQUENCE, HUNG, RAISED, marks, named, sign_of
from scalewright.diagnose.logs.lines import Line, clock

EXCEPTION = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.){0,6}(?:[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Failure|Failed|"
    r"Invalid|NotFound)|Exception|StopIteration|OutOfResources|Unsupported))"
    r"(?:: (?P<words>.*))?$"
)
FRAME = re.compile(r'^ {2,8}File "(?P<path>[^"]{1,300})", line (?P<line>\d{1,7}), in (?P<name>\S{1,120})')
TRACEBACK = "Traceback (most recent call last)"
PREFIX = re.compile(
    r"^(?:\[(?:rank|default|RANK)_?(?P<a>\d{1,6})\]:? ?|(?P<b>\d{1,6}): ?|\[\d{1,6},(?P<c>\d{1,6})\]<std\w{3}>: ?)"
)
# Who says it: a worker of Ray's, or a host in pdsh's output.
WORKER = re.compile(
    r"\((?:[A-Z]\w{0,80} pid=\d{1,9}[^)]{0,100}|raylet)\) ?|"
    r"(?!\S{0,80}(?:Error|Exception|Interrupt|Failure):)(?=[\w.-]{0,60}\d)[\w.-]{1,60}: "
    r"(?=Traceback|  File \"|[\w.]{1,80}(?:Error|Exception): )"
)
# A failure that torch's agent, or mpirun, lists: some lines about one process.
SUMMARY = re.compile(
    r"^ +(?:host +: (?P<host>[\w.-]+)|rank +: (?P<rank>\d+) \(local_rank: \d+\)|"
    r"Process name: \[\[\d+,\d+\],(?P<mpi>\d+)\])\s*$"
)
# A job's number isn't a rank.
IN_FILE = re.compile(
    r"(?:rank|RANK|task)[-_]?(\d{1,6})|(?<!job)(?<!slurm)[-_.](\d{1,3})\.(?:err|out|log)$|^(\d{1,4})/std(?:err|out)"
)
GLOG = re.compile(r"\[[EWIF]\d{3,4} (\d\d):(\d\d):(\d\d\.\d+)")
# NCCL's, then the kernel's as syslog, journalctl and pdsh write them.
HOST = re.compile(r"^([A-Za-z][\w.-]{0,60}):(?:\d+:\d+)? ?\[\d+\] ")
KERNEL = re.compile(r"(?:^|\s)([A-Za-z][\w.-]{0,60}) kernel:|^([A-Za-z][\w.-]{0,60}): (?=\[ *\d+\.\d+\]|NVRM: )")
KEPT = 4000  # events of a file: a log that repeats one for gigabytes
WORDS = 1000


def searched() -> tuple[str, ...]:
    """Words of which each line that tells of an end has one."""
    return (*marks(), *named("read"))


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
    steps: int = 0  # of training before it


class Events:
    """Takes the lines of one file, one after another, and keeps what they tell of an end."""

    def __init__(self, path: Path) -> None:
        self.path, self.kept = path, list[Event]()
        self.order = 0
        self._open: dict[str, str] = {}  # the innermost place so far of each traceback that isn't complete
        self._summary: dict[str, str] = {}  # of the failure that torch's agent lists
        named = IN_FILE.search(path.name) or IN_FILE.match("/".join(path.parts[-2:]))
        self._rank = int(next(group for group in named.groups() if group)) if named else None

    def take(self, line: Line, steps: int = 0) -> None:
        """A line; `steps`: of training, so far."""
        self.order += 1
        worker = WORKER.match(line.source + line.text)
        rank, text = _rank((line.source + line.text)[worker.end() if worker else 0 :])
        rank = self._rank if rank is None else rank
        source = (worker and worker[0]) or line.source or str(rank)
        if listed := SUMMARY.match(text):
            self._summary |= {key: value for key, value in listed.groupdict().items() if value}
        elif TRACEBACK in text:
            self._open[source] = ""
        elif frame := FRAME.match(text):
            if source in self._open and "site-packages" not in frame["path"]:
                self._open[source] = f"{frame['path']}:{frame['line']}, in {frame['name']}"
        else:
            event = self._event(text, rank, self._open.get(source))
            if event is not None and len(self.kept) < KEPT:
                self.kept.append(replace(event, steps=steps))
            if EXCEPTION.match(text):
                self._open.pop(source, None)

    def _event(self, text: str, rank: int | None, place: str | None) -> Event | None:
        host = (match := HOST.match(text) or KERNEL.search(text, 0, 200)) and next(filter(None, match.groups()))
        event = Event("", RAISED, CAUSE, self.order, text.strip()[:WORDS], rank, host, _seconds(text))
        event = replace(event, place=place or "")
        if self._summary and text.startswith("  "):
            stated = self._summary.get("rank") or self._summary.get("mpi")
            event = replace(event, rank=int(stated) if stated else rank, host=self._summary.get("host"))
        if (known := sign_of(text)) is not None:
            sign, facts = known
            stated = None if sign.kind == HUNG and rank is not None else facts.get("rank")  # a group's own number
            return replace(
                event, name=sign.name, kind=sign.kind, grade=sign.grade, host=facts.get("host", event.host),
                rank=int(stated) if stated else event.rank, fix=sign.fix, facts=facts,
            )  # fmt: skip
        exception = EXCEPTION.match(text)
        if exception is None or exception["type"].endswith("Warning"):
            return None
        name = exception["type"].rpartition(".")[2]
        grade = CONSEQUENCE if name in named("reports") else CAUSE
        return replace(event, name=name, grade=grade, facts={"words": exception["words"] or ""})


def _rank(text: str) -> tuple[int | None, str]:
    """The rank before a line, and the line without it."""
    match = PREFIX.match(text)
    if match is None:
        return None, text
    return int(match["a"] or match["b"] or match["c"]), text[match.end() :]


def _seconds(text: str) -> float | None:
    date = clock(text)
    if date is not None:
        return date
    match = GLOG.search(text, 0, 200)
    return int(match[1]) * 3600 + int(match[2]) * 60 + float(match[3]) if match else None
