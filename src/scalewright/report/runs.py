"""Several runs side by side: what differs in their settings, what each reached, and their losses by tokens.

    run folders ──► Comparison ──► `compare` (terminal, JSON)
                               └─► overlay page (report/overlay.py)

The best run is that of the lowest last validation loss, where all have one that is finite; else of the lowest
last training loss.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.report.folder import FILES, RunFolder, Table, read_folder
from scalewright.report.sections.configuration import say, source
from scalewright.report.sections.health import status
from scalewright.report.series import smooth
from scalewright.spec.common.dotted import dotted
from scalewright.spec.common.formatting import count, decimal, short_time
from scalewright.spec.errors import UserError

PLACES = (0.25, 0.5, 0.75, 1.0)  # of the tokens of the shortest run
UNREMARKABLE = ("finished", "no events")  # how a run ended, where that needs no word
OWN = ("name", "out_dir", "environment", "version", "resume", "run_id")  # what no two runs share


@dataclass(frozen=True)
class Entry:
    """The last numbers of one run; null where nothing is known, or where the last value isn't finite."""

    name: str
    path: str
    steps: int
    tokens: int | None
    loss: float | None
    valid_loss: float | None
    bits_per_byte: float | None
    step_time_s: float | None  # median
    tokens_per_s: float | None  # median
    memory_gib: float | None
    status: str  # how its newest life ended: finished, diverged, failed, ...
    problems: list[str]  # of its files


@dataclass(frozen=True)
class Comparison:
    """All that is known of the runs together; lists are in the order of `runs`."""

    runs: list[Entry]
    differences: dict[str, list[Any]]  # by dotted key
    aligned_tokens: list[float]
    aligned_loss: list[list[float | None]]  # smoothed, of each run at those tokens
    by: str  # valid_loss or loss
    best: str | None


def find_runs(paths: Sequence[str | Path]) -> list[RunFolder]:
    """The runs that paths name: folders of runs, or folders of such folders; raises UserError for others."""
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        if path.is_file():
            raise UserError("it is a file, not a run's folder", str(path), "give the out_dir of a run")
        inside = [path]
        if path.is_dir() and not is_run(path):
            inside = sorted(child for child in path.iterdir() if child.is_dir() and is_run(child))
            if not inside:
                raise UserError("no run is here", str(path), "give the out_dir of a run, or a folder of several")
        for folder in inside:
            folders.setdefault(folder.resolve(), folder)
    return [read_folder(folder) for folder in folders.values()]


def is_run(path: Path) -> bool:
    return any((path / name).exists() for name in FILES)


def compare(runs: Sequence[RunFolder]) -> Comparison:
    """Lays runs side by side; raises UserError for fewer than two."""
    if len(runs) < 2:
        raise UserError("one run is nothing to compare", "runs", "give two runs or more")
    names = names_of(runs)
    entries = [_entry(run, name) for run, name in zip(runs, names, strict=True)]
    by = "valid_loss" if all(entry.valid_loss is not None for entry in entries) else "loss"
    ranked = [(value, entry.name) for entry in entries if (value := getattr(entry, by)) is not None]
    tokens, losses = aligned(runs)
    return Comparison(entries, differences(runs), tokens, losses, by, min(ranked)[1] if ranked else None)


def names_of(runs: Sequence[RunFolder]) -> list[str]:
    """Their names; their paths, where two have the same name."""
    names = [run.name for run in runs]
    return [str(run.path) if names.count(name) > 1 else name for run, name in zip(runs, names, strict=True)]


def differences(runs: Sequence[RunFolder]) -> dict[str, list[Any]]:
    """The settings that aren't the same in all, by dotted key; null where a run has none."""
    own = [{key: value for key, value in run.config.items() if key not in OWN} for run in runs]
    flat = [dict(dotted(config)) for config in own]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    table = {key: [settings.get(key) for settings in flat] for key in keys}
    return {key: row for key, row in table.items() if len({json.dumps(value) for value in row}) > 1}


def aligned(runs: Sequence[RunFolder]) -> tuple[list[float], list[list[float | None]]]:
    """The losses, smoothed, at a few places up to the fewest tokens of any run; empty without tokens."""
    ends = [run.train.last("tokens") for run in runs]
    shortest = min((end for end in ends if end is not None), default=0.0)
    if not shortest or None in ends:
        return [], []
    places = [share * shortest for share in PLACES]
    return places, [[_at(run.train, place) for place in places] for run in runs]


def setting(value: Any) -> str:
    """One setting as a table shows it; sources of data by their paths and weights.

    >>> setting([{"path": "data/a", "weight": 3.0, "format": "auto"}, {"path": "data/b", "weight": 1.0}])
    'data/a, weight 3; data/b, weight 1'
    """
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        return "; ".join(source(item, alone=len(value) == 1) for item in value)
    return say(value)


def cells(entry: Entry) -> dict[str, str]:
    """The results of a run by the columns of a table."""
    return {
        "valid loss": decimal(entry.valid_loss),
        "loss": decimal(entry.loss),
        "steps": f"{entry.steps:,}",
        "tokens": count(entry.tokens),
        "tokens/s": count(entry.tokens_per_s),
        "step": short_time(entry.step_time_s),
        "GiB": decimal(entry.memory_gib, 3),
    }


def _at(train: Table, tokens: float) -> float | None:
    known = np.isfinite(train.get("tokens")) & np.isfinite(train.get("loss"))
    if not known.any():
        return None
    loss = smooth(train.get("loss")[known], max(5, len(train) / 40))
    return float(np.interp(tokens, train.get("tokens")[known], loss))


def _entry(run: RunFolder, name: str) -> Entry:
    tokens = run.train.last("tokens")
    return Entry(
        name=name,
        path=str(run.path),
        steps=int(run.train.steps[-1]) if len(run.train) else 0,
        tokens=int(tokens) if tokens is not None else None,
        loss=run.train.last("loss"),
        valid_loss=run.valid.last("loss"),
        bits_per_byte=run.valid.last("bits_per_byte"),
        step_time_s=run.train.median("step_time_s"),
        tokens_per_s=run.train.median("tokens_per_s"),
        memory_gib=run.train.highest("memory_gib"),
        status=status(run)[0],
        problems=list(run.problems),
    )
