"""What the lines of a job's output tell of its end, in order: signs, exceptions with the place that raised them.

[rank3]: Traceback (most recent call last):            an event "raised", of rank 3,
[rank3]:   File "train.py", line 12, in step           at train.py:12, in step
[rank3]: ValueError: a batch is empty                  with its type and its words

Ranks are told apart by what stands before a line, by its own words, or by the file's name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scalewright.diagnose.ending.signs import CAUSE, CONSEQUENCE, RAISED, sign_of
from scalewright.diagnose.logs.lines import Line, MarkedLines, clock

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
    r"^ +(?:host +: (?P<host>[\w.-]+)|rank +: (?P<rank>\d+) \(local_rank: \d+\)|"
    r"Process name: \[\[\d+,\d+\],(?P<mpi>\d+)\])\s*$"
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
# Words by which lines are searched for: each mark of the table has one of them in it, and there are fewer.
SEARCHED = (
    "rror", "xception", "Interrupt", "ut of memory", "OutOfMemory", "ut-of-memory", "oom", "OOM", "ALLOC_FAILED",
    "cudaErrorMemory", "CPUAllocator", "Watchdog", "CANCELLED", "DUE TO", "TERM_", "walltime", "ime limit", "run time",
    "reempt", "nstance", "NODE_FAIL", "ode failure", "Xid", "vlink", "VLink", "fallen off", "GPU is lost",
    "no CUDA-capable", "ink DOWN", "ink down", "ort down", "port error", "No space left", "quota", "ENOSPC", "EDQUOT",
    "Stale file", "Transport endpoint", "Read-only", "open files", "shared memory", "/dev/shm", "allocate",
    "DataLoader worker", "imed out", "last enqueued", "light", "clients", "store based barrier", "by peer",
    "remote process", "Broken pipe", "nccl", "aborted", "Socket closed", "closing signal", "death signal", "match",
    "truncated", "Sending process", "Some NCCL", "taking the entire", "Killing", "srun: ", "prterun", "mpirun",
    "Terminating", "exitcode", "return code", "xited", "Exit code", "Killed", "Out Of Memory", "Segmentation",
    "Bus error", "core dumped", "SIG", "closed", "deleted", "job killed", "(local_rank:", "host      :",
    "Process name:",
    TRACEBACK, '  File "', "raining completed", "raining finished", "training done", "after training is done",
    "'train_runtime'", "exits successfully", "exiting program", "inished training", "Process group destroyed",
)  # fmt: skip
KEPT = 4000  # events of a file: a log that repeats one for gigabytes
WORDS = 1000


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


@dataclass
class Traceback:
    """One that isn't complete yet: the innermost place so far."""

    place: str = ""


class Events:
    """Takes the lines of one file, one after another, and keeps what they tell of an end."""

    def __init__(self, path: Path) -> None:
        self.path, self.kept = path, list[Event]()
        self.order = 0
        self._open: dict[str, Traceback] = {}
        self._summary: dict[str, str] = {}  # of the failure that torch's agent lists
        named = IN_FILE.search(path.name)
        self._rank = int(next(group for group in named.groups() if group)) if named else None

    def take(self, line: Line, steps: int = 0) -> None:
        """A line; `steps`: of training, so far."""
        self.order += 1
        rank, text = _rank(line.source + line.text)
        rank = self._rank if rank is None else rank
        source = line.source or str(rank)
        if listed := SUMMARY.match(text):
            self._summary |= {key: value for key, value in listed.groupdict().items() if value}
        elif TRACEBACK in text:
            self._open[source] = Traceback()
        elif frame := FRAME.match(text):
            if source in self._open and "site-packages" not in frame["path"]:
                self._open[source].place = f"{frame['path']}:{frame['line']}, in {frame['name']}"
        else:
            event = self._event(text, rank, self._open.get(source))
            if event is not None and len(self.kept) < KEPT:
                self.kept.append(replace(event, steps=steps))
            if EXCEPTION.match(text):
                self._open.pop(source, None)

    def _event(self, text: str, rank: int | None, traceback: Traceback | None) -> Event | None:
        host = HOST.match(text)
        where = host[1] if host else None
        event = Event("", RAISED, CAUSE, self.order, text.strip()[:WORDS], rank, where, _seconds(text))
        event = replace(event, place=traceback.place if traceback else "")
        if self._summary and text.startswith("  "):
            stated = self._summary.get("rank") or self._summary.get("mpi")
            event = replace(event, rank=int(stated) if stated else rank, host=self._summary.get("host"))
        if (known := sign_of(text)) is not None:
            sign, facts = known
            return replace(
                event, name=sign.name, kind=sign.kind, grade=sign.grade, host=facts.get("host", event.host),
                rank=int(facts["rank"]) if "rank" in facts else event.rank, fix=sign.fix, facts=facts,
            )  # fmt: skip
        exception = EXCEPTION.match(text)
        if exception is None or exception["type"].endswith("Warning") or traceback is None:
            return None
        name = exception["type"].rpartition(".")[2]
        grade = CONSEQUENCE if name in NOTICED else CAUSE
        return replace(event, name=name, grade=grade, facts={"words": exception["words"] or ""})


def events(files: Sequence[Path]) -> list[Event]:
    """All of some files; raises OSError where one can't be read."""
    kept: list[Event] = []
    for path in files:
        reader = Events(path)
        for line in MarkedLines(path, SEARCHED):
            reader.take(line)
        kept += reader.kept
    return kept


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
