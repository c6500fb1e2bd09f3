"""Several runs side by side: what differs in their settings, what each reached, and their losses by tokens.

    run folders ──► Comparison ──► `compare` (terminal, JSON)
                               └─► page    ┌──────────────┐  (•) steps  ( ) tokens  ( ) time
                                           │╲╲__          │  a radio button shows one of three drawings:
                                           │ ╲‾‾‾──────── │  no script is needed
                                           └──────────────┘

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

from scalewright.report.chart import path as svg_path
from scalewright.report.folder import FILES, Column, RunFolder, Table, read_folder
from scalewright.report.page import Page, Section, render, write
from scalewright.report.sections.configuration import say, source
from scalewright.report.sections.health import status
from scalewright.report.series import Kind, frame, say_tick, smooth, thin, ticks
from scalewright.spec.common.formatting import count, decimal, dotted, duration, short_time
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
    configs = [{key: value for key, value in run.config.items() if key not in OWN} for run in runs]
    flat = [dict(dotted(config)) for config in configs]
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
        "valid loss": decimal(entry.valid_loss), "loss": decimal(entry.loss), "steps": f"{entry.steps:,}",
        "tokens": count(entry.tokens), "tokens/s": count(entry.tokens_per_s), "step": short_time(entry.step_time_s),
        "GiB": decimal(entry.memory_gib, 3),
    }  # fmt: skip


def _at(train: Table, tokens: float) -> float | None:
    known = np.isfinite(train.get("tokens")) & np.isfinite(train.get("loss"))
    if not known.any():
        return None
    loss = smooth(train.get("loss")[known], max(5, len(train) / 40))
    return float(np.interp(tokens, train.get("tokens")[known], loss))


def _entry(run: RunFolder, name: str) -> Entry:
    tokens = run.train.last("tokens")
    return Entry(
        name=name, path=str(run.path), steps=int(run.train.steps[-1]) if len(run.train) else 0,
        tokens=int(tokens) if tokens is not None else None, loss=run.train.last("loss"),
        valid_loss=run.valid.last("loss"), bits_per_byte=run.valid.last("bits_per_byte"),
        step_time_s=run.train.median("step_time_s"), tokens_per_s=run.train.median("tokens_per_s"),
        memory_gib=run.train.highest("memory_gib"), status=status(run)[0], problems=list(run.problems),
    )  # fmt: skip


COLOURS = 8  # of the lines; further runs share them, dashed
COMPARED_BY = {
    "valid_loss": "compared by their last validation loss",
    "loss": "compared by their last training loss: not all of them validate",
}
AXES: tuple[tuple[str, str, Kind], ...] = (
    ("steps", "Steps", "step"),
    ("tokens", "Tokens", "count"),
    ("time", "Time", "seconds"),
)


def write_overlay(runs: Sequence[RunFolder], out: str | Path, force: bool = False) -> Path:
    """Writes the page about two runs or more; raises UserError, also where it would replace another file."""
    return write(Path(out), render(page(runs)), force)


def page(runs: Sequence[RunFolder]) -> Page:
    comparison = compare(runs)
    names, by = [entry.name for entry in comparison.runs], COMPARED_BY[comparison.by]
    best = names.index(comparison.best) if comparison.best else None
    charts = [chart for title, split in (("Training loss", "train"), ("Validation loss", "valid"))
              if (chart := drawing(runs, title, split)) is not None]  # fmt: skip
    sections = [
        Section("losses", "Losses", "overlay.html", {"charts": charts, "best": best}),
        Section("runs", "Runs", "overlay_runs.html", {"rows": rows(comparison), "by": by}),
    ]
    if comparison.differences:
        changed = {key: [setting(value) for value in values] for key, values in comparison.differences.items()}
        data = {"names": names, "rows": changed}
        sections.append(Section("differences", "What differs", "overlay_differences.html", data))
    return Page(
        title=f"{len(runs)} runs", status=f"best: {comparison.best}" if comparison.best else "",
        status_kind="good" if comparison.best else "plain", facts=[by], sections=sections,
        notes=[f"{run.name}: {problem}" for run in runs for problem in run.problems], scripts=("words.js", "theme.js"),
        styles=("report.css", "overlay.css"),
    )  # fmt: skip


def drawing(runs: Sequence[RunFolder], title: str, split: str) -> dict[str, object] | None:
    """One frame of all runs' losses, once for each axis; None where no run has any."""
    lines = [_line(run, split) for run in runs]
    if not any(np.isfinite(loss).any() for _, loss in lines):
        return None
    low, high = frame([loss if len(loss) < 200 else loss[len(loss) // 33 :] for _, loss in lines], False)
    views = []
    for key, label, kind in AXES:
        places = [line[0][key] for line in lines]
        end = max((float(x[-1]) for x in places if len(x) and np.isfinite(x[-1])), default=0.0)
        if end <= 0:
            continue
        paths = []
        for number, (xs, (_, loss)) in enumerate(zip(places, lines, strict=True)):
            if len(xs):
                drawn_xs, values = thin(xs, loss)
                shares = [(high - value) / (high - low) for value in values.tolist()]
                paths.append({"d": svg_path([x / end for x in drawn_xs.tolist()], shares), **_line_of(number)})
        unit = 1.0 if key != "time" or end < 180 else 60.0 if end < 3 * 3600 else 3600.0  # round minutes, hours
        marks = [
            {"at": tick / end, "text": duration(tick) if key == "time" else say_tick(tick, kind)}
            for tick in (number * unit for number in ticks(0.0, end / unit))
        ]
        views.append({"key": key, "label": label, "paths": paths, "x": marks})
    y = [{"at": (tick - low) / (high - low), "text": say_tick(tick, "number")} for tick in ticks(low, high, 6)]
    legend = [{"name": name, **_line_of(number)} for number, name in enumerate(names_of(runs))]
    return {"id": split, "title": title, "views": views, "y": y, "legend": legend}


def _line_of(number: int) -> dict[str, int]:
    return {"line": number % COLOURS, "dashed": number >= COLOURS, "run": number}


def _line(run: RunFolder, split: str) -> tuple[dict[str, Column], Column]:
    """Where a run's losses lie on each axis, and the losses; those of training smoothed."""
    train = run.train
    seconds = np.cumsum(np.nan_to_num(train.get("step_time_s")))
    if split == "train":
        loss = train.get("loss")
        loss = smooth(loss, min(max(len(loss) / 40, 5), 500)) if len(loss) >= 20 else loss
        return {"steps": train.steps, "tokens": train.get("tokens"), "time": seconds}, loss
    steps, loss = run.valid.steps, run.valid.get("loss")
    if not len(train):
        return {"steps": steps, "tokens": steps * np.nan, "time": steps * np.nan}, loss
    tokens = np.interp(steps, train.steps, np.nan_to_num(train.get("tokens")))
    return {"steps": steps, "tokens": tokens, "time": np.interp(steps, train.steps, seconds)}, loss


def rows(comparison: Comparison) -> list[dict[str, object]]:
    """The table of runs, in words; best first."""

    def last_loss(entry: Entry) -> float:
        loss = entry.valid_loss if comparison.by == "valid_loss" else entry.loss
        return float("inf") if loss is None else loss

    order = {entry.name: number for number, entry in enumerate(comparison.runs)}
    return [
        {
            "name": entry.name,
            "best": entry.name == comparison.best,
            "status": "" if entry.status in UNREMARKABLE else entry.status,
            "cells": list(cells(entry).items()),
            **_line_of(order[entry.name]),
        }
        for entry in sorted(comparison.runs, key=last_loss)
    ]
