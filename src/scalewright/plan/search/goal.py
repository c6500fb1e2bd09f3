"""What a plan is to find: for how many devices, with which batch, best in what, with what held fixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scalewright.plan.constants import Constants
from scalewright.spec.errors import UserError

UNLIMITED = -1e6  # headroom of a search without a memory limit: every layout fits
MAX_MARGIN = 0.5
MAX_VALUES = {"devices": 10**7, "global_batch": 10**9, "top": 10**4}


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
    c: Constants | None = None  # of the cost model, in place of the packaged ones

    def __post_init__(self) -> None:
        for key, most in MAX_VALUES.items():
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise UserError(f"{key} is {value}", "plan", f"use a whole number from 1 to {most:,}")
        headroom, margin = self.headroom, self.margin
        if not (isinstance(margin, (int, float)) and 0 <= margin <= MAX_MARGIN):
            how = f"use a share from 0 to {MAX_MARGIN}, such as 0.02"
            raise UserError(f"margin is {margin}", "plan", how)
        if headroom is not None and not (
            isinstance(headroom, (int, float)) and (0 <= headroom < 1 or headroom == UNLIMITED)
        ):
            how = "use a share of the memory from 0 up to 1, such as 0.1"
            raise UserError(f"headroom is {headroom}", "plan", how)
