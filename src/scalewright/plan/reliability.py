"""What failures, restarts and saves leave of a run's time, in closed form; and the rates that are usual.

    M mean seconds between stops    d seconds of a save    R seconds from a stop to work again    t work between saves

    renewal   goodput = t / (M e^(R/M) (e^((t+d)/M) - 1))     exact for stops at random (Daly 2006, eq. 13); any M, R, d
    best t    (1 - t/M) e^(t/M) = e^(-d/M)                    where that is largest; R doesn't move it
    Young     t = sqrt(2 d M)                                 the same for d, t << M
    Daly      t = sqrt(2 d M) (1 + sqrt(d/2M)/3 + d/18M) - d

`1 - d/t - t/2M - R/M` is the same to first order, and falls below 0 once M comes near R: it isn't used.
`goodput/` simulates what these leave out: causes, lemon nodes, spares, planned stops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from scalewright.spec.base import read_yaml

FILE = Path(__file__).parent / "data" / "failures.yaml"
FOREVER = 1e12  # seconds between stops of a run that nothing stops


def renewal_goodput(interval_s: float, save_s: float, restart_s: float, mtbf_s: float) -> float:
    """The share of the time that is work done once: work saved every `interval_s` of it, stops at random."""
    exponent = (interval_s + save_s) / mtbf_s
    if restart_s / mtbf_s + exponent > 700:  # e^700 is the largest float
        return 0.0
    return interval_s / (mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1(exponent))


def best_interval(save_s: float, mtbf_s: float) -> float:
    """Seconds of work between saves at which the renewal form is largest; 0 where a save costs nothing."""
    low, high = 0.0, 1 - 2.0**-53
    for _ in range(100):  # (1 - x) e^x falls from 1 to 0 on [0, 1]
        x = (low + high) / 2
        low, high = (x, high) if math.log1p(-x) + x > -save_s / mtbf_s else (low, x)
    return (low + high) / 2 * mtbf_s


def young_interval(save_s: float, mtbf_s: float) -> float:
    """Young's and Daly's first-order optimum, seconds of work between saves."""
    return math.sqrt(2 * save_s * mtbf_s)


def daly_interval(save_s: float, mtbf_s: float) -> float:
    """Daly's higher-order one (2006, eq. 37); the mean time between stops where a save takes twice that or more."""
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    part = save_s / (2 * mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - save_s


@dataclass(frozen=True)
class Usual:
    """Figures of failures.yaml: rates per device-hour, seconds, bytes/s."""

    rate: float
    spread: float  # standard deviation of the published rates' logarithms
    planned_rate: float
    planned_s: float
    found_s: float  # a stop's mean over causes
    restart_s: float
    device_rate: float  # bytes a device writes to shared storage in a second
    copy_rate: float  # and to its host's memory
    device_bytes: float  # of state, where the run isn't known

    def save_s(self, state_bytes: float, devices: int) -> float:
        """Seconds to write or read the state from all devices at once."""
        return state_bytes / (devices * self.device_rate)

    def copy_s(self, state_bytes: float, devices: int) -> float:
        """Seconds that an asynchronous save stops the run: the copy to its hosts' memory."""
        return state_bytes / (devices * self.copy_rate)


def mtbf_s(devices: int, rate: float) -> float:
    """Mean seconds between stops of a job on so many devices."""
    return min(3600 / (devices * rate), FOREVER) if rate > 0 else FOREVER


@lru_cache(maxsize=1)
def failures() -> dict[str, Any]:
    """failures.yaml as it is."""
    data: dict[str, Any] = read_yaml(FILE)
    return data


@lru_cache(maxsize=1)
def usual() -> Usual:
    """The figures that are taken where nobody gives others."""
    data = failures()
    rates, causes = data["stops_per_device_hour"], data["causes"].values()
    logs = [math.log(float(row["value"])) for row in (rates["usual"], *rates["others"])]
    mean = sum(logs) / len(logs)
    count = sum(cause["count"] for cause in causes)
    storage = {name: float(entry["value"]) for name, entry in data["storage"].items()}
    return Usual(
        rate=float(rates["usual"]["value"]),
        spread=math.sqrt(sum((log - mean) ** 2 for log in logs) / (len(logs) - 1)),
        planned_rate=float(data["planned"]["value"]), planned_s=float(data["planned"]["seconds"]),
        found_s=sum(cause["count"] * data["found_s"][cause["found"]]["value"] for cause in causes) / count,
        restart_s=float(data["restart_s"]["value"]), device_rate=storage["bytes_per_device_s"],
        copy_rate=storage["copy_bytes_per_s"], device_bytes=storage["state_bytes_per_device"],
    )  # fmt: skip


def usual_goodput(devices: int, state_bytes: float | None = None) -> float:
    """The share of the time that a run on these devices trains: usual rates, saves at the best interval.

    `state_bytes`: of weights and optimizer together; None: 2 GB a device.
    """
    base = usual()
    save = base.save_s(base.device_bytes * devices if state_bytes is None else state_bytes, devices)
    between = mtbf_s(devices, base.rate)
    # a state too small to matter is still saved every second at most
    interval = max(best_interval(save, between), 1.0)
    share = renewal_goodput(interval, save, base.found_s + base.restart_s + save, between)
    return share / (1 + share * devices * base.planned_rate * base.planned_s / 3600)
