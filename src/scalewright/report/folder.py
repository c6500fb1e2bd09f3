"""A run's folder, read forgivingly: whatever is missing or broken is a gap on the page and a line under it.

run.yaml         configuration and environment
metrics.jsonl    columns of numbers, NaN where a value is null or absent
events.jsonl     what happened, and when: the lives of a run, each from a start or resume to its end
summary.json     what the run reached; sample.txt, a text that the model wrote
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.diagnose.logs.lines import real
from scalewright.diagnose.logs.times import LEAST, traced_steps
from scalewright.spec.base import parse_yaml
from scalewright.spec.common.jsonl import lost_lines, read_jsonl
from scalewright.spec.common.untrusted import JSON_BYTES, parse_json, read_bytes
from scalewright.spec.errors import UserError, reason

Column = NDArray[np.float64]
Event = Mapping[str, Any]
STARTS = ("start", "resume")  # the event that opens each life of a run
ENDS = ("finish", "stop", "fault")
FILES = ("run.yaml", "metrics.jsonl", "events.jsonl", "summary.json")


@dataclass(frozen=True)
class Table:
    """Rows of one kind as columns, in the order of their steps; NaN where there is no number."""

    steps: Column
    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.steps)

    def get(self, name: str) -> Column:
        """One column; all NaN when no row has it."""
        return self.columns.get(name, np.full(len(self.steps), np.nan))

    def has(self, name: str) -> bool:
        """Whether any row has a finite value there."""
        return len(self.finite(name)) > 0

    def finite(self, name: str) -> Column:
        values = self.get(name)
        return values[np.isfinite(values)]

    def median(self, name: str) -> float | None:
        return float(np.median(self.finite(name))) if self.has(name) else None

    def highest(self, name: str) -> float | None:
        return float(self.finite(name).max()) if self.has(name) else None

    def last(self, name: str) -> float | None:
        """The value of the last row; None when it isn't finite there, however many were before."""
        values = self.get(name)
        return float(values[-1]) if len(values) and np.isfinite(values[-1]) else None

    def last_finite(self, name: str) -> tuple[int, float] | None:
        """(step, value) of the newest finite value of a column."""
        finite = np.flatnonzero(np.isfinite(self.get(name)))
        return (int(self.steps[finite[-1]]), float(self.get(name)[finite[-1]])) if len(finite) else None


@dataclass(frozen=True)
class RunFolder:
    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    config_text: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    train: Table = field(default_factory=lambda: table([]))
    valid: Table = field(default_factory=lambda: table([]))
    experts: Sequence[Mapping[str, Any]] = ()
    events: Sequence[Mapping[str, Any]] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    sample: str = ""
    problems: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The run's name; its folder's where run.yaml is missing."""
        return str(self.config.get("name") or self.path.resolve().name)

    def said(self, key: str) -> Any:
        """The value of `key` in the newest start or resume event, else in summary.json, else None."""
        for event in reversed(self.events):
            if event.get("kind") in STARTS and event.get(key) is not None:
                return event[key]
        return self.summary.get(key)

    def newest(self, kind: str) -> Event:
        """The newest event of a kind; empty without one."""
        return next((event for event in reversed(self.events) if event["kind"] == kind), {})

    def steps_of(self, *kinds: str) -> list[int]:
        """The steps at which events of these kinds happened, sorted, each once."""
        steps = [event.get("step") for event in self.events if event.get("kind") in kinds]
        return sorted({step for step in steps if isinstance(step, int)})

    def warm(self) -> NDArray[np.bool_]:
        """The usual training steps: not the first two of a life, or the first of a short run, which warm up, and
        none that a profiler slowed."""
        begun = [0, *self.steps_of(*STARTS)]
        first, second = (~np.isin(self.train.steps - after, begun) for after in (1, 2))
        first = calm if (calm := first & ~self.traced).sum() >= LEAST else first
        return first & second if (first & second).sum() >= LEAST else first

    @cached_property
    def traced(self) -> NDArray[np.bool_]:
        """Which training steps a profiler recorded, or wrote its file in."""
        return np.isin(self.train.steps, list(traced_steps(self.path, self.config)))


def read_folder(path: str | Path) -> RunFolder:
    """Reads a run's folder; UserError only when it isn't one at all."""
    path = Path(path)
    if not path.is_dir():
        raise UserError("no such run folder", str(path), "give the out_dir of a run")
    if not any((path / name).exists() for name in FILES):
        raise UserError("nothing of a run is here", str(path), f"a run's folder holds {', '.join(FILES[:3])}")
    problems: list[str] = []
    config_text = _text(path / "run.yaml", problems)
    config = _mapping(config_text, "run.yaml", problems)
    summary = _mapping(_text(path / "summary.json", []), "summary.json", problems)
    events = [event for event in read_jsonl(path / "events.jsonl") if isinstance(event.get("kind"), str)]
    rows = read_jsonl(path / "metrics.jsonl")  # after the events: a run that is under way goes on
    problems += lost_lines(rows, events) if rows else ["metrics.jsonl has no rows yet"]
    started = [event["environment"] for event in events if isinstance(event.get("environment"), dict)]
    environment = config.get("environment") or (started[-1] if started else {})
    return RunFolder(
        path=path, config={key: value for key, value in config.items() if key != "environment"},
        config_text=config_text, environment=environment if isinstance(environment, dict) else {},
        train=table([row for row in rows if row.get("kind") == "train"]),
        valid=table([row for row in rows if row.get("kind") == "valid"]),
        experts=[row for row in rows if row.get("kind") == "experts"], events=events, summary=summary,
        sample=_text(path / "sample.txt", []) or str(summary.get("sample") or ""), problems=problems,
    )  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows as columns; rows without a step are left out, and so is a second row of a step."""
    first: dict[int, Mapping[str, Any]] = {}
    for row in rows:
        step = row.get("step")
        if isinstance(step, int):
            first.setdefault(step, row)
    ordered = [_flat(first[step]) for step in sorted(first)]
    names = dict.fromkeys(name for row in ordered for name, value in row.items() if real(value) is not None)
    columns = {name: np.array([real(row.get(name)) for row in ordered], dtype=np.float64) for name in names}
    return Table(np.array(sorted(first), dtype=np.float64), columns)


def _flat(row: Mapping[str, Any]) -> dict[str, object]:
    """A row with the numbers of its mappings as `breakdown_s.compute`, and `skipped` as 1."""
    flat: dict[str, object] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": item for name, item in value.items()}
        else:
            flat[key] = 1 if key == "skipped" and value is True else value
    return flat


def _text(path: Path, problems: list[str]) -> str:
    try:
        return read_bytes(path, JSON_BYTES).decode(errors="replace")
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
    except (OSError, ValueError) as error:
        problems.append(f"{path.name}: {reason(error)}")
    return ""


def _mapping(text: str, name: str, problems: list[str]) -> dict[str, object]:
    """The keys of a file that should hold some; what is wrong with it goes to `problems`."""
    if not text.strip():
        return {}
    try:
        value = parse_yaml(text, name) if name.endswith(".yaml") else parse_json(text)
    except (UserError, ValueError) as error:
        problems.append(str(error) if isinstance(error, UserError) else f"cannot read {name}: {error}")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{name} holds no keys")
        return {}
    return value


def attempts(events: Sequence[Event]) -> list[list[Event]]:
    """The events of every life that did something.

    A fault that the run outlives, such as a save that failed, ends none. The notes on damaged checkpoints
    that a resume writes before its own event lie between two lives.
    """
    return [life for life in _split(events) if not _is_idle(life)]


def resumes(events: Sequence[Event]) -> list[Event]:
    """The resumes that went on with the run."""
    return [life[0] for life in attempts(events) if life[0]["kind"] == "resume"]


def spans(events: Sequence[Event]) -> list[tuple[float, float]]:
    """(begin, end) of every life, in seconds since the epoch."""
    timed = [event for event in events if isinstance(event.get("time"), (int, float))]
    return [(float(life[0]["time"]), float(life[-1]["time"])) for life in attempts(timed)]


def elapsed(events: Sequence[Event]) -> float | None:
    """Seconds that the lives took in all; None before anything happened."""
    return sum(end - begin for begin, end in spans(events)) or None


def _split(events: Sequence[Event]) -> Iterator[list[Event]]:
    life: list[Event] = []
    later: list[Event] = []  # after an end: of this life only if it turns out to have gone on
    for event in events:
        if event["kind"] in STARTS:
            if life:
                yield life
            life, later = [event], []
        elif life and life[-1]["kind"] in ENDS and event["kind"] in ENDS:
            later.append(event)
        elif life:
            life += [*later, event]
            later = []
    if life:
        yield life


def _is_idle(life: Sequence[Event]) -> bool:
    """A resume that ended at the step where it began, with nothing saved or changed."""
    if life[0]["kind"] != "resume" or life[-1]["kind"] not in ("finish", "stop"):
        return False
    worked = any(event["kind"] in ("save", "changed") for event in life)
    return not worked and life[-1].get("step") == life[0].get("step")
