"""What more workers bring: Amdahl's law for a fixed problem, Gustafson's for one that grows, and the share behind both.

s serial share, n workers      Amdahl      1 / (s + (1 - s) / n)        <= 1 / s
                               Gustafson   s + (1 - s) n
measured speed-up u            Karp-Flatt  s = (1/u - 1/n) / (1 - 1/n)
                               efficiency  u / n
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf


def amdahl(serial: float, workers: float) -> float:
    """The speed-up of a fixed problem, a share `serial` of which isn't divided (Amdahl 1967)."""
    return 1 / (serial + (1 - serial) / workers)


def amdahl_limit(serial: float) -> float:
    """The speed-up that no number of workers exceeds: 1 / s."""
    return 1 / serial if serial else inf


def gustafson(serial: float, workers: float) -> float:
    """The speed-up where the problem grows with the workers, and the serial time doesn't (Gustafson 1988)."""
    return serial + (1 - serial) * workers


def serial_share(speedup: float, workers: float) -> float:
    """The serial share that a measured speed-up implies (Karp and Flatt 1990)."""
    return (1 / speedup - 1 / workers) / (1 - 1 / workers)


def efficiency(speedup: float, workers: float) -> float:
    """The share of the workers that counts."""
    return speedup / workers


def amdahl_efficiency(serial: float, workers: float) -> float:
    """The share of the workers that counts under Amdahl's law."""
    return efficiency(amdahl(serial, workers), workers)


def imbalance(work: Sequence[float]) -> float:
    """The share of all workers' time that is waited for the one with most work: 1 - mean / max."""
    return 1 - sum(work) / len(work) / max(work)


def exposed_share(parts: Mapping[str, float]) -> float:
    """The share of a step that is communication which nothing hides: parts that end in `_exposed`."""
    return sum(value for name, value in parts.items() if name.endswith("_exposed")) / sum(parts.values())
