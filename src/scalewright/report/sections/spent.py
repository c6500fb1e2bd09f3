"""Where a step's time went: the parts that the run timed, beside the parts that were predicted.

    breakdown_s of each step -> medians      compute  ▓▓▓▓▓▓▓▓▓▓▓▓▓        148 ms   61%
    breakdown_s of the prediction            predicted ▓▓▓▓▓▓▓▓▓▓▓          131 ms

Both name the axes differently (comm_dp_shard, dp_exposed): spec/step_parts.py brings them to one word each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from scalewright.report.folder import RunFolder
from scalewright.report.page import Section
from scalewright.spec.common.formatting import share, short_time
from scalewright.spec.step_parts import PARTS, together


def section(run: RunFolder) -> Section | None:
    measured, predicted = measured_parts(run), together(predicted_event(run).get("breakdown_s"))
    if not measured:
        return None
    whole, longest = sum(measured.values()), max(sum(measured.values()), sum(predicted.values()))
    keys = [*PARTS, *(key for key in {**measured, **predicted} if key not in PARTS)]
    rows = [
        {
            "number": min(number, 9),
            "name": PARTS.get(key, key.replace("_", " ")),
            "measured": short_time(measured.get(key, 0.0)),
            "share": share(measured.get(key, 0.0) / whole),
            "predicted": short_time(predicted[key]) if key in predicted else "–",
            "measured_share": measured.get(key, 0.0) / longest,
            "predicted_share": predicted.get(key, 0.0) / longest,
        }
        for number, key in enumerate(keys)
        if measured.get(key, 0.0) + predicted.get(key, 0.0) > 5e-5 * longest
    ]
    data = {
        "rows": rows,
        "step": short_time(whole),
        "predicted": short_time(sum(predicted.values())) if predicted else "",
    }
    return Section("spent", "Where the time went", "spent.html", data)


def measured_parts(run: RunFolder) -> dict[str, float]:
    """Mean seconds of each part over the steps after the first of each life, scaled to the median step.

    Means add up where medians don't; the scale keeps one slow step from changing the whole.
    """
    names = [name for name in run.train.columns if name.startswith("breakdown_s.")]
    if not names:
        return {}
    steady = run.warm()
    seconds = run.train.get("step_time_s")
    if not (steady & np.isfinite(seconds)).any():
        steady = np.ones(len(seconds), dtype=bool)
    median = float(np.nanmedian(seconds[steady])) if np.isfinite(seconds[steady]).any() else None
    steady &= ~(seconds > (3 * median if median is not None else np.inf))
    means = {
        name.removeprefix("breakdown_s."): float(np.nan_to_num(run.train.get(name)[steady]).mean())
        for name in names
    }
    whole = sum(means.values())
    scale = median / whole if median is not None and whole else 1.0
    return together({name: seconds * scale for name, seconds in means.items()})


def predicted_event(run: RunFolder) -> Mapping[str, Any]:
    """The newest prediction of the run: {p10, p50, p90, breakdown_s, note}; empty without one."""
    return next((event for event in reversed(run.events) if event["kind"] == "predicted"), {})
