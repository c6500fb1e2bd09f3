"""`metrics.jsonl`: the numbers of a run, each step exactly once, equal text meaning equal bits.

    steps 1 2 3 4 5 6 7 │killed│        resume from the checkpoint of step 4:
    file  1 2 3 4 5 6 ½                 ─► 1 2 3 4          lines 5, 6 and the half one go, atomically
    then              5 6 7 8 …            1 2 3 4 5 6 7 8

A training line and a validation line may have the same step; within a kind a step stands once.
"""

from __future__ import annotations

from pathlib import Path

from scalewright.spec.text.files import write_whole
from scalewright.spec.text.jsonl import scan_jsonl
from scalewright.track.events import EventsFile
from scalewright.track.lines import LineWriter, Row, cannot_write, finite


class MetricsFile:
    """Rank 0's writer of one run's metrics; opening it drops every line of a step after `resume_step`.

    `resume_step` is the step of the checkpoint that the run continues from: 0 for a run from its beginning,
    None to append after the lines that are there. Non-finite values are null and, with `events`, noted there.
    """

    def __init__(
        self, path: str | Path, resume_step: int | None = 0, events: EventsFile | None = None
    ) -> None:
        self.path = Path(path)
        self._events = events
        self._last: dict[str, int] = {}
        self._trim(resume_step)
        self._writer = LineWriter(self.path)

    def write(self, row: Row) -> dict[str, str]:
        """Appends one row (`kind`, `step`, numbers); returns its non-finite values, such as {"loss": "nan"}.

        A step that its kind already has is left as it stands: the first line is the one that counts.
        """
        kind, step = row["kind"], int(row["step"])
        if step <= self._last.get(kind, -1):
            return {}
        clean, bad = finite(row)
        self._writer.append(clean)
        self._last[kind] = step
        if bad and self._events is not None:
            self._events.write("nonfinite", step=step, of=kind, values=bad)
        return bad

    def go_back(self, step: int) -> None:
        """Drops every line of a step after `step`: the run goes on from there."""
        self._writer.close()
        self._last.clear()
        self._trim(step)
        self._writer = LineWriter(self.path)

    def close(self) -> None:
        self._writer.close()

    def _trim(self, resume_step: int | None) -> None:
        """Leaves each step up to `resume_step` once."""
        kept: list[bytes] = []
        for text, row in scan_jsonl(self.path):
            kind, step = str(row.get("kind")), row.get("step")
            before = isinstance(step, int) and (resume_step is None or step <= resume_step)
            if isinstance(step, int) and before and step > self._last.get(kind, -1):
                kept.append(text)
                self._last[kind] = step
        size = sum(len(text) + 1 for text in kept)
        if self.path.exists() and self.path.stat().st_size != size:
            try:
                write_whole(self.path, "".join(f"{text.decode('utf-8', 'replace')}\n" for text in kept))
            except OSError as error:
                raise cannot_write(self.path, error) from error
