"""Device counts and batches near the given ones on which the same run is faster.

100 devices, 512 sequences: 25 does not divide 512, so that only pipelines of 25 stages use all devices
    96 devices: 1.9 times the tokens/s                 500 sequences on all 100: likewise

One search per candidate, where the count isn't a power of two of whole nodes or doesn't divide the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scalewright.plan.search.choices import Choice, Plan
from scalewright.plan.search.search import search_again
from scalewright.spec.errors import UserError

MIN_GAIN = 0.05  # of tokens/s: smaller gains aren't reported
MIN_SHARE = 0.75  # of the devices and of the batch that a candidate keeps
MAX_COUNTS = 3


@dataclass(frozen=True)
class Nearby:
    """The same run on fewer devices, or with a batch that they divide."""

    devices: int
    global_batch: int
    choice: Choice
    gain_pct: float  # of tokens/s

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
    """The device count and the batch that gain most, if they gain; largest gain first."""
    rate = _rate(plan.best[0])
    largest: dict[bool, Nearby] = {}
    for devices, batch in _candidates(plan.devices, plan.global_batch, plan.template.chip.node):
        try:
            best = search_again(plan, devices=devices, global_batch=batch, top=1).best[0]
        except UserError:
            continue
        candidate = Nearby(devices, batch, best, 100 * (_rate(best) / rate - 1))
        all_devices = devices == plan.devices
        previous = largest.get(all_devices)
        if candidate.gain_pct >= 100 * MIN_GAIN and (not previous or candidate.gain_pct > previous.gain_pct):
            largest[all_devices] = candidate
    return sorted(largest.values(), key=lambda candidate: -candidate.gain_pct)


def _rate(choice: Choice) -> float:
    return choice.prediction.tokens / choice.prediction.step_time_s


def _candidates(devices: int, batch: int, node: int) -> Iterator[tuple[int, int]]:
    """(devices, batch) to search: multiples of 1, 2, 4 ... nodes; the nearest batch that devices divide."""
    counts: set[int] = set()
    size = node
    while size <= devices:
        count = devices // size * size
        if count != devices and count >= MIN_SHARE * devices and len(counts) < MAX_COUNTS:
            counts.add(count)
        size *= 2
    yield from ((count, batch) for count in sorted(counts, reverse=True))
    near = round(batch / devices) * devices
    if batch % devices and near and abs(near - batch) <= (1 - MIN_SHARE) * batch:
        yield devices, near
