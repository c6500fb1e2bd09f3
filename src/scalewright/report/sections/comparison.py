"""What was predicted beside what was measured, and where a step's time went by both.

    breakdown_s of each step -> medians      compute  ▓▓▓▓▓▓▓▓▓▓▓▓▓        148 ms   61%
    breakdown_s of the prediction            predicted ▓▓▓▓▓▓▓▓▓▓▓          131 ms

Both name the axes differently (comm_dp_shard, dp_exposed): spec/step_parts.py brings them to one word each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalewright.diagnose.logs.lines import real
from scalewright.report.folder import RunFolder
from scalewright.report.page import Section
from scalewright.report.sections.overview import Steady
from scalewright.report.series import Kind, say
from scalewright.spec.common.formatting import against, metric, share, short_time
from scalewright.spec.step_parts import PARTS, together

KINDS: dict[str, Kind] = {"_s": "seconds", "_gib": "gib", "mfu": "percent", "per_s": "count"}
REST = ("activations", "buffers", "other")  # what is measured together
NAMES = {"rest": ", ".join(REST)}
SMALLEST = {"memory_gib": 0.0005, "comm_bytes": 0.0}  # what is shown as 0


@dataclass(frozen=True)
class Pair:
    """One quantity twice; bar lengths are shares of the longer."""

    label: str
    predicted: str
    measured: str
    predicted_share: float
    measured_share: float
    off: str  # measured against predicted
    band: tuple[float, float] | None = None  # p10 and p90, as shares of the same scale
    verdict: str = ""


def section(run: RunFolder) -> Section | None:
    compared, note = pairs(run), str(run.newest("predicted").get("note") or "")
    if not compared:
        return None
    data = {"pairs": compared, "note": note, "counts": counts(run)}
    return Section("comparison", "Predicted and measured", "comparison.html", data)


def counts(run: RunFolder) -> list[dict[str, str]]:
    """Rows of memory by kind and of bytes sent by axis; a dash where one of the two isn't known."""
    promised, event, rows = run.newest("predicted"), run.newest("measured"), []
    for key, smallest in SMALLEST.items():
        predicted, measured = numbers(promised.get(key)), numbers(event.get(key))
        if "rest" in measured and not predicted.keys().isdisjoint(REST):
            predicted["rest"] = sum(predicted.pop(kind, 0.0) for kind in REST)
        for kind in dict.fromkeys([*predicted, *measured]):
            then, now = predicted.get(kind), measured.get(kind)
            if max(then or 0.0, now or 0.0) > smallest:
                name = f"sent by {kind}" if key == "comm_bytes" else NAMES.get(kind, kind)
                off = against(now, then) if then and now else ""
                rows.append({"name": name, "predicted": _size(key, then), "measured": _size(key, now), "off": off})
    return rows


def _size(key: str, size: float | None) -> str:
    if size is None:
        return "–"
    return say(size, "gib") if key == "memory_gib" else metric(size, "B")


def numbers(part: object) -> dict[str, float]:
    """The numbers of an event's part; a damaged one has none."""
    items = part.items() if isinstance(part, dict) else ()
    return {str(key): value for key, each in items if (value := real(each)) is not None}


def pairs(run: RunFolder) -> list[Pair]:
    """Every `predicted_x` of the summary with its `measured_x`, or with the median of the steps."""
    steady, event = Steady.of(run), run.newest("predicted")
    raw: dict[str, object] = {
        "measured_step_time_s": steady.step_time_s, "measured_tokens_per_s": steady.tokens_per_s,
        "predicted_step_time_s": event.get("p50"),
        "predicted_p10_s": event.get("p10"), "predicted_p90_s": event.get("p90"),
    }  # fmt: skip
    if run.config.get("device") == "cuda":  # a CPU process' memory is Python's and its libraries', too
        raw["predicted_peak_memory_gib"] = numbers(event.get("memory_gib")).get("peak")
        raw["measured_peak_memory_gib"] = run.train.highest("memory_gib")
    # What the steps show counts more than the summary, which is of the last call.
    raw = dict(run.summary) | {key: value for key, value in raw.items() if value is not None}
    known = {key: value for key, each in raw.items() if (value := real(each)) is not None and value > 0}
    band = [known[key] for key in ("predicted_p10_s", "predicted_p90_s") if key in known]
    compared = []
    for key, predicted in known.items():
        name = key.removeprefix("predicted_")
        measured = known.get(f"measured_{name}")
        if name != key and measured is not None:
            known_band = band if name == "step_time_s" and len(band) == 2 else None
            compared.append(_pair(name, predicted, measured, known_band))
    return compared


def _pair(name: str, predicted: float, measured: float, band: Sequence[float] | None = None) -> Pair:
    kind: Kind = next((kind for end, kind in reversed(KINDS.items()) if name.endswith(end)), "number")
    label = name.removesuffix("_s").removesuffix("_gib") if kind in ("seconds", "gib") else name
    longest = max(predicted, measured, *(band or ()))
    shares = predicted / longest, measured / longest
    label, off = label.replace("_", " ").replace("per s", "per second"), against(measured, predicted)
    pair = Pair(label, say(predicted, kind), say(measured, kind), *shares, off)
    if band is None:
        return pair
    return replace(pair, band=(band[0] / longest, band[1] / longest), verdict=_verdict(measured, band, kind))


def _verdict(measured: float, band: Sequence[float], kind: Kind) -> str:
    """Whether the measured value lies in the band; a slower one may have had other work beside it."""
    text = f"p10–p90: {say(band[0], kind)} – {say(band[1], kind)}. "
    if band[0] <= measured <= band[1]:
        return text + "The measured step lies in it."
    if measured > band[1]:
        return text + "The measured step is slower than that. Other work on the same machine counts, too."
    return text + "The measured step is faster than that."


def spent_section(run: RunFolder) -> Section | None:
    measured, predicted = measured_parts(run), together(run.newest("predicted").get("breakdown_s"))
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
    total = short_time(sum(predicted.values())) if predicted else ""
    data = {"rows": rows, "step": short_time(whole), "predicted": total}
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
    means = {name: float(np.nan_to_num(run.train.get(name)[steady]).mean()) for name in names}
    whole = sum(means.values())
    scale = median / whole if median is not None and whole else 1.0
    return together({name.removeprefix("breakdown_s."): seconds * scale for name, seconds in means.items()})
