"""Products in fewer than 16 bits: what they would gain over a plan in 16, and what they risk.

    plan in bf16 --best score as ceiling--> the same search in fp8, mxfp8, nvfp4 --> faster layouts, each with its risk

Tried are those that the device has a rate for and the trainer has (spec/capabilities.yaml). How many bits a run needs
to learn as well is no matter of seconds: a plan stays in 16 bits unless its user says otherwise (`--precision`), and
names the rest with what is known of it (plan/data/precisions.yaml). `any`: the fastest of all.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TypedDict

from scalewright.plan.explain import never_measured
from scalewright.plan.frameworks import DATA
from scalewright.plan.records import LayoutKeys
from scalewright.plan.request import Request
from scalewright.plan.search.branch_and_bound import Stop, Tell
from scalewright.plan.search.choices import Plan
from scalewright.plan.search.objective import Goal
from scalewright.plan.search.search import better_than, capabilities_of, search
from scalewright.spec.base import read_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.question import Question

ANY = "any"
MIN_GAIN_PCT = 1.0


class LowPrecision(TypedDict):
    """The best layout in fewer bits, where it is faster than the plan's best; the gain in tokens/s."""

    precision: str
    gain_pct: float
    step_time_s: float
    layout: LayoutKeys
    risk: str
    source: str
    never_measured: list[str]


@lru_cache(maxsize=1)
def _risks() -> dict[str, dict[str, str]]:
    risks: dict[str, dict[str, str]] = read_yaml(DATA / "precisions.yaml")
    return risks


def fewer_bits(template: Request) -> list[str]:
    """Precisions below 16 bits that the device and the trainer have; none for a run that isn't in 16."""
    rates = dict(template.chip.peaks) if template.precision in ("bf16", "fp16") else {}
    return [name for name in capabilities_of(template).low if name in rates]


def gains(plan: Plan, stop: Stop | None = None) -> list[LowPrecision]:
    """What each of them would gain over the plan, the most first."""
    rows: list[LowPrecision] = []
    for precision in fewer_bits(plan.template):
        choice = better_than(plan, plan.best[0].score, stop, precision=precision)
        if choice is None or (gain := 100 * (plan.best[0].score / choice.score - 1)) < MIN_GAIN_PCT:
            continue
        row: LowPrecision = {
            "precision": precision,
            "gain_pct": gain,
            "step_time_s": choice.prediction.step_time_s,
            "layout": choice.keys,
            "risk": _risks()[precision]["risk"],
            "source": _risks()[precision]["source"],
            "never_measured": never_measured(choice.prediction.request),
        }
        rows.append(row)
    return sorted(rows, key=lambda row: -row["gain_pct"])


def search_any(question: Question, goal: Goal, tell: Tell | None = None, stop: Stop | None = None) -> Plan:
    """The plan in whichever precision is fastest. Raises UserError where none has a layout."""
    best = search(question, replace(goal, precision="auto"), tell=tell, stop=stop)
    for precision in fewer_bits(best.template):
        try:
            plan = search(question, replace(goal, precision=precision), tell=tell, stop=stop)
        except UserError:
            continue
        best = min(best, plan, key=lambda one: one.best[0].score)
    return best
