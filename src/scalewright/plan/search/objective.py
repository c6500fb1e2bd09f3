"""The score that a search minimises: a weighted sum of a step's parts, so that bounds on parts bound it.

    time                 seconds                                      weight 1 for every part
    cost                 seconds x devices x price / 3600             of a step
    tokens-per-dollar    as cost: at a fixed batch the two have the same optimum
    energy               devices x watts x sum of share x seconds     joules of a step; plan/data/energy.yaml

With the number of devices fixed, time, cost and tokens per dollar have the same best layout; the answer contains the
figure of the objective that was chosen. `Goal`: what a plan is to find.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.plan.chips import Chip
from scalewright.plan.cost.timeline import PARTS
from scalewright.spec.base import read_yaml
from scalewright.spec.errors import UserError, unknown
from scalewright.spec.prices import device_power

FILE = Path(__file__).parents[1] / "data" / "energy.yaml"
MONEY = ("cost", "tokens-per-dollar")
OBJECTIVES = ("time", "energy", *MONEY)
# Kind of a part of a step, by which it draws power; of the others: exposed
_KIND = {part: part for part in ("compute", "recompute", "optimizer", "other")} | {"pp_bubble": "bubble"}
UNLIMITED = -1e6  # headroom of a search without a memory limit: every layout fits
MAX_MARGIN = 0.5
MAX_VALUES = {"devices": 10**7, "global_batch": 10**9, "top": 10**4}


@dataclass(frozen=True)
class Objective:
    """Weights of a step's parts; the score is their sum, and smaller is better."""

    name: str
    weights: Mapping[str, float]
    unit: str
    assumed: tuple[str, ...] = ()

    def score(self, parts: Mapping[str, np.ndarray]) -> np.ndarray:
        """The score of every row, from all or some of its parts (then a lower bound)."""
        return np.asarray(sum(self.weights[part] * seconds for part, seconds in parts.items()))

    def value(self, score: float, tokens: float) -> float:
        """The objective's figure: seconds, cost or joules of a step, or tokens per unit of money."""
        return tokens / score if self.name == "tokens-per-dollar" else score


def make_objective(name: str, chip: Chip, devices: int, price: float | None) -> Objective:
    """The objective of this name; `price` per device-hour. Raises UserError."""
    if name not in OBJECTIVES:
        raise unknown("objective", name, OBJECTIVES)
    if name == "time":
        return Objective(name, dict.fromkeys(PARTS, 1.0), "s")
    if name == "energy":
        watts, shares, assumed = power(chip)
        weights = {part: devices * watts * shares[_KIND.get(part, "exposed")] for part in PARTS}
        return Objective(name, weights, "J", assumed)
    if price is None or not isfinite(price) or price <= 0:
        what = f"objective {name} needs a price" if price is None else f"price is {price}"
        raise UserError(what, "price", "give what one device costs for an hour, as --price 2.50")
    unit = "cost of a step" if name == "cost" else "tokens per unit of money"
    return Objective(name, dict.fromkeys(PARTS, devices * price / 3600), unit)


def power(chip: Chip) -> tuple[float, dict[str, float], tuple[str, ...]]:
    """Watts of a device under load, the share of them that each kind of part draws, and the assumptions."""
    shares = {name: float(entry["value"]) for name, entry in read_yaml(FILE)["share"].items()}
    watts, source = device_power(chip.name)
    lines = [f"{chip.name} draws {watts:g} W under load ({source})"]
    lines += [f"{name} draws {value:.0%} of it" for name, value in shares.items()]
    return watts, shares, tuple(lines)


@dataclass(frozen=True)
class Goal:
    """The arguments of a search. Raises UserError for a number out of range."""

    devices: int
    global_batch: int  # sequences of a step
    objective: str = "time"
    fixed: Mapping[str, Any] = field(default_factory=dict)  # axis -> a value, or a list of them
    precision: str = "auto"
    headroom: float | None = None  # share of the usable memory that the predicted peak leaves free; null:
    # layouts must fit at the p90 of their memory, or, if none does, at the predicted peak
    top: int = 5  # layouts of the answer
    margin: float = 0.0  # by how much a simpler layout may be slower than the fastest and still come first
    price: float | None = None  # of a device and hour

    def __post_init__(self) -> None:
        for key, most in MAX_VALUES.items():
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise UserError(f"{key} is {value}", "plan", f"use a whole number from 1 to {most:,}")
        headroom, margin = 0.0 if self.headroom is None else self.headroom, self.margin
        if not (isinstance(margin, (int, float)) and 0 <= margin <= MAX_MARGIN):
            raise UserError(f"margin is {margin}", "plan", f"use a share from 0 to {MAX_MARGIN}, such as 0.02")
        if not (isinstance(headroom, (int, float)) and (0 <= headroom < 1 or headroom == UNLIMITED)):
            raise UserError(f"headroom is {headroom}", "plan", "use a share of the memory from 0 up to 1, such as 0.1")
