"""Numbers of entries that take the planner's whole answer about a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from scalewright.spec.question import Question

if TYPE_CHECKING:
    from scalewright.spec.hardware.devices import DeviceSpec


def band_width(asked: Question) -> float:
    """The p90 of a run's step time over its p10, by the planner."""
    from scalewright.plan.predict import price

    low, high = price(asked).band_s
    return high / low


def legal_layouts(asked: Question) -> int:
    """Layouts of the run's devices and batch that `plan` chooses among."""
    from scalewright.plan.search.objective import Goal
    from scalewright.plan.search.search import prepare

    maker, *_ = prepare(asked, Goal(asked.layout.devices, asked.layout.global_batch))
    return int(maker.space.size)


def memory_share(asked: Question) -> float:
    """The median peak of the worst rank over what a device has for a trainer."""
    from scalewright.plan.predict import price

    prediction = price(asked)
    return prediction.peak_gib / prediction.usable_gib


def compute_share(parts: Mapping[str, float]) -> float:
    """The share of a step that is computing, recomputation too."""
    return (parts["compute"] + parts["recompute"]) / sum(parts.values())


def list_price(device: DeviceSpec) -> float:
    """USD of one device for an hour on demand, the median of the dated list."""
    from scalewright.spec.prices import price_of

    return price_of(device).median


def usual_goodput(asked: Question) -> float:
    """The share of a run's time that trains, by usual rates of failures and storage, saved at the best interval."""
    from scalewright.plan.reliability import rhythm
    from scalewright.plan.whole_run import habits_of

    return rhythm(asked.layout.devices, habits_of(asked)).goodput()
