"""JSON lines of a run: one object per line, and perhaps half a line where it was killed.

    {"kind": "train", "step": 7, ...}\n      read
    {"kind": "train", "st                    skipped: the process died while it wrote this

Planner, report and tracker read the same files, so the reader is in this lowest package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalewright.spec.common.untrusted import open_regular, parse_json


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """Every whole object, in order; broken lines are skipped, a missing file is empty."""
    return [row for _, row in scan_jsonl(path)]


def scan_jsonl(path: str | Path, start: int = 0) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The same from byte `start` on, one line at a time, each with its bytes in the file (without the newline)."""
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    with file:
        if start:
            file.seek(start)
        for text in map(bytes.strip, file):
            row = None
            with suppress(ValueError):  # not JSON, or not UTF-8
                row = parse_json(text) if text else None
            if isinstance(row, dict):
                yield text, row


REACHED = ("start", "resume", "save", "spike", "stop", "finish")  # events at or after whose step a run is


def begins_after(events: Iterable[Mapping[str, Any]], else_: int = 0) -> int:
    """The step after which a run's rows begin by its events: 0, or that of a checkpoint from elsewhere."""
    begun = (event.get("step") for event in events if event.get("kind") in ("start", "resume"))
    return next((step for step in begun if type(step) is int), else_)


def missing_steps(steps: Iterable[Any], first: int, last: int) -> list[tuple[int, int]]:
    """(from, to) of each range of steps between `first` and `last` that isn't there.

    >>> missing_steps([2, 6, 7], 1, 9)
    [(1, 1), (3, 5), (8, 9)]
    """
    there = sorted({step for step in steps if type(step) is int and first <= step <= last})
    ends = zip([first - 1, *there], [*there, last + 1], strict=True)
    return [(before + 1, after - 1) for before, after in ends if after - before > 1]


def lost_rows(ranges: Sequence[tuple[int, int]]) -> str:
    """Training rows that aren't there, in words; empty for none.

    >>> lost_rows([(1, 1), (3, 5)])
    'the training rows of steps 1, 3 to 5 are lost'
    """
    words = [str(low) if low == high else f"{low} to {high}" for low, high in ranges]
    more = [f"{len(words) - 8} more ranges"] if len(words) > 8 else []
    return f"the training rows of steps {', '.join(words[:8] + more)} are lost" if words else ""


def lost_lines(rows: Iterable[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> list[str]:
    """What metrics.jsonl lacks by a run's events, which were read before it: training rows."""
    reached = (event.get("to", event.get("step")) for event in reversed(events) if event.get("kind") in REACHED)
    steps = [step for row in rows if row.get("kind") == "train" and type(step := row.get("step")) is int]
    newest = next((step for step in reached if type(step) is int), 0)
    begin = begins_after(events, else_=min(steps, default=1) - 1)
    lost = lost_rows(missing_steps(steps, begin + 1, max([newest, *steps])))
    return [f"metrics.jsonl: {lost}"] if lost else []
