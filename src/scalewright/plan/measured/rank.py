"""Does the planner pick well? Kendall's tau and regret over groups of layouts of one model on one machine.

    tau      (pairs in the same order - in the opposite order) / sqrt(pairs untied in one x in the other)
    regret   measured time of the layout that is predicted fastest / measured time of the fastest - 1

Tau is Kendall's tau-b (Kendall 1945); both are plain numbers: a regret of 0.05 costs 5%.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Ranking:
    """One group's figures."""

    group: tuple[str, ...]
    layouts: int
    tau: float
    regret: float


def kendall_tau(a: np.ndarray, b: np.ndarray) -> float:
    """Kendall's tau-b of two rows of numbers; nan where one of them is constant."""
    upper = np.triu_indices(len(a), 1)
    x = np.sign(a[:, None] - a[None, :])[upper]
    y = np.sign(b[:, None] - b[None, :])[upper]
    untied = float(np.sqrt((x != 0).sum() * (y != 0).sum()))
    return float((x * y).sum() / untied) if untied else float("nan")


def regret(predicted: np.ndarray, measured: np.ndarray) -> float:
    """What trusting the prediction costs; layouts predicted equal count by their mean."""
    picked = measured[predicted <= predicted.min() * (1 + 1e-9)]
    return float(picked.mean() / measured.min() - 1)


def rankings(
    groups: Sequence[tuple[str, ...]], predicted: np.ndarray, measured: np.ndarray, least: int = 5
) -> list[Ranking]:
    """The figures of every group of at least `least` layouts."""
    found = []
    for group in dict.fromkeys(groups):
        at = np.array([one == group for one in groups])
        if at.sum() >= least:
            tau, cost = kendall_tau(predicted[at], measured[at]), regret(predicted[at], measured[at])
            found.append(Ranking(group, int(at.sum()), tau, cost))
    return found
