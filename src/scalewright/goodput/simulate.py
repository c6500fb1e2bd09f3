"""Many runs at once, event by event: a row of numpy for each, a step of the loop for each run's next event.

    |work  save|work  save|work ✗ found | node awaited | restart |work  save| ...
     interval_s  save_s      └ lost ┘

Events come at random, those of a run one after another: a stop by a cause of setting.py, a planned stop (saved before),
and a node that turns into a lemon. Of lemons, which are few and fail often, each is taken out after some stops; others
turn into ones, so that the mean rate is the given one, but stops come in bunches. A stop during a restart begins it
anew. What failed is away for a while; a spare node takes its place at once if one is there, else the run waits.

A run that has had MOST_EVENTS is long enough to know its goodput by: its end is extrapolated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scalewright.goodput.setting import Setting

Numbers = NDArray[np.float64]
MOST_EVENTS = 3000
LOST = ("save", "work", "detect", "restart", "other")


@dataclass(frozen=True)
class Trials:
    """What simulated runs had: goodput, seconds to their end (inf: they'd never get there), stops, shares of time."""

    goodput: Numbers
    wall_s: Numbers
    stops: Numbers
    lost: dict[str, float]  # shares of all runs' time together; with goodput they add up to 1


def simulate(setting: Setting, trials: int = 200, seed: int = 0) -> Trials:
    """So many runs of the setting, each until its work is done."""
    runs = _Runs(setting, trials, np.random.default_rng(seed))
    for _ in range(MOST_EVENTS):
        if not len(runs.live):
            break
        runs.next_event()
    share = runs.done / runs.clock
    with np.errstate(divide="ignore"):
        wall = np.where(runs.done >= setting.work_s, runs.clock, setting.work_s / share)
    stops = runs.stops * np.where(np.isfinite(wall), wall / runs.clock, np.inf)
    time = float(runs.clock.sum())
    return Trials(share, wall, stops, {name: float(lost.sum()) / time for name, lost in runs.lost.items()})


@dataclass
class _Runs:
    """The state of all runs; `live` are those that go on."""

    setting: Setting
    trials: int
    random: np.random.Generator
    clock: Numbers = field(init=False)  # seconds since the start
    done: Numbers = field(init=False)  # seconds of saved work
    part: Numbers = field(init=False)  # seconds into the current interval and its save
    ahead: Numbers = field(init=False)  # [3, trials] seconds of finding, waiting and restarting to go

    def __post_init__(self) -> None:
        s, trials = self.setting, self.trials
        self.live = np.arange(trials)
        self.clock, self.done, self.part, self.stops = (np.zeros(trials) for _ in range(4))
        self.ahead = np.zeros((3, trials))
        self.lost = {name: np.zeros(trials) for name in LOST}
        self.free_at = np.zeros((trials, s.spares or 0))  # when each spare node is there
        scale = np.exp(s.spread * self.random.standard_normal(trials))
        per_s = s.devices * s.rate / 3600 * scale
        self.usual_rate = per_s * (1 - s.lemon_share)
        many = max(s.lemon_nodes * s.nodes, 1e-9)  # lemons on average
        self.lemon_rate = per_s * s.lemon_share / many  # of one
        self.births = per_s * s.lemon_share / s.strikes
        self.lemons = self.random.poisson(many, trials) if s.lemon_share else np.zeros(trials)
        self.planned = np.full(trials, s.devices * s.planned_rate / 3600)
        self.until = np.cumsum([cause.share for cause in s.causes])
        self.found_s = np.array([cause.found_s for cause in s.causes])
        self.away_s = np.array([cause.away_s for cause in s.causes])

    def next_event(self) -> None:
        """Every live run goes on to its next event, and takes it."""
        at = self.live
        by_lemon = self.lemons[at] * self.lemon_rate[at]
        rates = np.stack([self.usual_rate[at], by_lemon, self.planned[at], self.births[at]])
        total = rates.sum(axis=0)
        with np.errstate(divide="ignore"):
            after = self.random.standard_exponential(len(at)) / total
        ended = self._advance(at, after)
        drawn = self.random.random(len(at)) * total
        kind = (drawn >= np.cumsum(rates, axis=0)[:3]).sum(axis=0)
        going = ~ended
        self._stop(at[going & (kind <= 1)])
        taken_out = at[going & (kind == 1)]
        self.lemons[taken_out] -= self.random.random(len(taken_out)) < 1 / self.setting.strikes
        self._planned_stop(at[going & (kind == 2)])
        self.lemons[at[going & (kind == 3)]] += 1
        self.live = at[going]

    def _advance(self, at: NDArray[np.intp], seconds: Numbers) -> NDArray[np.bool_]:
        """Recovery first, then work; returns which runs came to their end on the way."""
        s = self.setting
        for number, name in enumerate(("detect", "other", "restart")):
            used = np.minimum(seconds, self.ahead[number, at])
            self.ahead[number, at] -= used
            self.lost[name][at] += used
            self.clock[at] += used
            seconds = seconds - used
        stretch = 1 + s.evaluation
        whole = s.interval_s * stretch + s.save_s
        left = s.work_s - self.done[at]
        needed = left * stretch + np.ceil(left / s.interval_s - 1e-9) * s.save_s
        reached = self.part[at] + seconds
        ended = reached >= needed
        intervals = np.floor(np.where(ended, 0.0, reached) / whole)
        gained = np.where(ended, left, intervals * s.interval_s)
        saved = np.where(ended, needed - left * stretch, intervals * s.save_s)
        self.done[at] += gained
        self.lost["save"][at] += saved
        self.lost["other"][at] += gained * s.evaluation
        self.clock[at] += np.where(ended, needed - self.part[at], seconds)
        self.part[at] = np.where(ended, 0.0, reached - intervals * whole)
        return ended

    def _stop(self, at: NDArray[np.intp]) -> None:
        """What isn't saved is lost; then the stop is found, a node awaited, the run started again."""
        s, part = self.setting, self.part[at]
        work = s.interval_s * (1 + s.evaluation)
        self.lost["work"][at] += np.minimum(part, work)
        self.lost["save"][at] += np.maximum(part - work, 0.0)
        self.part[at] = 0.0
        self.stops[at] += 1
        cause = np.minimum(np.searchsorted(self.until, self.random.random(len(at))), len(self.until) - 1)
        self.ahead[:, at] = self.found_s[cause], self._await(at, self.away_s[cause]), np.full(len(at), s.start_s)

    def _await(self, at: NDArray[np.intp], away: Numbers) -> Numbers:
        """Seconds until a node is there in place of one that is away; spares change places with it."""
        if self.setting.spares is None:
            return np.zeros(len(at))
        if self.setting.spares == 0:
            return away
        first = self.free_at[at].argmin(axis=1)
        wait = np.maximum(self.free_at[at, first] - self.clock[at], 0.0) * (away > 0)
        self.free_at[at, first] = np.where(away > 0, self.clock[at] + away, self.free_at[at, first])
        waited: Numbers = np.minimum(wait, away)  # or until it is back itself
        return waited

    def _planned_stop(self, at: NDArray[np.intp]) -> None:
        """The run saves, stands, and goes on where it was."""
        s = self.setting
        work = np.minimum(self.part[at] / (1 + s.evaluation), s.interval_s)
        self.done[at] += work
        self.lost["other"][at] += work * s.evaluation
        cut = np.maximum(self.part[at] - s.interval_s * (1 + s.evaluation), 0.0)  # of a save that begins anew
        self.lost["save"][at] += cut + s.save_s
        self.clock[at] += s.save_s
        self.part[at] = 0.0
        self.ahead[1, at] += s.planned_s
