"""`metrics.jsonl`: the numbers of a run, each step exactly once, equal text meaning equal bits.

    steps 1 2 3 4 5 6 7 │killed│        resume from the checkpoint of step 4:
    file  1 2 3 4 5 6 ½                 ─► 1 2 3 4          lines 5, 6 and the half one go, atomically
    then              5 6 7 8 …            1 2 3 4 5 6 7 8

A training line and a validation line may have the same step; within a kind a step stands once. Lines that were lost or
changed since the checkpoint come from its copy, and those that it hasn't are named (saved.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from scalewright.spec.common.files import write_whole
from scalewright.spec.common.formatting import counted
from scalewright.spec.common.jsonl import lost_rows, missing_steps, scan_jsonl
from scalewright.spec.common.untrusted import check_regular
from scalewright.track.events import EventsFile
from scalewright.track.lines import LineWriter, Row, cannot_write, finite
from scalewright.track.saved import Saved


class MetricsFile:
    """Rank 0's writer of one run's metrics; opening it drops every line of a step after `resume_step`.

    `resume_step` is the step of the checkpoint that the run continues from: 0 for a run from its beginning, None to
    append after the lines that are there. Non-finite values are null and, with `events`, noted there.
    """

    def __init__(
        self,
        path: str | Path,
        resume_step: int | None = 0,
        events: EventsFile | None = None,
        saved: Saved | None = None,
        first: int | None = None,
    ) -> None:
        """`saved`: the file by that checkpoint. With `first`, the step of its first row, `note` has the rows
        that are missing, and `lost` their steps."""
        self.path = Path(path)
        self._events = events
        self.dropped: Dropped | None = None  # when it was opened last
        self.writer = self._open(resume_step, saved, first)

    def write(self, row: Row) -> dict[str, str]:
        """Appends one row (`kind`, `step`, numbers); returns its non-finite values, such as {"loss": "nan"}.

        A step that its kind already has is left as it stands: the first line is the one that counts.
        """
        kind, step = row["kind"], int(row["step"])
        if step <= self._last.get(kind, self._least):
            return {}
        clean, bad = finite(row)
        self.writer.append(clean)
        self._last[kind] = step
        if bad and self._events is not None:
            self._events.write("nonfinite", step=step, of=kind, values=bad)
        return bad

    def go_back(self, step: int) -> None:
        """Drops every line of a step after `step`: the run goes on from there."""
        self.writer.close()
        self.writer = self._open(step)

    def close(self) -> None:
        self.writer.close()

    def _open(self, resume_step: int | None, saved: Saved | None = None, first: int | None = None) -> LineWriter:
        self.note, self.dropped = "", None
        self.lost: list[tuple[int, int]] = []
        self._last: dict[str, int] = {}
        self._least = -1  # of steps of any kind
        try:
            check_regular(self.path)
            intact = saved is not None and saved.is_in(self.path)
            self.dropped = _dropped(self.path, resume_step, saved.size if saved is not None and intact else 0)
            if saved is None or not intact:
                self._trim(resume_step, saved, first)
            else:
                # The validation of the saved step may be made up; what is older isn't written again.
                self._last = {kind: step for step, kind in sorted(_by_step(saved.rows, saved.step))}
                self._least = saved.step - 1
                with open(self.path, "ab") as file:
                    file.truncate(saved.size)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        return LineWriter(self.path)

    def _trim(self, resume_step: int | None, saved: Saved | None, first: int | None) -> None:
        """Leaves each step up to `resume_step` once, in order; of two rows the one that was saved."""
        there = _by_step(scan_jsonl(self.path), resume_step)
        copied = _by_step(saved.rows if saved is not None else (), resume_step)
        rows = sorted({**copied, **there, **copied}.items(), key=lambda item: item[0][0])
        self._last = {kind: step for (step, kind), _ in rows}
        content = b"".join(text + b"\n" for _, text in rows)
        if content != (self.path.read_bytes() if self.path.exists() else b""):
            write_whole(self.path, content.decode("utf-8", "replace"))
        if first is None or resume_step is None:
            return
        self.lost = missing_steps((step for (step, kind), _ in rows if kind == "train"), first, resume_step)
        self.note = lost_rows(self.lost)
        if saved is not None:
            back = sum(there.get(key) != text for key, text in copied.items())
            changes = [f"{counted(back, 'rows')} came back from the checkpoint" if back else "", self.note]
            none = "no training row is missing, but lines were lost, added or changed"
            self.note = saved.note("; ".join(filter(None, changes)) or none)
        elif self.note:
            self.note = f"{self.path.name}: {self.note}"


class Dropped(NamedTuple):
    """Training rows after the step that a run goes on from: steps that are done again, and the file's last change."""

    steps: int
    seconds: float
    until: float  # since 1970: the last sign of life


def _dropped(path: Path, step: int | None, start: int) -> Dropped | None:
    """What opening a file at `step` drops, its lines before byte `start` left unread; None for a new file, or where
    nothing is dropped by rule."""
    if step is None or not path.exists():
        return None
    until, rows = path.stat().st_mtime, (row for _, row in scan_jsonl(path, start))
    later = [row for row in rows if row.get("kind") == "train" and type(at := row.get("step")) is int and at > step]
    seconds = [float(value) for row in later if isinstance(value := row.get("step_time_s"), (int, float))]
    return Dropped(len(later), sum(seconds), until)


def _by_step(lines: Iterable[tuple[bytes, dict[str, object]]], last: int | None) -> dict[tuple[int, str], bytes]:
    """The first row of each step and kind, up to a step."""
    rows: dict[tuple[int, str], bytes] = {}
    for text, row in lines:
        step, kind = row.get("step"), row.get("kind")
        if type(step) is int and isinstance(kind, str) and (last is None or step <= last):
            rows.setdefault((step, kind), text)
    return rows
