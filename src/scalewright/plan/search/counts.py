"""Device counts and batches near the asked ones on which the same run goes faster.

100 devices, 512 sequences: 25 does not divide 512, so that only pipelines of 25 stages use all devices
    96 of them: 1.9 times the tokens a second          500 sequences on all 100: likewise

Tried where a count isn't a doubling of whole nodes, or doesn't divide the batch: a search each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scalewright.plan.search.choices import Choice, Plan
from scalewright.plan.search.search import again
from scalewright.spec.errors import UserError

LEAST_GAIN = 0.05  # of tokens a second that makes a change worth a line
LEAST_SHARE = 0.75  # of the devices that a suggestion uses
MOST_TRIED = 3


@dataclass(frozen=True)
class Nearby:
    """The same run on fewer devices, or with a batch that they divide."""

    devices: int
    global_batch: int
    choice: Choice
    gain_pct: float  # of tokens a second

    def dump(self) -> dict[str, Any]:
        """Plain data."""
        seconds = self.choice.prediction.step_time_s
        return {
            "devices": self.devices,
            "global_batch": self.global_batch,
            "step_time_s": seconds,
            "tokens_per_s": self.choice.prediction.tokens / seconds,
            "gain_pct": self.gain_pct,
            "layout": self.choice.keys,
        }


def nearby(plan: Plan) -> list[Nearby]:
    """The count of devices that gains most, and the batch, where they gain; most first."""
    rate = _rate(plan.best[0])
    largest: dict[bool, Nearby] = {}
    for devices, batch in _tries(plan.devices, plan.global_batch, plan.template.chip.node):
        try:
            best = again(plan, devices=devices, global_batch=batch, top=1).best[0]
        except UserError:
            continue
        candidate = Nearby(devices, batch, best, 100 * (_rate(best) / rate - 1))
        all_devices = devices == plan.devices
        before = largest.get(all_devices)
        if candidate.gain_pct >= 100 * LEAST_GAIN and (
            before is None or candidate.gain_pct > before.gain_pct
        ):
            largest[all_devices] = candidate
    return sorted(largest.values(), key=lambda suggestion: -suggestion.gain_pct)


def _rate(choice: Choice) -> float:
    return choice.prediction.tokens / choice.prediction.step_time_s


def _tries(devices: int, batch: int, node: int) -> Iterator[tuple[int, int]]:
    """(devices, batch) worth a search: whole nodes and doublings of them; a batch that the count divides."""
    counts: set[int] = set()
    size = node
    while size <= devices:
        count = devices // size * size
        if count != devices and count >= LEAST_SHARE * devices and len(counts) < MOST_TRIED:
            counts.add(count)
        size *= 2
    yield from ((count, batch) for count in sorted(counts, reverse=True))
    near = round(batch / devices) * devices
    if batch % devices and near and abs(near - batch) <= (1 - LEAST_SHARE) * batch:
        yield devices, near
