"""TensorBoard: event files in the run's folder, by torch's own writer.

tensorboard --logdir runs
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalewright.spec.base import to_yaml
from scalewright.track.lines import Row
from scalewright.track.tracker import Entry, Status, Target, scalars


class TensorBoardTracker:
    """Copies a run to `tensorboard/` in its folder; on a resume, TensorBoard forgets the steps after it."""

    name = "tensorboard"

    def __init__(self, target: Target) -> None:
        self._target = target
        self._writer: Any = None

    def start(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        resumed = self._target.resume_step
        folder = self._target.folder / "tensorboard"
        self._writer = SummaryWriter(str(folder), purge_step=resumed + 1 if resumed else None)
        self._writer.add_text("run.yaml", _as_code(to_yaml(dict(self._target.config))), resumed)
        environment = json.dumps(self._target.environment, indent=2, default=str)
        self._writer.add_text("environment", _as_code(environment), resumed)

    def log(self, entries: Sequence[Entry]) -> None:
        for moment, row in entries:
            for name, value in scalars(row).items():
                self._writer.add_scalar(name, value, int(row["step"]), walltime=moment)
        self._writer.flush()

    def event(self, event: Row) -> None:
        self._writer.add_text(f"events/{event['kind']}", _as_code(json.dumps(event, default=str)), event.get("step"))

    def finish(self, status: Status, files: Sequence[Path]) -> None:
        """Notes how the run ended; the files already lie beside the event file."""
        self._writer.add_text("events/end", status)
        self._writer.close()


def _as_code(text: str) -> str:
    """Text as a code block of Markdown, for TensorBoard to show."""
    return "".join(f"    {line}\n" for line in text.splitlines())
