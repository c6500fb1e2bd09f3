"""Device counts and batches near the given ones on which the same run is faster.

100 devices, 512 sequences: 25 does not divide 512, so that only pipelines of 25 stages use all devices
    96 devices: 1.9 times the tokens/s                 500 sequences on all 100: likewise

One search per candidate, where the count isn't a power of two of whole nodes or doesn't divide the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scalewright.plan.search.choices import Plan
from scalewright.plan.search.search import search_again
from scalewright.spec.errors import UserError

MIN_GAIN = 0.05  # of tokens/s: smaller gains aren't reported
MIN_SHARE = 0.75  # of the devices and of the batch that a candidate keeps
MAX_COUNTS = 3


def nearby(plan: Plan) -> list[dict[str, Any]]:
    """The device count and the batch that gain most, if they gain; largest gain first.

    {devices, global_batch, step_time_s, tokens_per_s, gain_pct, layout}; `gain_pct`: of tokens/s.
    """
    rate = plan.best[0].prediction.tokens_per_s
    largest: dict[bool, dict[str, Any]] = {}
    for devices, batch in _candidates(plan.goal.devices, plan.goal.global_batch, plan.template.chip.node):
        try:
            best = search_again(plan, devices=devices, global_batch=batch, top=1).best[0]
        except UserError:
            continue
        candidate = {
            "devices": devices,
            "global_batch": batch,
            "step_time_s": best.prediction.step_time_s,
            "tokens_per_s": best.prediction.tokens_per_s,
            "gain_pct": 100 * (best.prediction.tokens_per_s / rate - 1),
            "layout": best.keys,
        }
        least = largest.get(devices == plan.goal.devices, {"gain_pct": 100 * MIN_GAIN})
        if candidate["gain_pct"] >= least["gain_pct"]:
            largest[devices == plan.goal.devices] = candidate
    return sorted(largest.values(), key=lambda candidate: -candidate["gain_pct"])


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
