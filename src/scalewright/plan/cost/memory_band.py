"""How sure a predicted peak of memory is: its band, and the risk of not fitting that follows.

    p10 = peak · exp(-1.2816 s)        p90 = peak · exp(1.2816 s)

s is the trainer's `memory_spread` in data/frameworks.yaml: the root mean square of log(measured / predicted)
over the runs whose memory is in the table, and a wider one for a trainer that has none there.

    usable >= p90    fits         usable >= peak   likely
    usable >= p10    unlikely     less             no
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from scalewright.plan.cost.table import Facts, Table

SIGMA = 1.2816  # of a normal: 10% lie below -1.2816 s
Risk = Literal["fits", "likely", "unlikely", "no"]


def memory_band(table: Table, facts: Facts, peak: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that 1 of 10 and 9 of 10 runs stay below on their fullest rank."""
    width = np.exp(SIGMA * table.gather(facts.trainers["memory_spread"]))
    return peak / width, peak * width


def risk(usable: float, low: float, peak: float, high: float) -> Risk:
    """The risk of a band that is to fit into `usable` bytes (or GiB, as the band)."""
    if usable >= high:
        return "fits"
    if usable >= peak:
        return "likely"
    return "unlikely" if usable >= low else "no"
