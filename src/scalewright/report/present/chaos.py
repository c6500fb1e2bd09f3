"""The answer of `chaos` as blocks: whether the run comes back, by kind of fault, and each fault in time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from scalewright.report.present.blocks import Bar, Bars, Block, Line, Shown, Table, Tone
from scalewright.spec.common.formatting import counted, duration, short_time


def show_chaos(answer: Mapping[str, Any]) -> Shown:
    """The answer as blocks."""
    title = f"{counted(len(answer['faults']), 'faults')} on {counted(answer['layout']['devices'], 'ranks')}"
    return Shown(title, list(_head(answer)), list(_blocks(answer)))


def _head(answer: Mapping[str, Any]) -> Iterator[Line]:
    faults, recovered = answer["faults"], answer["recovered"]
    seconds = [fault["seconds"] for fault in faults if fault["recovered"]]
    took = f"; training again after {short_time(median(seconds))} (median), {short_time(max(seconds))} at most"
    yield Line(
        "recovered",
        f"{recovered} of {counted(len(faults), 'faults')}{took if seconds else ''}",
        _tone(recovered == len(faults)),
    )
    runs = answer["runs"]
    equal = sum(run["equal"] is True for run in runs)
    words = "weights, states and every step's numbers are those of the undisturbed run, bit for bit"
    yield Line("equal", f"{equal} of {counted(len(runs), 'runs')}: {words}", _tone(answer["equal"]))
    for run in runs:
        if run["equal"] is not True:
            yield Line("differs", f"run {run['number']}: {', '.join(run['differs'][:5]) or 'it did not end'}", "bad")
    lost = answer["lost"]
    yield Line("lost", f"{counted(lost['steps'], 'steps')} were done again, {short_time(lost['seconds'])} of training")
    if answer["orphans"]:
        yield Line("orphans", f"{counted(answer['orphans'], 'processes')} were left behind, and killed", "bad")
    for entry in answer["left_out"]:
        yield Line("left out", f"{entry['kind']}: {entry['why']}", listed=True)
    for line in answer["assumed"]:
        yield Line("assumed", line, listed=True)


def _tone(good: bool) -> Tone:
    return "good" if good else "bad"


def _blocks(answer: Mapping[str, Any]) -> Iterator[Block]:
    rows, bars = [], []
    for kind in answer["kinds"]:
        of_kind = [fault for fault in answer["faults"] if fault["kind"] == kind]
        seconds = [fault["seconds"] for fault in of_kind if fault["recovered"]]
        if not of_kind:
            continue
        middle = median(seconds) if seconds else None
        rows.append([
            kind, f"{len(seconds)} of {len(of_kind)}", short_time(middle) if middle is not None else "–",
            short_time(max(seconds)) if seconds else "–", sum(fault["lost_steps"] for fault in of_kind),
        ])  # fmt: skip
        if middle is not None:
            bars.append(Bar(kind, middle, short_time(middle), 8))
    yield Table(["fault", "recovered", "after, median", "at most", "steps done again"], rows)
    yield Bars("until it trained again, median", bars, detail=True)
    each = [
        [*(fault[key] for key in ("kind", "run", "step")), duration(fault["at"]),
         short_time(fault["seconds"]) if fault["recovered"] else "not", ", ".join(map(str, fault["ended"])) or "none"]
        for fault in answer["faults"]
    ]  # fmt: skip
    yield Table(["fault", "run", "step", "at", "trained again after", "exit codes"], each, detail=True)
