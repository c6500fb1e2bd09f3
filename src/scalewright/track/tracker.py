"""The interface of a tracker: a copy of the run's numbers in somebody else's tool, behind four hooks.

    start()                  once, before anything else; may be slow (it runs beside the training)
    log(entries)             a batch of (time, row), oldest first
    event(event)             one line of events.jsonl
    finish(status, files)    once: `finished`, `stopped` or `failed`, and the files worth keeping

All four are called from one background thread and may raise: the run goes on, and `Feeder` repeats the call later, so
that each of them must stand that. A tracker of one's own is a class with these four methods and a name.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from scalewright.spec.common.files import write_whole
from scalewright.spec.common.formatting import flat
from scalewright.spec.common.untrusted import read_json
from scalewright.track.lines import Row
from scalewright.track.store import Store

Entry = tuple[float, Row]  # (seconds since 1970, a row of metrics.jsonl)
LEFT_OUT = ("step", "samples", "loss_tokens")  # they add nothing to `tokens`, and every number costs
Status = Literal["finished", "stopped", "failed"]
IDS = "trackers.json"  # in the run's folder: which run each tracker goes on with


class Tracker(Protocol):
    name: str

    def start(self) -> None:
        """Opens or continues the run there."""

    def log(self, entries: Sequence[Entry]) -> None:
        """Copies rows, oldest first."""

    def event(self, event: Row) -> None:
        """Notes one event."""

    def finish(self, status: Status, files: Sequence[Path]) -> None:
        """Hands over the files and closes."""


@dataclass(frozen=True)
class Target:
    """The run as a tracker needs it; `resume_step` 0: a new one, more: the run that `remembered` names goes on."""

    name: str
    folder: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any] = field(default_factory=dict)
    resume_step: int = 0
    store: Store = field(default_factory=Store)
    # Every tracker starts in a thread of its own, and all write into one file.
    _writing: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def remembered(self, tracker: str) -> dict[str, object]:
        """The ids that this tracker left in the run's folder; empty for a new run."""
        return remembered(self.folder, tracker) if self.resume_step else {}

    def remember(self, tracker: str, **ids: Any) -> None:
        """Leaves ids in the run's folder, for a resume to find.

        The file is replaced whole: a tracker that reads it meanwhile must not find it empty, and start anew.
        """
        with self._writing:
            text = json.dumps({**_ids(self.folder), tracker: ids}, indent=2)
            write_whole(self.folder / IDS, text + "\n")


def remembered(folder: Path, tracker: str) -> dict[str, object]:
    """The ids that a tracker left in a run's folder; empty when there are none."""
    ids = _ids(folder).get(tracker)
    return dict(ids) if isinstance(ids, dict) else {}


def _ids(folder: Path) -> dict[str, object]:
    try:
        ids = read_json(folder / IDS)
    except (OSError, ValueError):
        return {}
    return ids if isinstance(ids, dict) else {}


def scalars(row: Row) -> dict[str, float]:
    """A row's finite numbers under the names that all trackers use, without redundant ones.

    >>> scalars({"kind": "valid", "step": 4, "loss": 2.5, "bits_per_byte": None})
    {'valid/loss': 2.5}
    """
    numbers = {}
    for key, value in row.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        unused = key in LEFT_OUT or (key == "aux_loss" and value == 0)
        if number and not unused and math.isfinite(value):
            numbers[f"{row['kind']}/{key}"] = float(value)
    return numbers


def flatten(data: Mapping[str, Any]) -> dict[str, str]:
    """Nested keys joined by dots, values as text; lists as JSON.

    >>> flatten({"layout": {"tp": 2}, "betas": [0.9, 0.95], "init": None})
    {'layout.tp': '2', 'betas': '[0.9, 0.95]', 'init': ''}
    """
    return {
        key: "" if value is None else value if isinstance(value, str) else json.dumps(value)
        for key, value in flat(data).items()
    }
