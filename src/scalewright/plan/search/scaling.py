"""Strong scaling of a run: the best layout of each device count, and the serial share of the work.

    seconds(n) ~ w (s + (1 - s) / n)      Amdahl 1967: s is the serial share of one device's work w
                                          fitted by least squares on relative errors over the counts that fit

`serial_parts`: the parts of a step that are farthest from perfect scaling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalewright.plan.search.search import Choice, search
from scalewright.plan.terms import PART_TERMS
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.model import ModelSpec


@dataclass(frozen=True)
class Row:
    """One device count: the best layout, or why there is none."""

    devices: int
    choice: Choice | None
    problem: str | None
    speedup: float | None  # over the smallest count that fits
    efficiency: float | None  # speedup over the ratio of the counts

    def dump(self) -> dict[str, Any]:
        """Plain data; the keys of `predict` under `prediction`."""
        prediction = self.choice.prediction if self.choice else None
        return {
            "devices": self.devices,
            "step_time_s": prediction.step_time_s if prediction else None,
            "tokens_per_s": prediction.tokens / prediction.step_time_s if prediction else None,
            "speedup": self.speedup,
            "efficiency": self.efficiency,
            "problem": self.problem,
            "prediction": self.choice.dump() if self.choice else None,
        }


@dataclass(frozen=True)
class Scaling:
    """The best layout of each device count, and Amdahl's law fitted to their times."""

    rows: list[Row]
    global_batch: int
    serial_share: float | None  # of one device's work; None with fewer than two counts that fit
    one_device_s: float | None  # seconds of a step on one device, by the fit
    fit_error: float | None  # the largest relative error of the fit
    serial_parts: list[dict[str, Any]]  # parts of the serial time, largest first: part, words, seconds, share

    @property
    def limit(self) -> float | None:
        """The speed-up over one device that no count exceeds."""
        return 1.0 / self.serial_share if self.serial_share else None

    def dump(self) -> dict[str, Any]:
        """Plain data: the keys of `plan --scaling --json`."""
        return {
            "global_batch": self.global_batch,
            "rows": [row.dump() for row in self.rows],
            "serial_share": self.serial_share,
            "one_device_s": self.one_device_s,
            "fit_error": self.fit_error,
            "limit": self.limit,
            "serial_part": self.serial_parts,
        }


def scaling(
    model: ModelSpec,
    cluster: ClusterSpec,
    counts: Sequence[int],
    *,
    global_batch: int,
    tell: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
    **arguments: Any,
) -> Scaling:
    """The best layout of every count at one global batch (strong scaling); `arguments` as for `search`."""
    if not counts:
        raise UserError("no device counts to plan for", "scaling", "give a range such as 8..4096")
    results: list[tuple[int, Choice | None, str | None]] = []
    keys = {**arguments, "global_batch": global_batch, "top": 1, "explain": False, "stop": stop}
    for done, devices in enumerate(counts):
        if stop is not None and stop():
            break
        try:
            plan = search(model, cluster, devices=devices, **keys)
            results.append((devices, plan.best[0], None))
        except UserError as error:
            results.append((devices, None, str(error)))
        if tell is not None:
            tell(done + 1, len(counts))
    if all(choice is None for _, choice, _ in results):
        how = str(results[-1][2]) if results else "let it run on"
        raise UserError("no count has a layout that fits", "scaling", how)
    return _fit_curve(results, global_batch)


def _fit_curve(results: list[tuple[int, Choice | None, str | None]], global_batch: int) -> Scaling:
    """Speed-ups over the first count that fits, and the fit."""
    fitting = [(devices, choice) for devices, choice, _ in results if choice is not None]
    base, first = fitting[0]
    rows = []
    for devices, choice, problem in results:
        speedup = first.prediction.step_time_s / choice.prediction.step_time_s if choice else None
        rows.append(Row(devices, choice, problem, speedup, speedup * base / devices if speedup else None))
    if len(fitting) < 2:
        return Scaling(rows, global_batch, None, None, None, [])
    n = np.array([devices for devices, _ in fitting], dtype=float)
    seconds = np.array([choice.prediction.step_time_s for _, choice in fitting])
    constant, work = fit_amdahl(n, seconds)
    error = float(np.abs((constant + work / n) / seconds - 1).max())
    parts = _serial_parts(base, first, fitting[-1][0], fitting[-1][1])
    return Scaling(rows, global_batch, constant / (constant + work), constant + work, error, parts)


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
