"""Latency against throughput: the layout from one request in flight to as many as fit, other layouts, measured runs.

seconds (log)|                  o   more in flight: more tokens/s, and each one later
a token      | - - target - - -o- -
             |  o    o   o (32)     (32)  what was asked: so many in flight
             +--------------------- tokens/s a device
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scalewright.report.page import Section
from scalewright.report.sections.plan_layouts import at, framed
from scalewright.report.series import say_tick, ticks
from scalewright.spec.common.formatting import count, short_time

Answer = Mapping[str, Any]
TITLES = {"tpot_s": "Each token (TPOT)", "ttft_s": "First token (TTFT)"}
FARTHEST = 4.0  # times the curve's highest rate: measured runs beyond it would press it flat
MARGIN = 1.3
ROUND, FEW = (1, 2, 5), 8.0


class Place(NamedTuple):
    """A dot: tokens/s a device, seconds, and what it says."""

    rate: float
    seconds: float
    kind: str  # "", front, best, measured
    name: str
    label: str = ""


def sections(answer: Answer) -> list[Section]:
    """One plot for each latency; none where the layout doesn't fit."""
    if not answer["fits"] or len(answer.get("curve", ())) < 2:
        return []
    plots = [plot(answer, key) for key in TITLES]
    return [Section("curves", "Latency against throughput", "serving_curves.html", {"plots": plots})]


def plot(answer: Answer, key: str) -> dict[str, Any]:
    """The plot of a latency, as shares of its frame."""
    places = list(curve(answer, key))
    drawn = len(places)
    places += [*others(answer, key), *measured(answer, key, FARTHEST * max(place.rate for place in places))]
    places.append(asked(answer, key))
    targets = answer.get("targets") or {}
    limit = targets.get(key)
    seconds = [place.seconds for place in places] + ([limit] if limit else [])
    xs, ys = framed([0.0, *(place.rate for place in places)]), (min(seconds) / MARGIN, max(seconds) * MARGIN)
    dots = [
        {"x": at(place.rate, xs), "y": 1 - _log_at(place.seconds, ys), "kind": place.kind, "label": place.label,
         "name": place.name, "value": f"{short_time(place.seconds)}, {count(place.rate)} tokens/s a device"}
        for place in places
    ]  # fmt: skip
    line = " ".join(
        f"{1000 * at(place.rate, xs):.1f} {1000 - 1000 * _log_at(place.seconds, ys):.1f}" for place in places[:drawn]
    )
    return {
        "title": TITLES[key], "dots": dots, "path": f"M{line}",
        "kinds": {place.kind for place in places},
        "x_ticks": [{"at": at(tick, xs), "text": say_tick(tick, "number")} for tick in ticks(*xs, 6)],
        "y_ticks": [{"at": _log_at(tick, ys), "text": short_time(tick)} for tick in log_ticks(*ys)],
        "limit": _log_at(limit, ys) if limit else None,
        "limit_text": f"target {short_time(limit)}" if limit else "",
    }  # fmt: skip


def curve(answer: Answer, key: str) -> Sequence[Place]:
    """The layout by requests in flight."""
    return [
        Place(row["output_tokens_per_s_per_device"], row[key], "", f"{count(row['concurrency'])} in flight")
        for row in answer["curve"] if row[key] > 0
    ]  # fmt: skip


def others(answer: Answer, key: str) -> list[Place]:
    """Other layouts of a search that keep the targets: the cheapest, and those that none beats in both."""
    found = answer.get("search", {})
    rows = {_words(row["layout"]): row for row in (*found.get("pareto", ()), *found.get("best", ()))}
    rows.pop(_words(answer["layout"]), None)
    return [Place(row["output_tokens_per_s_per_device"], row[key], "front", name) for name, row in rows.items()]


def measured(answer: Answer, key: str, farthest: float) -> list[Place]:
    """The nearest measured runs that have this latency and rates of output."""
    places = []
    for row in answer.get("evidence", {}).get("nearest", ()):
        if row.get(key) and row["of"] == "output" and row["measured"] / row["n_devices"] <= farthest:
            name = f"measured: {row['model']} on {row['n_devices']} x {row['device']}, {row['engine']}, {row['source']}"
            places.append(Place(row["measured"] / row["n_devices"], row[key], "measured", name))
    return places


def asked(answer: Answer, key: str) -> Place:
    """The load that was asked for."""
    inside = answer["batch"] * answer["layout"]["replicas"]
    name = f"{_words(answer['layout'])}: {count(inside)} being served"
    return Place(answer["output_tokens_per_s_per_device"], answer[key]["p50"], "best", name, f"{inside:.0f}")


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two numbers; powers alone where that is many, even steps where few."""
    if high < FEW * low:
        return ticks(low, high, 4)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in (ROUND, ROUND[:1]):
        values = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
        if len(values) <= 8:
            break
    return values


def _log_at(value: float, frame: tuple[float, float]) -> float:
    return math.log(value / frame[0]) / math.log(frame[1] / frame[0])


def _words(shape: Mapping[str, int]) -> str:
    words = [f"{key} {value}" for key, value in shape.items() if key != "devices" and (key == "tp" or value > 1)]
    return " · ".join(words) + (" · 1 prefill" if shape["prefill"] == 1 else "")
