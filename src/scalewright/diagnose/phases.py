"""Device time by phase of a step: what was launched by the forward, the backward and the optimizer.

    host     │ forward: aten::... │ autograd::engine::evaluate_function: ... │ Optimizer.step#AdamW.step │
                │ launch              │ launch                                  │ launch
    device      ▼ ██ forward          ▼ ██ backward (its collectives, too)      ▼ ██ optimizer

    backward    launched inside autograd's engine, or a range named so (ours: `backward stage 0 ...`)
    optimizer   launched inside a range `Optimizer.step#...` or `optimizer phase`
    forward     launched in a step by anything else: the model, the loss, copies of its data
    idle        nothing ran; other: launched outside of the steps, or by what the trace doesn't tell

Where kernels of two phases overlap, time counts for the first of forward, backward, optimizer, other: a
collective of the backward beside an optimizer's kernel is the backward's. The parts add up to the window.
"""

from __future__ import annotations

import re

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.ranks import Rank
from scalewright.diagnose.traces.gloo import gloo_rows
from scalewright.diagnose.traces.trace import ANNOTATION, OPERATOR, Trace

PHASES = ("forward", "backward", "optimizer", "other")
BACKWARD = re.compile(r"autograd::engine::evaluate_function|backward (?:stage|phase)|\w*Backward\d*$")
OPTIMIZER = re.compile(r"Optimizer\.step|optimizer phase")


def phases(rank: Rank) -> dict[str, int] | None:
    """Nanoseconds of each phase and of `idle`; None for a trace that names neither backward nor optimizer."""
    trace = rank.trace
    if not trace.on_gpu.any():
        return _of_operators(rank)
    rows = np.flatnonzero(trace.on_gpu)
    launch = trace.launches[rows]
    backward, optimizer = _inside(trace, launch, BACKWARD), _inside(trace, launch, OPTIMIZER)
    if not backward.any() and not optimizer.any():
        return None
    stepped = _in_steps(rank, launch) & (launch >= 0)
    phase = np.select([optimizer, backward, stepped], [2, 1, 0], 3)
    spans = [intervals.union(trace.start[rows[phase == k]], trace.end[rows[phase == k]]) for k in range(4)]
    return _partition(rank, spans)


def _of_operators(rank: Rank) -> dict[str, int] | None:
    """Without a GPU the operators themselves are the device's time: by the ranges around them.

    A collective is of the phase that it began in, though it ends later.
    """
    trace, busy = rank.trace, rank.activity.busy
    ranges = [
        intervals.union(trace.start[rows], trace.end[rows])
        for rows in (np.flatnonzero(_named(trace, BACKWARD)), np.flatnonzero(_named(trace, OPTIMIZER)))
    ]
    if not sum(map(len, ranges)):
        return None
    rows = np.flatnonzero(gloo_rows(trace))
    ranges = [
        intervals.merge(spans, intervals.minus(_begun_in(trace, rows, spans), rank.activity.compute))
        for spans in ranges
    ]
    backward, optimizer = (intervals.overlap(busy, spans) for spans in ranges)
    backward = intervals.minus(backward, optimizer)
    rest = intervals.minus(busy, intervals.merge(backward, optimizer))
    steps = intervals.union(rank.steps.host_start, rank.steps.host_end)
    forward = intervals.overlap(rest, steps)
    return _partition(rank, [forward, backward, optimizer, intervals.minus(rest, forward)])


def _begun_in(trace: Trace, rows: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """The time of those rows that begin in one of the spans."""
    moment = trace.start[rows]
    inside = intervals.length_within(spans, moment, moment + 1) > 0
    return intervals.union(trace.start[rows[inside]], trace.end[rows[inside]])


def _partition(rank: Rank, spans: list[np.ndarray]) -> dict[str, int]:
    """The time of each set that is in none before it, and what is left of the window."""
    window = intervals.union(np.array([rank.activity.start]), np.array([rank.activity.end]))
    result, before = {}, np.empty((0, 2), dtype=np.int64)
    for name, some in zip(PHASES, spans, strict=True):
        inside = intervals.overlap(some, window)
        result[name] = intervals.length(intervals.minus(inside, before))
        before = intervals.merge(before, inside)
    return {**result, "idle": rank.breakdown.window - sum(result.values())}


def _inside(trace: Trace, launch: np.ndarray, names: re.Pattern[str]) -> np.ndarray:
    """Whether each launch (a row, -1 for none) lies in a range with such a name, on its own thread."""
    ranges = np.flatnonzero(_named(trace, names))
    result = np.zeros(len(launch), dtype=bool)
    for lane in np.unique(trace.lane[ranges]):
        rows = ranges[trace.lane[ranges] == lane]
        spans = intervals.union(trace.start[rows], trace.end[rows])
        if not len(spans):  # ranges without a length
            continue
        when = trace.start[np.maximum(launch, 0)]
        place = np.searchsorted(spans[:, 0], when, side="right") - 1
        within = (place >= 0) & (when < spans[np.maximum(place, 0), 1])
        result |= within & (launch >= 0) & (trace.lane[np.maximum(launch, 0)] == lane)
    return result


def _named(trace: Trace, names: re.Pattern[str]) -> np.ndarray:
    """Ranges and operators of the host whose name begins so."""
    hits = np.array([names.match(name) is not None for name in trace.names], dtype=bool)
    host = (trace.category == OPERATOR) | (trace.category == ANNOTATION)
    return hits[trace.name] & host if len(hits) else np.zeros(len(trace), dtype=bool)


def _in_steps(rank: Rank, launch: np.ndarray) -> np.ndarray:
    """Whether each launch lies in a step; all do where nothing names the steps."""
    steps = rank.steps
    if not len(steps):
        return np.ones(len(launch), dtype=bool)
    when = rank.trace.start[np.maximum(launch, 0)]
    place = np.searchsorted(steps.host_start, when, side="right") - 1
    return np.asarray((place >= 0) & (when < steps.host_end[np.maximum(place, 0)]))
