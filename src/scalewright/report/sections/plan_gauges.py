"""How sure the two numbers are on which a plan stands: the step's p10 to p90, and memory against its limit.

step time   ├──────────▒▒▒▒▒▒▒|▒▒▒▒▒▒▒▒──┤      6.90 s – 9.06 s, middle 7.91 s
memory      ├─────────────────▒▒▒|▒▒▒▒───┃──┤   66.1 GiB of 72.0 usable
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scalewright.plan.terms import RISK_TERMS
from scalewright.report.document import Estimate, PlanDocument
from scalewright.spec.common.formatting import decimal, gib, share, short_time

TIGHT = 0.1  # of the usable memory: with less to spare and no band, what a plan leaves out may not fit
COLOURS = {"fits": "good", "likely": "warn", "unlikely": "bad", "no": "bad"}
RISKS = {key: (term, COLOURS[key]) for key, term in RISK_TERMS.items()}


def memory_band(estimate: Estimate) -> tuple[float, float] | None:
    """GiB that one of ten and nine of ten runs stay below; None where the plan gives no band."""
    band = estimate.read.data.get("memory_p10_p90_gib")
    if not isinstance(band, Sequence) or isinstance(band, str) or len(band) != 2:
        return None
    low, high = band
    known = all(isinstance(end, (int, float)) and not isinstance(end, bool) for end in band)
    return (float(low), float(high)) if known else None


def risk(document: PlanDocument, estimate: Estimate) -> tuple[str, str]:
    """Whether it fits, in words that admit what isn't certain, and their colour."""
    key = estimate.read.data.get("risk")
    if isinstance(key, str) and key in RISKS:
        return RISKS[key]
    if estimate.fits is False:
        return RISKS["no"]
    usable, peak = document.device.number("usable_gib"), estimate.peak_gib
    if not usable or peak is None:
        return ("planned", "plain") if estimate.fits is None else ("fits", "good")
    spare = (usable - peak) / usable
    if spare < 0:
        return RISKS["no"]
    return (f"tight: {share(spare)} of memory to spare", "warn") if spare < TIGHT else RISKS["fits"]


def gauges(document: PlanDocument, estimate: Estimate) -> list[dict[str, Any]]:
    """The step's bar and the memory's; a bar without a band is left out."""
    return [bar for bar in (_time(estimate), _memory(document, estimate)) if bar is not None]


def _time(estimate: Estimate) -> dict[str, Any] | None:
    low, high = estimate.low, estimate.high
    if low is None or high is None:
        return None
    end = 1.12 * high
    return {
        "label": "Step time",
        "value": short_time(estimate.seconds),
        "fill": 0.0,
        "band": (low / end, (high - low) / end),
        "middle": estimate.seconds / end,
        "marks": [(edge / end, short_time(edge)) for edge in (low, high)],
        "limit": None,
        "note": "8 of 10 such runs are expected between p10 and p90",
        "kind": "",
    }


def _memory(document: PlanDocument, estimate: Estimate) -> dict[str, Any] | None:
    usable, nominal = document.device.number("usable_gib"), document.device.number("memory_gib")
    if estimate.peak_gib is None or not usable:
        return None
    band = memory_band(estimate)
    end = 1.04 * max(nominal or usable, estimate.peak_gib, band[1] if band else 0.0)
    note = f"of {decimal(usable, 3)} GiB that a device gives"
    note += f" ({decimal(nominal, 3)} in all)" if nominal else ""
    note += f"; p10–p90 {decimal(band[0], 3)} – {decimal(band[1], 3)} GiB" if band else ""
    return {
        "label": "Memory of the fullest rank",
        "value": gib(estimate.peak_gib),
        "fill": estimate.peak_gib / end,
        "band": (band[0] / end, (band[1] - band[0]) / end) if band else None,
        "middle": None,
        "marks": [],
        "limit": (usable / end, gib(usable)),
        "note": note,
        "kind": risk(document, estimate)[1],
    }
