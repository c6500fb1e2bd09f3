"""Failures: a run that is killed and goes on is the same run, and how often it should be saved.

    lost at a stop       work since the last save, half an interval on average
    spent on saves       save / interval of the time
    best interval        sqrt(2 save mtbf)           Young 1974: both losses alike
    goodput              tau / (M e^(R/M) (e^((tau + C) / M) - 1))      Daly 2006: stops at random, restarts R

A real run is ended in the middle and started again by the same command; then thousands of runs are played with stops at
random, at many intervals.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from scalewright.learn.lab.bench import Bench
from scalewright.learn.lab.outcome import Curve, Outcome, Value, curves, table
from scalewright.spec.common.formatting import share, short_time

SAVE_S, RESTART_S, MTBF_S = 30.0, 300.0, 3 * 3600.0
DAYS = 20.0
SHARES = (0.25, 0.5, 1.0, 2.0, 4.0)  # of Young's interval
STEPS, EVERY, KILLED = 10, 4, 7


class EndedError(Exception):
    """Ends a run from its callback, as a crash would."""


def run(bench: Bench) -> Outcome:
    """The killed run's bits and repeated steps, and goodput by interval, played and by Daly's formula."""
    from scalewright.plan.reliability import best_interval, renewal_goodput, young_interval

    killed = bench.part("a run that is killed, and goes on", lambda: _killed(bench))
    young = young_interval(SAVE_S, MTBF_S)
    runs = 40 if bench.short else 400
    seen = bench.part(
        f"{runs} runs with stops at random", lambda: [_play(part * young, runs, bench.seed) for part in SHARES]
    )
    played = dict(zip(SHARES, seen, strict=True))
    exact = {part: renewal_goodput(part * young, SAVE_S, RESTART_S, MTBF_S) for part in SHARES}
    values = [
        Value("tensors that differ from the undisturbed run's", killed["differ"], 0.0, "tensors", "none", 0.0,
              "bit by bit"),
        Value("steps that were done again", killed["again"], KILLED % EVERY, "steps", "since the last save", 0.0,
              "counted"),
        *(Value(f"goodput at {part:g} of Young's interval", played[part], exact[part], "share", "Daly's renewal form",
                0.01, f"{runs} runs of {DAYS:g} days") for part in SHARES),
        Value("the best interval, over Young's", best_interval(SAVE_S, MTBF_S) / young, 1.0, "times", "sqrt(2 C M)",
              0.05, "first order: a save is short beside the time between stops"),
    ]  # fmt: skip
    fine = [0.1 * 1.2**power for power in range(22)]
    formula = [(part * young, renewal_goodput(part * young, SAVE_S, RESTART_S, MTBF_S)) for part in fine]
    lines = [
        Curve("played", [(part * young, goodput) for part, goodput in played.items()]),
        Curve("Daly's form", formula, expected=True),
    ]
    rows = [[short_time(part * young), share(played[part]), share(exact[part])] for part in SHARES]
    return Outcome(
        values,
        [curves("goodput by interval between saves", "interval", "share that trains", lines, ("s", "share"), log="x"),
         table("a save of 30 s, a restart of 5 min, a stop every 3 h", ["interval", "played", "expected"], rows)],
    )  # fmt: skip


def _killed(bench: Bench) -> dict[str, int]:
    from scalewright.checkpoint.compare import tensors
    from scalewright.checkpoint.read import find_checkpoint

    changes = {
        "train": {"steps": STEPS}, "checkpoint": {"every": EVERY, "at_end": True},
        "layout": {"devices": 1, "global_batch": 2, "micro_batch": 2},
    }  # fmt: skip
    whole = bench.run("undisturbed", changes)

    def end(row: Any) -> None:
        if row["step"] == KILLED:
            raise EndedError

    with suppress(EndedError):
        bench.run("killed", changes, on_step=end)
    resumed = bench.run("killed", changes)
    folders = [find_checkpoint(run.folder) for run in (whole, resumed)]
    differ = sum(not row["equal"] for row in tensors(*folders))
    at = {event["kind"]: event["step"] for event in resumed.events}
    return {"differ": differ, "again": at["fault"] - at["resume"]}


def _play(interval: float, runs: int, seed: int) -> float:
    """The share of the time of many runs that was work done once."""
    generator, useful, clock = np.random.default_rng(seed), np.zeros(runs), np.zeros(runs)
    while clock.min() < DAYS * 86400:
        # until the next stop: whole intervals with their saves are kept, the rest is lost; then a restart, which a stop
        # may meet, too, and which then begins again
        until = generator.exponential(MTBF_S, runs)
        useful += np.floor(until / (interval + SAVE_S)) * interval
        clock += until
        waiting = np.ones(runs, bool)
        while waiting.any():
            next_stop = generator.exponential(MTBF_S, runs)
            clock += np.where(waiting, np.minimum(next_stop, RESTART_S), 0.0)
            waiting &= next_stop < RESTART_S
    return float(useful.sum() / clock.sum())
