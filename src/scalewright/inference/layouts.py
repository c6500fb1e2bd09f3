"""Layouts that a replica can have on so many devices, and the usual one: the fastest that fits.

    tp  1, 2, 4, ... up to what a fast link joins       pp  what is left of a replica       replicas  the rest
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from scalewright.inference import load
from scalewright.inference.constants import constants
from scalewright.inference.load import Load
from scalewright.inference.setup import Question, Shape, table


def shapes(q: Question, devices: int) -> Iterator[Shape]:
    """Layouts of all these devices in equal replicas."""
    per_node = q.cluster.devices_per_node
    heads = q.model.num_attention_heads
    for tp in (1, 2, 3, 4, 6, 8, 16, 32, 64, 72):
        for pp in (1, 2, 4, 8):
            used = tp * pp
            if used > devices or devices % used or heads % tp or (pp > 1 and tp < min(per_node, devices) and used > per_node):
                continue
            yield Shape(tp, pp, 1, devices // used)


def usual(q: Question, devices: int, asked: Load) -> Shape:
    """The layout of the highest rate under this load; the leanest where none fits."""
    choices = list(shapes(q, devices)) or [Shape(devices)]
    served = under(q, choices, asked)
    rates = np.where(served.fits, served.requests_per_s * [s.replicas for s in choices], 0.0)
    return choices[int(np.argmax(rates))] if rates.any() else max(choices, key=lambda s: s.devices)


def under(q: Question, choices: Sequence[Shape], asked: Load) -> load.Served:
    """What one unit of each layout gives under its part of a load."""
    t = table([replace(q, shape=shape) for shape in choices])
    return load.serve(t, constants(), loads([asked] * len(choices), choices))


def loads(asked: Sequence[Load], of: Sequence[Shape]) -> load.Loads:
    """Loads of whole systems as those of one unit each."""
    units = np.array([shape.units for shape in of], dtype=float)
    return load.Loads(
        np.array([x.kind for x in asked]), np.array([x.number for x in asked]) / units,
        np.array([x.requests for x in asked]) / units, np.array([x.tpot for x in asked], dtype=float),
        np.array([x.ttft for x in asked], dtype=float), np.array([x.varied for x in asked]),
    )  # fmt: skip
