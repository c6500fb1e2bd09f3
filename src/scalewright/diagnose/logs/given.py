"""What a user adds to a log or a trace. Apart, so that a trace is read without what prices a log's steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalewright.spec.question import Question

METRICS, EVENTS, RUN = "metrics.jsonl", "events.jsonl", "run.yaml"


@dataclass(frozen=True)
class Given:
    """What the user adds to the log, or replaces in it."""

    model: str | None = None
    cluster: str | None = None
    layout: Mapping[str, Any] = field(default_factory=dict)
    seq_len: int | None = None
    configured: Question | None = None  # the run as another trainer's configuration has it


def is_run_folder(path: Path) -> bool:
    """Whether a folder is one that `train` wrote."""
    return path.is_dir() and (path / METRICS).is_file() and (path / RUN).is_file()
