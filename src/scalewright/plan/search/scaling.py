"""Strong scaling of a run: the best layout of each device count, and the serial share of the work.

    seconds(n) ~ w (s + (1 - s) / n)      Amdahl 1967: s is the serial share of one device's work w
                                          fitted by least squares on relative errors over the counts that fit

`serial_part`: the parts of a step that are farthest from perfect scaling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scalewright.plan.search.finder import Stop
from scalewright.plan.search.goal import Goal
from scalewright.plan.search.search import Choice, search
from scalewright.plan.terms import PART_TERMS
from scalewright.spec.errors import UserError
from scalewright.spec.question import Question


def scaling(
    question: Question, goal: Goal, counts: Sequence[int], stop: Stop | None = None
) -> dict[str, Any]:
    """The best layout of every count at one global batch (strong scaling).

    {global_batch, rows, serial_share, one_device_s, fit_error, limit, serial_part}: the keys of `scaling` in
    `plan --json`. `serial_share` is of one device's work, `fit_error` the largest relative one, `limit` the
    speed-up over one device that no count exceeds; None with fewer than two counts that fit.
    """
    if not counts:
        raise UserError("no device counts to plan for", "scaling", "give a range such as 8..4096")
    found: dict[int, Choice | UserError] = {}
    for devices in counts:
        if stop is not None and stop():
            break
        try:
            count = replace(goal, devices=devices, top=1)
            found[devices] = search(question, count, stop=stop, explain=False).best[0]
        except UserError as error:
            found[devices] = error
    fitting = {devices: choice for devices, choice in found.items() if isinstance(choice, Choice)}
    if not fitting:
        how = str(list(found.values())[-1]) if found else "let it run on"
        raise UserError("no count has a layout that fits", "scaling", how)
    base = next(iter(fitting))
    rows = [_row(devices, choice, base, fitting[base]) for devices, choice in found.items()]
    return {"global_batch": goal.global_batch, "rows": rows, **_fit_curve(fitting)}


def _row(devices: int, choice: Choice | UserError, base: int, first: Choice) -> dict[str, Any]:
    """One device count: the best layout and its gain over `first` on `base` devices, or why there is none."""
    row: dict[str, Any] = {"devices": devices}
    if isinstance(choice, UserError):
        missing = ("step_time_s", "tokens_per_s", "speedup", "efficiency", "prediction")
        return row | dict.fromkeys(missing) | {"problem": str(choice)}
    prediction = choice.prediction
    speedup = first.prediction.step_time_s / prediction.step_time_s
    return row | {
        "step_time_s": prediction.step_time_s,
        "tokens_per_s": prediction.tokens_per_s,
        "speedup": speedup,
        "efficiency": speedup * base / devices,
        "problem": None,
        "prediction": choice.dump(),
    }


def _fit_curve(fitting: Mapping[int, Choice]) -> dict[str, Any]:
    """Amdahl's law fitted to the times of the counts that fit."""
    if len(fitting) < 2:
        return {**dict.fromkeys(("serial_share", "one_device_s", "fit_error", "limit")), "serial_part": []}
    n = np.array(list(fitting), dtype=float)
    seconds = np.array([choice.prediction.step_time_s for choice in fitting.values()])
    constant, work = fit_amdahl(n, seconds)
    (few, first), *_, (many, last) = fitting.items()
    return {
        "serial_share": constant / (constant + work),
        "one_device_s": constant + work,
        "fit_error": float(np.abs((constant + work / n) / seconds - 1).max()),
        "limit": (constant + work) / constant if constant else None,
        "serial_part": _serial_parts(few, first, many, last),
    }


def fit_amdahl(n: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """a and b of a + b / n, neither below zero, by least squares on relative errors."""
    columns = np.stack([np.ones_like(n), 1 / n], 1) / seconds[:, None]
    (constant, work), *_ = np.linalg.lstsq(columns, np.ones_like(n), rcond=None)
    if constant < 0:
        inverse = 1 / (n * seconds)
        constant, work = 0.0, inverse.sum() / (inverse**2).sum()
    elif work < 0:
        inverse = 1 / seconds
        constant, work = inverse.sum() / (inverse**2).sum(), 0.0
    return float(constant), float(work)


def _serial_parts(few: int, first: Choice, many: int, last: Choice) -> list[dict[str, Any]]:
    """Seconds by which the parts of the last step exceed perfect scaling of the first, largest first."""
    before, after = first.prediction.breakdown, last.prediction.breakdown
    above = {part: after[part] - before[part] * few / many for part in after}
    total = sum(value for value in above.values() if value > 0)
    order = sorted((part for part in above if above[part] > 0.01 * total), key=lambda part: -above[part])
    rows = ((part, PART_TERMS[part], above[part], above[part] / total) for part in order)
    return [dict(zip(("part", "words", "seconds", "share"), row, strict=True)) for row in rows]
