"""Lines by which a job's end is known: the table in signs.yaml, each row with its kind, grade and advice.

torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB ...      device memory, a cause
slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT ... DUE TO TIME LIMIT ***       stopped, a cause
torch.distributed.DistBackendError: ... remote process exited                   raised, a consequence
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from scalewright.spec.base import read_yaml

CAUSE, CONSEQUENCE, END = "cause", "consequence", "end"  # of an end, nothing is wrong
DEVICE_MEMORY, HOST_MEMORY, HUNG, RAISED, KILLED = "device memory", "host memory", "hung", "raised", "killed"
HARDWARE, STORAGE, DATA, STOPPED, FINISHED = "hardware", "storage", "data", "stopped", "finished"
SIGNALS = {
    9: "SIGKILL", 15: "SIGTERM", 11: "SIGSEGV", 6: "SIGABRT", 7: "SIGBUS", 2: "SIGINT", 4: "SIGILL", 8: "SIGFPE",
    10: "SIGUSR1", 12: "SIGUSR2",
}  # fmt: skip


class Sign(NamedTuple):
    """A row: a line has one of the marks, and the pattern is found in it; its groups are facts."""

    name: str
    kind: str
    grade: str
    marks: tuple[str, ...]
    pattern: re.Pattern[str]
    fix: str


class Xid(NamedTuple):
    """An error number of NVIDIA's driver; `software`: a program's own fault; `fix`: another one than the sign's."""

    what: str = "an error of the GPU"
    software: bool = False
    fix: str = "node"


@cache
def _table() -> Any:
    return read_yaml(Path(__file__).with_name("signs.yaml"))


@cache
def signs() -> tuple[Sign, ...]:
    """All rows, in order."""
    table = _table()
    return tuple(
        Sign(
            row["name"], row["kind"], row.get("grade", CAUSE), tuple(row["marks"]), re.compile(row["pattern"]),
            table["fixes"].get(row.get("fix"), row.get("fix", "")),
        )
        for row in table["signs"]
    )  # fmt: skip


def fix(name: str) -> str:
    """Advice that several rows share."""
    return str(_table()["fixes"][name])


def named(name: str) -> list[str]:
    """`reports`: exceptions that tell of others; `read`: words by which exceptions are found."""
    return list(_table()[name])


@cache
def _advice() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(row["words"]), row["fix"]) for row in _table()["advice"]]


def advice(text: str) -> str:
    """What helps against an exception with these words; empty where nothing is known."""
    return next((helps for pattern, helps in _advice() if pattern.search(text)), "")


def xid(number: int) -> Xid:
    """What such an error means."""
    return Xid(**_table()["xids"].get(number, {}))


def marks() -> list[str]:
    """Words of which each such line has one."""
    return list(dict.fromkeys(mark for sign in signs() for mark in sign.marks))


# What only speaks of such a line: before it a quotation or a flag, a condition or a negation; after it a count of 0.
BEFORE = re.compile(
    r"""(?<!\w)(["'])(?!.*\1(?!\w))|(?:^|\s)--\w|^\s*[\w.-]+ \.{4,}|\b(?:if|in case|unless|whether|avoid|prevent|"""
    r"""against|e\.g\.|for example|handling|retry on)\b|\b(?:no|0|zero|without|not an?) *$""",
    re.I,
)
REACH = 2000  # characters: quotations are looked for in so many
NONE_OF = re.compile(r"\w{0,3} ?(?:count)?\s*[:=]\s*(?:0|none|no|false|off|disabled|N/A)\b", re.I)


def sign_of(text: str) -> tuple[Sign, dict[str, str]] | None:
    """The row that a line belongs to, and its facts; None for a line that tells nothing of an end."""
    for sign in signs():
        if any(mark in text for mark in sign.marks) and (match := sign.pattern.search(text)):
            before = text[max(0, match.start() - REACH) : match.start()]
            if sign.grade != END and (BEFORE.search(before) or NONE_OF.match(text, match.end())):
                return None
            return sign, {key: value for key, value in match.groupdict().items() if value is not None}
    return None
