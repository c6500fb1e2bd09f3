"""The answer of `goodput` as blocks: the share that trains, how often to save, days and money; what takes the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from scalewright.report.present.bands import footprint
from scalewright.report.present.blocks import Bar, Bars, Block, Line, Note, Shown, Table
from scalewright.spec.common.formatting import counted, duration, metric, share, short_time

FEW_TRIALS = 10  # have no tenth
PARTS = {
    "work": "work done again", "save": "saves", "detect": "until found", "restart": "restarts",
    "other": "waiting, maintenance, validation",
}  # fmt: skip

# Parts of a run's wall time (goodput/ledger.py).
WALL = {
    "productive": "training", "save_stall": "stopped for saves", "lost_work": "work done again",
    "detect": "until an end was found", "restart": "starting", "load": "reading checkpoints",
    "data_wait": "waiting for data", "compile": "first steps, compiling", "evaluate": "validation",
    "idle": "asked to stop, or none of these",
}  # fmt: skip


def show_goodput(answer: Mapping[str, Any]) -> Shown:
    """The answer as blocks."""
    return Shown(f"goodput on {counted(answer['devices'], 'devices')}", list(_head(answer)), list(_blocks(answer)))


def _head(answer: Mapping[str, Any]) -> Iterator[Line]:
    band, days, cost = answer["goodput"], answer["days"], answer["cost"]
    few = answer["trials"] < FEW_TRIALS
    ends = f"8 of 10 runs {share(band['p10'])} to {share(band['p90'])}"
    if few:
        ends = f"{counted(answer['trials'], 'runs')} simulated, too few for a band (--trials 200)"
    yield Line("goodput", f"{share(band['p50'])} of the time trains in the median run; {ends}")
    steps = f" ({counted(answer['best_interval_steps'], 'steps')})" if answer["best_interval_steps"] else ""
    there, best = answer["closed_form"], max(row["goodput"] for row in answer["intervals"])
    gain = f", {share(best)} in place of {share(there)} by the closed form" if best - there > 5e-4 else ""
    short = answer["best_interval_s"] >= 86400 * answer["work_days"]
    every = (
        "one at the end is best" if short else f"every {_time(answer['best_interval_s'])}{steps} of work is best{gain}"
    )
    stall, written = short_time(answer["save_s"]), short_time(answer["written_s"])
    later = answer["written_s"] > 1.5 * answer["save_s"]
    takes = f"{stall} of the run, and is written after {written}" if later else stall
    yield Line("save", f"{every}; a save of {metric(answer['state_bytes'], 'B')} takes {takes}")
    if not answer["mtbf_h"]:
        yield Line("stops", "none: the rate of failures is 0")
    elif answer["failures"] not in (None, math.inf):
        stops = f"{counted(round(answer['failures']), 'failures')}, one in {_time(3600 * answer['mtbf_h'])}"
        yield Line("stops", f"{stops}; a restart takes {short_time(answer['restart_s'])} with what finds it")
    if days["p50"] in (None, math.inf):
        yield Line("days", "the run never ends: stops come faster than restarts", "bad")
        return
    most = "without end" if days["p90"] in (None, math.inf) else f"{days['p90']:,.4g}"
    takes = f"{days['p50']:,.4g} for {answer['work_days']:,.4g} of work"
    yield Line("days", takes if few else f"{takes}; 8 of 10 take {days['p10']:,.4g} to {most}")
    if cost is not None:
        yield Line("cost", f"{cost['p50']:,.0f} {answer['currency']} ({cost['p10']:,.0f} to {cost['p90']:,.0f})")
    if answer["energy_kwh"] is not None:
        yield Line("energy", footprint(answer["energy_kwh"], answer["co2_kg"]), detail=True)
    spares = answer["spares"]
    if spares["used"] is None:
        yield Line("spares", "no node is awaited: the seconds of a restart that are given are all of it")
    else:
        yield Line("spares", f"{counted(spares['used'], 'spare nodes')}; {spares['best']:,} pay best")
    for line in answer["assumed"]:
        yield Line("assumed", line, listed=True)


def _blocks(answer: Mapping[str, Any]) -> Iterator[Block]:
    yield _bars("what takes the time, the mean of all runs", answer["lost"], 1 - sum(answer["lost"].values()))
    ledger = answer["ledger"]
    if ledger is not None:
        own = f"this run so far: {duration(ledger['wall_s'])}, {counted(ledger['failures'], 'failures')}"
        wall = max(ledger["wall_s"], 1e-9)
        shares = {name: seconds / wall for name, seconds in ledger["seconds"].items()}
        yield Bars(own, [Bar(WALL[name], part, share(part), at) for at, (name, part) in enumerate(shares.items())])
        if ledger["notes"]:
            yield Note("what the folder doesn't tell", ledger["notes"])
    rows = [[_time(row["interval_s"]), share(row["goodput"])] for row in answer["intervals"]]
    yield Table(["saves every", "goodput, closed form"], rows, detail=True)
    causes = [[name, share(part)] for name, part in answer["causes"].items()]
    yield Table(["cause of a stop", "share"], causes, detail=True)


def _bars(title: str, lost: Mapping[str, float], goodput: float) -> Bars:
    rows = [Bar("training", goodput, share(goodput), 0)]
    rows += [Bar(words, lost[name], share(lost[name]), at) for at, (name, words) in enumerate(PARTS.items(), 1)]
    return Bars(title, rows)


def _time(seconds: float) -> str:
    """`231 s`, `1:02:03`, `2 d 3 h`."""
    return short_time(seconds) if seconds < 999.5 else duration(seconds)
