"""Layouts that a replica can have on so many devices, and the usual one: the fastest that fits.

tp  1, 2, 4, ... up to what a fast link joins       pp  1, 2, 4, 8; others where none of these fits
replicas  the rest
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from scalewright.inference import load
from scalewright.inference.constants import constants
from scalewright.inference.load import ENDLESS, Load
from scalewright.inference.setup import Question, Shape, table

STAGES = (1, 2, 4, 8)


def shapes(q: Question, devices: int, stages: Sequence[int] = STAGES) -> Iterator[Shape]:
    """Layouts of all these devices in equal replicas."""
    per_node = q.cluster.devices_per_node
    heads = q.model.num_attention_heads
    for tp in (1, 2, 3, 4, 6, 8, 16, 32, 64, 72):
        for pp in stages:
            used = tp * pp
            if (
                used > devices
                or devices % used
                or heads % tp
                or (pp > 1 and tp < min(per_node, devices) and used > per_node)
            ):
                continue
            yield Shape(tp, pp, 1, devices // used)


def usual(asked: Sequence[tuple[Question, int, Load]]) -> list[Shape]:
    """The layout of the highest rate of each question on so many devices; the leanest where none fits."""
    if not asked:
        return []
    chosen = _fastest(asked, [list(shapes(q, devices)) for q, devices, _ in asked])
    left = [at for at, (shape, _) in enumerate(chosen) if shape is None]
    if left:
        more = [asked[at] for at in left]
        others = [list(shapes(q, devices, even_stages(q.model.num_hidden_layers))) for q, devices, _ in more]
        for at, better in zip(left, _fastest(more, others), strict=True):
            chosen[at] = (better[0], chosen[at][1])
    return [shape or leanest for shape, leanest in chosen]


def even_stages(layers: int) -> list[int]:
    """Stages that share out the layers evenly."""
    return [n for n in range(1, layers + 1) if layers % n == 0]


def _fastest(
    asked: Sequence[tuple[Question, int, Load]], choices: Sequence[list[Shape]]
) -> list[tuple[Shape | None, Shape]]:
    """Of each question's choices the fastest that fits, or None; and the leanest."""
    choices = [some or [Shape(devices)] for some, (_, devices, _) in zip(choices, asked, strict=True)]
    each = [
        (replace(q, shape=shape), wanted) for (q, _, wanted), some in zip(asked, choices, strict=True) for shape in some
    ]
    of = [q.shape for q, _ in each]
    served = load.serve(table([q for q, _ in each]), constants(), loads([wanted for _, wanted in each], of))
    rates = np.where(served.fits, served.requests_per_s * [shape.units for shape in of], 0.0)
    chosen: list[tuple[Shape | None, Shape]] = []
    at = 0
    for some in choices:
        mine = rates[at : at + len(some)]
        fastest = some[int(np.argmax(mine))] if mine.any() else None
        chosen.append((fastest, max(some, key=lambda shape: shape.devices)))
        at += len(some)
    return chosen


def loads(asked: Sequence[Load], of: Sequence[Shape]) -> load.Loads:
    """Loads of whole systems as those of one unit each."""
    units = np.array([shape.units for shape in of], dtype=float)
    numbers = np.array([x.number if x.number < ENDLESS else np.inf for x in asked])
    return load.Loads(
        np.array([x.kind for x in asked]), numbers / units,
        np.array([x.requests for x in asked]) / units, np.array([x.tpot for x in asked], dtype=float),
        np.array([x.ttft for x in asked], dtype=float), np.array([x.varied for x in asked]),
        np.array([x.waves for x in asked]), np.array([x.tails for x in asked]),
    )  # fmt: skip
