"""What was predicted beside what was measured, wherever a run's summary holds both."""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.report.folder import RunFolder
from scalewright.report.page import Section
from scalewright.report.scale import Kind, say
from scalewright.report.sections.overview import Steady

KINDS: dict[str, Kind] = {"_s": "seconds", "_gib": "gib", "mfu": "percent", "per_s": "count"}


@dataclass(frozen=True)
class Pair:
    """One quantity twice; bar lengths are shares of the longer."""

    label: str
    predicted: str
    measured: str
    predicted_share: float
    measured_share: float
    error: str


def section(run: RunFolder) -> Section | None:
    """The pairs; None when nothing was predicted."""
    found = pairs(run)
    return (
        Section("comparison", "Predicted and measured", "comparison.html", {"pairs": found})
        if found
        else None
    )


def pairs(run: RunFolder) -> list[Pair]:
    """Every `predicted_x` of the summary with its `measured_x`, or with what the steps say."""
    steady = Steady.of(run)
    known = {"measured_step_time_s": steady.step_time_s, "measured_tokens_per_s": steady.tokens_per_s}
    known |= {key: value for key, value in run.summary.items() if value is not None}
    found = []
    for key, predicted in known.items():
        name = key.removeprefix("predicted_")
        measured = known.get(f"measured_{name}")
        if name != key and _is_positive(predicted) and _is_positive(measured):
            found.append(_pair(name, float(predicted), float(measured)))  # type: ignore[arg-type]
    return found


def _pair(name: str, predicted: float, measured: float) -> Pair:
    kind: Kind = next((kind for end, kind in reversed(KINDS.items()) if name.endswith(end)), "number")
    label = name
    for end in ("_s", "_gib"):
        if kind in ("seconds", "gib"):
            label = label.removesuffix(end)
    longest = max(predicted, measured)
    error = 100 * (predicted / measured - 1)
    return Pair(
        label.replace("_", " ").replace("per s", "per second"),
        say(predicted, kind),
        say(measured, kind),
        predicted / longest,
        measured / longest,
        f"{error:+.1f}%".replace("-", "−"),
    )


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
