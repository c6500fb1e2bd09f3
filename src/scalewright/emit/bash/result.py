"""What following a script gives: the commands that it starts, what was taken as unset, notes, and its last `exit`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from scalewright.emit.bash.unknown import Marks


@dataclass(frozen=True)
class Command:
    """A command that the script starts, with marks (unknown.py) where a text isn't known."""

    words: list[str]
    environ: dict[str, str]  # exported to it, or set for it alone
    line: int
    when: tuple[str, ...] = ()  # conditions that can't be known, under which alone it starts


@dataclass
class Result:
    """What is known of a script after it was followed; one for it and all shells within it."""

    commands: list[Command] = field(default_factory=list)
    marks: Marks = field(default_factory=Marks)
    assumed: list[str] = field(default_factory=list)  # variables that were taken as not set
    notes: list[str] = field(default_factory=list)
    ended: str = ""  # the last `exit`
    steps: int = 0
    started: float = field(default_factory=time.process_time)
