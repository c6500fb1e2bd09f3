"""What failures, restarts and saves leave of a run's time, in closed form; and the rates that are usual.

    M mean seconds between stops    d seconds of a save    R seconds from a stop to work again    t work between saves

    renewal   goodput = t / (M e^(R/M) (e^((t+d)/M) - 1))     exact for stops at random (Daly 2006, eq. 13); any M, R, d
    best t    (1 - t/M) e^(t/M) = e^(-d/M)                    where that is largest; R doesn't move it
    Young     t = sqrt(2 d M)                                 the same for d, t << M
    Daly      t = sqrt(2 d M) (1 + sqrt(d/2M)/3 + d/18M) - d

`1 - d/t - t/2M - R/M` is the same to first order, and falls below 0 once M comes near R: it isn't used.

    Habits of a run (state, saves, validation) ──rhythm()──► Rhythm: M, d, R, t ──► its goodput

`predict`, `plan`, `budget` and `goodput` have their closed form from there; `goodput/` simulates what it leaves out:
causes, lemon nodes, spares, rates that differ between runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from scalewright.spec.base import read_yaml

FILE = Path(__file__).parent / "data" / "failures.yaml"
P90 = 1.2816  # standard deviations
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
    away_s: float  # until what failed is back, the same
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


def best_spares(nodes: int, away: float) -> int:
    """Spare nodes with which device-hours are fewest: they cost theirs, a run that waits costs everybody's.

    Nodes away are a Poisson number of mean `away`, to be taken at the rate that one of ten runs exceeds; with K spares
    a run waits away P(away >= K) / (K + 1) of its time.
    """
    reach = 10 * away**0.5 + 2  # with fewer, nearly every stop waits: then none at all is as good
    costs, below = {0: 1 + away}, 0.0
    for spares in range(max(0, int(away - reach)), int(away + reach)):
        costs[spares] = (1 + spares / nodes) * (1 + away * max(1 - below, 0.0) / (spares + 1))
        below += math.exp(spares * math.log(away) - away - math.lgamma(spares + 1)) if away else 1.0
    return min(costs, key=lambda spares: costs[spares])


def usual_spares(devices: int, per_node: int) -> int:
    """The same of a run with usual stops."""
    base = usual()
    away = base.away_s / mtbf_s(devices, base.rate) * math.exp(P90 * base.spread)
    return best_spares(math.ceil(devices / per_node), away)


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
        away_s=sum(cause["count"] * data["away_s"][cause["away"]]["value"] for cause in causes) / count,
        restart_s=float(data["restart_s"]["value"]), device_rate=storage["bytes_per_device_s"],
        copy_rate=storage["copy_bytes_per_s"], device_bytes=storage["state_bytes_per_device"],
    )  # fmt: skip


@dataclass(frozen=True)
class Habits:
    """What is known of how a run saves and validates; None: not known."""

    state_bytes: float | None = None  # of weights and optimizer
    asynchronous: bool = False
    step_s: float | None = None
    save_every: int = 0  # steps; 0: at the best interval
    evaluation: float = 0.0  # seconds of it for each second of work
    save_s: float | None = None  # as measured


@dataclass(frozen=True)
class Rhythm:
    """Saves and stops of a run on its devices, in seconds; `planned`: of planned stops, in a second of work."""

    mtbf_s: float
    interval_s: float  # of work between saves
    best_s: float  # the best such interval
    save_s: float  # that a save stops the run
    written_s: float  # until it is on storage, or read from it
    restart_s: float  # from a stop to work again
    evaluation: float = 0.0
    planned: float = 0.0

    def goodput(self, interval_s: float | None = None) -> float:
        """The share of the time that trains, in closed form: stops at random, no node awaited."""
        stretch = 1 + self.evaluation
        work = (self.interval_s if interval_s is None else interval_s) * stretch
        share = renewal_goodput(work, self.save_s, self.restart_s, self.mtbf_s) / stretch
        return share / (1 + share * self.planned)


def rhythm(
    devices: int, habits: Habits = Habits(), *, rate: float | None = None, save_s: float | None = None,
    storage: float | None = None, restart_s: float | None = None, detect_s: float | None = None,
    interval_s: float | None = None,
) -> Rhythm:  # fmt: skip
    """A run's own numbers where they are known, usual ones else.

    `rate`: all stops per device and hour; `storage`: bytes/s of all devices together; `restart_s`: all of a restart.
    """
    base = usual()
    state = base.device_bytes * devices if habits.state_bytes is None else habits.state_bytes
    written = base.save_s(state, devices) if storage is None else state / storage
    stall = base.copy_s(state, devices) if habits.asynchronous else written
    if save_s is not None:
        stall, written = save_s, save_s if habits.state_bytes is None and storage is None else written
    elif habits.save_s is not None:
        stall, written = habits.save_s, max(habits.save_s, written)
    between = mtbf_s(devices, base.rate if rate is None else rate)
    # a state too small to matter is still saved every second, or step, at most
    best = max(best_interval(stall, between), habits.step_s or 1.0, written if habits.asynchronous else 0.0)
    interval = interval_s
    if habits.step_s:
        best = habits.step_s * max(1, round(best / habits.step_s))
        if interval is None and habits.save_every:
            interval = habits.save_every * habits.step_s
    if restart_s is None:
        seconds = base.found_s + base.restart_s + written if detect_s is None else detect_s + base.restart_s + written
    else:
        seconds = restart_s + (detect_s or 0.0)
    planned = devices * base.planned_rate * (stall + base.planned_s) / 3600 if rate is None else 0.0
    return Rhythm(between, interval or best, best, stall, written, seconds, habits.evaluation, planned)
