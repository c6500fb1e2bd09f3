"""How well the planner ranks layouts: Kendall's tau and regret within groups of one model and machine.

    tau      (pairs in the same order - in the opposite order) / sqrt(pairs untied in one x in the other)
    regret   measured time of the layout that is predicted fastest / shortest measured time - 1

Tau is tau-b (Kendall 1945); a regret of 0.05 is a step 5% longer than necessary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Ranking:
    """Tau and regret of one group."""

    group: tuple[str, ...]
    layouts: int
    tau: float
    regret: float


def kendall_tau(a: np.ndarray, b: np.ndarray) -> float:
    """Kendall's tau-b of two arrays; nan where one of them is constant."""
    upper = np.triu_indices(len(a), 1)
    x = np.sign(a[:, None] - a[None, :])[upper]
    y = np.sign(b[:, None] - b[None, :])[upper]
    untied = float(np.sqrt((x != 0).sum() * (y != 0).sum()))
    return float((x * y).sum() / untied) if untied else float("nan")


def regret(predicted: np.ndarray, measured: np.ndarray) -> float:
    """The regret of choosing the layout predicted fastest; the mean where predictions tie."""
    picked = measured[predicted <= predicted.min() * (1 + 1e-9)]
    return float(picked.mean() / measured.min() - 1)


def rankings(
    groups: Sequence[tuple[str, ...]], predicted: np.ndarray, measured: np.ndarray, least: int = 5
) -> list[Ranking]:
    """Tau and regret of every group of at least `least` layouts."""
    result = []
    for group in dict.fromkeys(groups):
        mask = np.array([other == group for other in groups])
        if (layouts := int(mask.sum())) >= least:
            pair = predicted[mask], measured[mask]
            result.append(Ranking(group, layouts, kendall_tau(*pair), regret(*pair)))
    return result
