"""The cheapest layout that keeps the targets: fewest devices for a load, or most tokens a device.

every tp x pp x attention_dp x prefill:decode --the highest rate within the targets--> devices that the load takes
cost of a token = devices x price / rate, so that the cheapest is the one with the highest rate a device
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scalewright.inference import load
from scalewright.inference.constants import constants
from scalewright.inference.layouts import loads
from scalewright.inference.load import ENDLESS, Load
from scalewright.inference.setup import Question, Shape, table
from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import UserError

SPLITS = ((1, 1), (1, 2), (2, 1), (1, 3), (3, 1))  # prefill : decode replicas
MOST = 4096  # devices of an answer
CLOSE = 0.03  # within it the layout with fewer parts wins
APART = 0.10  # what a separate prefill pool must gain: less is inside the band, and two pools have to be balanced


@dataclass(frozen=True)
class Found:
    """A layout of enough units, and what it gives under the load."""

    shape: Shape  # of the whole answer
    ttft_s: float
    tpot_s: float
    requests_per_s: float  # of the whole answer
    per_device: float  # requests a second

    def dump(self, q: Question, price: float | None) -> dict[str, Any]:
        """The keys of an entry of `best`."""
        rate = self.requests_per_s * q.output_len
        keys: dict[str, Any] = {
            "layout": self.shape.dump(), "ttft_s": self.ttft_s, "tpot_s": self.tpot_s,
            "requests_per_s": self.requests_per_s, "output_tokens_per_s": rate,
            "output_tokens_per_s_per_device": rate / self.shape.total,
        }  # fmt: skip
        if price is not None:
            keys["cost_per_million_output"] = price * self.shape.total / 3600 / rate * 1e6
        return keys


def units(q: Question, most: int) -> Iterator[Shape]:
    """Layouts of one unit of at most so many devices: replicas that do both, or some prefill and some decode."""
    heads, per_node = q.model.num_attention_heads, q.cluster.devices_per_node
    if q.engine.splits == "layers":
        yield from (Shape(1, n) for n in (1, 2, 3, 4, 6, 8) if n <= min(most, q.model.num_hidden_layers))
        return
    for tp in (1, 2, 4, 8, 16, 32, 64):
        if (
            heads % tp
            or tp > most
            or tp > max(per_node, q.cluster.levels[-2].size or 1 if len(q.cluster.levels) > 1 else 1)
        ):
            continue
        for pp in (1, 2, 4):
            if tp * pp > most or pp > q.model.num_hidden_layers or (pp > 1 and tp < per_node and tp * pp > per_node):
                continue
            yield Shape(tp, pp)
            if q.model.moe is not None and tp > 1 and pp == 1:
                yield Shape(tp, pp, ep=tp, attention_dp=tp if q.model.mla else 1)
            if pp == 1 and q.speculation.tokens == 0:
                yield from (Shape(tp, pp, 1, d, 1, p) for p, d in SPLITS if tp * (p + d) <= most)


def search(q: Question, asked: Load, devices: int | None) -> tuple[list[Found], int]:
    """Layouts that serve the load within its targets, cheapest first, and how many were priced. Raises UserError."""
    most = min(devices or max(q.cluster.devices_per_node, 8), q.cluster.devices or MOST, MOST)
    shapes = list(units(q, most))
    t = table([replace(q, shape=shape) for shape in shapes])
    limits = Load("target", ENDLESS, ttft=asked.ttft, tpot=asked.tpot)
    served = load.serve(t, constants(), loads([limits] * len(shapes), shapes))
    slack = 1.001
    good = served.fits & (served.tpot_s <= asked.tpot * slack) & (served.ttft_s <= asked.ttft * slack)
    if not good.any():
        raise UserError(*_why(q, asked, served, shapes))
    found = [
        whole
        for at in np.flatnonzero(good)
        if (whole := _whole(q, asked, shapes[at], served, int(at), devices)) is not None
    ]
    if not found:
        how = "give more --devices, a lower --rate or --concurrency, or looser targets"
        raise UserError(f"{counted(most, 'devices are')} too few for this load", "--search", how)
    return _ranked(_under(q, asked, found)), len(shapes)


def _under(q: Question, asked: Load, found: list[Found]) -> list[Found]:
    """Each layout under the load itself, which is mostly less than the most that keeps the targets."""
    if asked.kind == "closed" and asked.number >= ENDLESS:
        return found
    shapes = [item.shape for item in found]
    served = load.serve(
        table([replace(q, shape=shape) for shape in shapes]), constants(), loads([asked] * len(found), shapes)
    )
    requests = served.requests_per_s * [shape.units for shape in shapes]
    return [
        Found(shape, float(ttft), float(tpot), float(rate), float(rate) / shape.total)
        for shape, ttft, tpot, rate in zip(shapes, served.ttft_s, served.tpot_s, requests, strict=True)
    ]


def _whole(q: Question, asked: Load, unit: Shape, served: load.Served, at: int, devices: int | None) -> Found | None:
    """As many units as the load takes, or as the devices make; None where they are too few."""
    size = unit.total
    each = float(served.requests_per_s[at])
    if asked.kind == "rate":
        count = math.ceil(asked.number / each - 1e-9)
    elif asked.kind == "closed" and asked.number < ENDLESS:
        inside = each * (float(served.ttft_s[at]) + float(served.tpot_s[at]) * q.output_len)
        count = math.ceil(asked.number / max(inside, 1e-9) - 1e-9)
    else:
        count = max(1, (devices or size) // size)
    limit = devices or q.cluster.devices or MOST
    if count * size > limit:
        return None
    shape = replace(unit, replicas=unit.replicas * count, prefill=unit.prefill * count)
    total = each * count if asked.kind != "rate" else asked.number
    return Found(shape, float(served.ttft_s[at]), float(served.tpot_s[at]), total, total / shape.total)


def _ranked(found: list[Found]) -> list[Found]:
    """Cheapest first; of those within 3% the one with fewer parts, then the faster one.

    Layouts that prefill apart come last where the best of them gains 10% or less over the best without.
    """
    gain = apart_gain(found)
    alone = gain is not None and gain <= APART
    best = max(item.per_device for item in found if not (alone and item.shape.prefill))

    def rank(item: Found) -> tuple[float, ...]:
        shape = item.shape
        steps = math.floor(math.log(best / item.per_device) / CLOSE + 1e-9)
        parts = (shape.prefill > 0) + (shape.pp > 1) + (shape.attention_dp > 1) + (shape.ep > 1)
        return alone and shape.prefill > 0, steps, parts, item.tpot_s

    return sorted(found, key=rank)


def apart_gain(found: list[Found]) -> float | None:
    """What the best layout that prefills apart gains over the best that doesn't; None where one is missing."""
    pools = {apart: [item.per_device for item in found if (item.shape.prefill > 0) is apart] for apart in (True, False)}
    return max(pools[True]) / max(pools[False]) - 1 if pools[True] and pools[False] else None


def _why(q: Question, asked: Load, served: load.Served, shapes: list[Shape]) -> tuple[str, str, str]:
    """(what, where, how) of targets that nothing keeps."""
    if not served.fits.any():
        leanest = max(shape.total for shape in shapes)
        return (
            f"{q.model.name} doesn't fit {counted(leanest, 'devices')}",
            "--search",
            "give more --devices, or fewer bits: --precision fp8",
        )
    fits = np.flatnonzero(served.fits)
    fast = int(fits[np.argmin(served.tpot_s[fits])])
    soon = int(fits[np.argmin(served.ttft_s[fits])])
    least = f"the least tpot is {served.tpot_s[fast]:.3g} s (tp {shapes[fast].tp})"
    least += f", the least ttft {served.ttft_s[soon]:.3g} s (tp {shapes[soon].tp})"
    return (
        "no layout keeps the targets",
        "--search",
        f"{least}: loosen --tpot-s or --ttft-s, give more --devices, or fewer bits",
    )


def pareto(found: list[Found]) -> list[Found]:
    """Layouts that no other beats in both TPOT and rate a device."""
    front: list[Found] = []
    for item in sorted(found, key=lambda item: (-item.per_device, item.tpot_s)):
        if not front or item.tpot_s < front[-1].tpot_s * 0.999:
            front.append(item)
    return front
