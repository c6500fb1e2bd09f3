"""Warnings and errors: what each is called, how grave it is, and what to do about it: the table in problems.yaml.

"Connect to 10.0.0.7<3456> failed : Connection refused"  ──► connection refused, peer 10.0.0.7
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from scalewright.spec.base import read_yaml

CAUSE, SYMPTOM, HARMLESS = "cause", "symptom", "harmless"
PEER = re.compile(r"(?:to|from|peer|by remote peer) ([\w.:%\-]{1,255})<\d+>")
# An INFO line without any of these words is none of the table's.
HINT = re.compile(r"[Ff]ailed|[Nn]o |not find|isabled|returned|[Uu]nable|refused|timed out|annot|rror")


class Problem(NamedTuple):
    """A row of the table. `any_of`: marks that belong together, in groups, of which one is enough."""

    name: str
    gravity: str
    any_of: Sequence[Sequence[str]]
    fix: str = ""


@cache
def problems() -> tuple[Problem, ...]:
    """All rows, in order."""
    table = read_yaml(Path(__file__).with_name("problems.yaml"))
    fixes = table["fixes"]
    return tuple(
        Problem(row["name"], row["gravity"], row["any_of"], fixes.get(row.get("fix"), row.get("fix", "")))
        for row in table["problems"]
    )


def problem(text: str) -> Problem | None:
    """The row that a line belongs to; None for a line of which the table knows nothing."""
    small = text.lower()
    for row in problems():
        for marks in row.any_of:
            # the first alone rules out nearly all: a tenth of the time that a generator of all takes
            if marks[0] in small and all(mark in small for mark in marks):
                return row
    return None


def peer(text: str) -> str:
    """The address that a connection went to: `10.0.0.7` of `Connect to 10.0.0.7<3456> failed`."""
    match = PEER.search(text)
    return match[1] if match else ""
