"""`train.guard` of `run.yaml`: how a run handles non-finite numbers and spikes.

    nonfinite   a loss or a gradient norm that is inf or NaN: its update is always skipped
    spike       a loss or a gradient norm far above those of the last 128 steps (train/guard/spikes.py)
    leave_out   samples that are skipped: the ranges of a rewind's events, or any others
    corruption  numbers that several ranks hold alike, and that differ (train/guard/copies.py)

There is no `nonfinite: ignore`. An update from a gradient with one NaN makes every weight NaN under clipping
(the factor is NaN) and its own weight without, and no later step brings them back.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from scalewright.spec.base import Spec
from scalewright.spec.errors import UserError


class GuardSpec(Spec):
    """Actions on non-finite numbers and spikes, and when they stop the run."""

    nonfinite: Literal["skip", "stop"] = "skip"  # stop: at the first one, as stop_after: 1
    stop_after: int = Field(3, ge=0)  # non-finite steps in a row that end the run; 0: none do
    spike: Literal["log", "skip", "zclip", "rewind"] = "log"
    leave_out: tuple[tuple[int, int], ...] = ()  # [first, end) of sample numbers
    check_copies: int = Field(100, ge=0)  # steps between comparisons of what ranks hold alike; 0: never
    corruption: Literal["log", "stop"] = "log"

    @model_validator(mode="after")
    def _check_ranges(self) -> GuardSpec:
        for first, end in self.leave_out:
            if not 0 <= first < end:
                how = "give the first sample's number and that after the last, such as [96, 104]"
                raise UserError(f"[{first}, {end}] is no range of samples", "train.guard.leave_out", how)
        return self

    @property
    def patience(self) -> int:
        """Non-finite steps in a row that end the run; 0: none do."""
        return 1 if self.nonfinite == "stop" else self.stop_after
