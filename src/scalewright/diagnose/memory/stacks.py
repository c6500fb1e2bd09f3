"""The purpose of an allocation by the frames of its stack: words in names and files, the table in stacks.yaml.

    Python      step (torch/optim/adamw.py)      optimizer       cross_entropy (functional.py)     loss
    native      torch::autograd::Engine          backward        c10d::Reducer                  communication
    no Python   in a trace whose other events have it: autograd's own thread, the backward

A stack without native frames (stacks="python") is enough for all of it. Each frame is looked at once, as snapshots
repeat the same ones thousands of times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath

FORWARD, BACKWARD, STEP, SETTING_UP, UNKNOWN = "forward", "backward", "optimizer", "setup", "unknown"
MOST_FRAMES = 400  # of a stack that are looked at
MOST_LETTERS = 300  # of a name or file


class Mark(Flag):
    """Signs that a frame gives."""

    NOTHING = 0
    PYTHON = auto()
    OPTIMIZER = auto()
    LOSS = auto()
    COMMUNICATION = auto()
    SHARDED = auto()
    BACKWARD = auto()
    SETUP = auto()
    RUN = auto()
    MODEL = auto()


LIBRARY = re.compile(r"(?:^|/)(?:torch|site-packages|dist-packages|lib/python[\d.]+)/|^<", re.IGNORECASE)
NATIVE_ONLY = "(no frame of Python)"
AUTOGRAD_FUNCTION = "torch/autograd/function.py"  # its `apply` runs in a backward


@dataclass(frozen=True)
class Stack:
    """`phase`: the part of a step. `python`: whether there is a frame of Python, and `model`: one of forward.

    `line`: the user's innermost frame, as `forward (model.py:31)`.
    """

    phase: str
    communicates: bool = False
    sharded: bool = False
    loss: bool = False
    python: bool = False
    model: bool = False
    line: str = NATIVE_ONLY


class Stacks:
    """Reads stacks; lists of frames that are the same object are read once."""

    def __init__(self) -> None:
        self._stacks: dict[int, Stack] = {}

    def read(self, frames: object) -> Stack:
        """The signs of all frames; those in any form that isn't PyTorch's give none.

        The caller keeps the frames, so that no other list gets their id.
        """
        key = id(frames)
        if key not in self._stacks:
            self._stacks[key] = self._read(frames)
        return self._stacks[key]

    def _read(self, frames: object) -> Stack:
        marks = Mark.NOTHING
        for frame in frames[:MOST_FRAMES] if isinstance(frames, (list, tuple)) else ():
            if isinstance(frame, Mapping):
                name, file = str(frame.get("name", "")), str(frame.get("filename", ""))
                marks |= _mark(name[:MOST_LETTERS], file[-MOST_LETTERS:].replace("\\", "/"))
        if Mark.BACKWARD in marks:
            phase = BACKWARD
        elif Mark.OPTIMIZER in marks:
            phase = STEP
        elif Mark.SETUP in marks and Mark.RUN not in marks:
            phase = SETTING_UP
        else:
            phase = FORWARD if Mark.PYTHON in marks else UNKNOWN
        return Stack(phase, Mark.COMMUNICATION in marks, Mark.SHARDED in marks, Mark.LOSS in marks,
                     Mark.PYTHON in marks, Mark.MODEL in marks, owner(frames))  # fmt: skip


@cache
def _tables() -> list[list[tuple[Mark, re.Pattern[str]]]]:
    from scalewright.spec.base import read_yaml  # a trace is read without it

    return [
        [(Mark[mark.upper()], re.compile(pattern, re.IGNORECASE)) for mark, pattern in rows.items()]
        for rows in read_yaml(Path(__file__).with_name("stacks.yaml")).values()
    ]


@lru_cache(maxsize=1 << 16)
def _mark(name: str, file: str) -> Mark:
    names, files, native = _tables()
    python = file.endswith(".py")
    marks = Mark.PYTHON if python else Mark.NOTHING
    for table, text in ((names, name), (files, file)) if python else ((native, name),):
        for mark, pattern in table:
            marks |= mark if pattern.search(text) else Mark.NOTHING
    if name == "apply" and file.endswith(AUTOGRAD_FUNCTION):
        marks |= Mark.BACKWARD
    return marks


def owner(frames: object) -> str:
    """The innermost frame of the user's own code, else of any Python: `forward (model.py:31)`."""
    python = [
        (str(frame.get("name", "?")), str(frame.get("filename", "")).replace("\\", "/"), frame.get("line", "?"))
        for frame in (frames if isinstance(frames, (list, tuple)) else ())
        if isinstance(frame, Mapping) and str(frame.get("filename", "")).endswith(".py")
    ]
    owners = [frame for frame in python if not LIBRARY.search(frame[1])] or python
    if not owners:
        return NATIVE_ONLY
    name, file, line = owners[0]
    return f"{name} ({PurePosixPath(file).name}:{line})"
