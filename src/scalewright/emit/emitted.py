"""What an emitter wrote and what a reader understood, with everything that was lost on the way.

Emitted   files, launch line     dropped: no word for it      changed: the nearest word     assumed: filled in
Reading   a run of ours          unread: no word of ours                                    assumed: filled in
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from scalewright.spec.base import TextDumper
from scalewright.spec.common.formatting import commented
from scalewright.spec.question import Unread


class Dropped(NamedTuple):
    """A setting that the target has no word for."""

    key: str  # ours, dotted: layout.schedule
    value: Any
    why: str


class Changed(NamedTuple):
    """A setting that the target expresses only nearly."""

    key: str
    value: Any
    written: str  # in the target's words
    why: str


@dataclass(frozen=True)
class Emitted:
    """A complete configuration of another trainer: the same run gives the same text."""

    trainer: str
    version: str  # of the trainer, for which the words are right
    files: Mapping[str, str]  # name -> text
    command: str  # the launch line, run where the files are
    dropped: tuple[Dropped, ...] = ()
    changed: tuple[Changed, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether all of the run was expressed."""
        return not self.dropped and not self.changed

    def dump(self) -> dict[str, object]:
        """As `emit --json` prints it."""
        lost = {key: [item._asdict() for item in getattr(self, key)] for key in ("dropped", "changed")}
        files = {"files": dict(self.files), "command": self.command}
        return {"trainer": self.trainer, "version": self.version, **files, **lost, "assumed": list(self.assumed)}


@dataclass(frozen=True)
class Reading:
    """Another trainer's configuration in our keys; `run` may lack `model` or `data`."""

    trainer: str
    run: Mapping[str, Any]  # nested, as a run file
    unread: tuple[Unread, ...] = ()
    assumed: tuple[str, ...] = ()
    guessed: Mapping[str, str] = field(default_factory=dict)  # as Question.guessed
    other: str = ""  # what it trains, if that isn't all weights of a decoder (other_training.py)
    version: str | None = None  # the trainer's release, where the file's form tells it
    options: Mapping[str, str] = field(default_factory=dict)  # what is priced of it, and is in no run file

    def dump(self) -> dict[str, object]:
        """As `read --json` prints it."""
        unread = [item._asdict() for item in self.unread]
        trains = {"trains": self.other} if self.other else {}
        keys = {"trainer": self.trainer, "run": dict(self.run), "unread": unread, "assumed": list(self.assumed)}
        return {**keys, **trains, **({"options": dict(self.options)} if self.options else {})}


def yaml_text(comments: Iterable[str], data: dict[str, object]) -> str:
    """A configuration with comments at its top."""
    text = yaml.dump(data, None, TextDumper, sort_keys=False, width=100, allow_unicode=True)
    return commented(*comments) + text
