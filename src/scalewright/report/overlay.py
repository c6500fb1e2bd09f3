"""One page about several runs: their losses in one frame by steps, tokens or time, and what differs.

┌──────────────┐  (•) steps  ( ) tokens  ( ) time     three drawings, of which a radio button shows one:
│╲╲__          │                                      no script is needed
│ ╲‾‾‾──────── │  best · lr-3e-4
└──────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scalewright.report.chart import path as svg_path
from scalewright.report.folder import Column, RunFolder
from scalewright.report.page import Page, Section, render, write
from scalewright.report.runs import UNREMARKABLE, Comparison, Entry, cells, compare, names_of, setting
from scalewright.report.series import Kind, frame, say_tick, smooth, thin, ticks
from scalewright.spec.common.formatting import duration

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
        title=f"{len(runs)} runs",
        status=f"best: {comparison.best}" if comparison.best else "",
        status_kind="good" if comparison.best else "plain",
        facts=[by],
        sections=sections,
        notes=[f"{run.name}: {problem}" for run in runs for problem in run.problems],
        scripts=("words.js", "theme.js"),
        styles=("report.css", "overlay.css"),
    )


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
            if not len(xs):
                continue
            drawn_xs, values = thin(xs, loss)
            shares = [(high - value) / (high - low) for value in values.tolist()]
            d = svg_path([x / end for x in drawn_xs.tolist()], shares)
            paths.append({"d": d, "line": number % COLOURS, "dashed": number >= COLOURS, "run": number})
        marks = [
            {"at": tick / end, "text": duration(tick) if key == "time" else say_tick(tick, kind)}
            for tick in _ticks(end, key)
        ]
        views.append({"key": key, "label": label, "paths": paths, "x": marks})
    y = [{"at": (tick - low) / (high - low), "text": say_tick(tick, "number")} for tick in ticks(low, high, 6)]
    legend = [
        {"name": name, "line": number % COLOURS, "dashed": number >= COLOURS, "run": number}
        for number, name in enumerate(names_of(runs))
    ]
    return {"id": split, "title": title, "views": views, "y": y, "legend": legend}


def _ticks(end: float, axis: str) -> list[float]:
    """Round numbers up to `end`; of seconds, round minutes or hours."""
    unit = 1.0 if axis != "time" or end < 180 else 60.0 if end < 3 * 3600 else 3600.0
    return [tick * unit for tick in ticks(0.0, end / unit)]


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
            "line": order[entry.name] % COLOURS,
            "dashed": order[entry.name] >= COLOURS,
            "cells": list(cells(entry).items()),
        }
        for entry in sorted(comparison.runs, key=last_loss)
    ]
