"""Device time by phase of a step, and by layer of the model: both by what launched it.

    host     │ layers.0: aten::... │ autograd::engine::evaluate_function: ... │ Optimizer.step#AdamW.step │
                │ launch               │ launch                                  │ launch
    device      ▼ ██ forward           ▼ ██ backward (its collectives, too)      ▼ ██ optimizer

    backward    launched inside autograd's engine, or a range named so (ours: `backward stage 0 ...`)
    optimizer   launched inside a range `Optimizer.step#...` or `optimizer phase`
    forward     launched in a step by anything else: the model, the loss, copies of its data
    idle        nothing ran; other: launched outside of the steps, or by what the trace doesn't tell

Where kernels of two phases overlap, time counts for the first of forward, backward, optimizer, other: a collective of
the backward beside an optimizer's kernel is the backward's. The parts add up to the window.

    layer       a range `model.layers.0`, which `train` and `record` write, or `nn.Module: LlamaDecoderLayer_0` of a
                profiler with modules; of several kinds (a block and the blocks within it) the longest
    forward     launched inside such a range, recomputation too
    backward    launched by the backward of an operator inside one: autograd gives both the same number

A collective that FSDP launches between layers belongs to none. On a CPU operators are the device's time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.ranks import Rank
from scalewright.diagnose.traces.gloo import gloo_rows
from scalewright.diagnose.traces.trace import ANNOTATION, OPERATOR, Trace

PHASES = ("forward", "backward", "optimizer", "other")
BACKWARD = re.compile(r"autograd::engine::evaluate_function|backward (?:stage|phase)|\w*Backward\d*$")
OPTIMIZER = re.compile(r"Optimizer\.step|optimizer phase")
LAYER = re.compile(
    r"(?P<kind>(?:[\w.]*\.)?(?:layers?|h|blocks?))\.(?P<number>\d{1,6})$"
    r"|nn\.Module: (?P<module>\w+)_(?P<instance>\d{1,6})$"
)
ENGINE = "autograd::engine::evaluate_function"


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
    stepped = launch >= 0
    if len(steps := rank.steps):  # else nothing names the steps
        stepped &= intervals.place(steps.host_start, steps.host_end, trace.start[launch]) >= 0
    phase = np.select([optimizer, backward, stepped], [2, 1, 0], 3)
    return _partition(rank, [trace.spans(rows[phase == number]) for number in range(len(PHASES))])


def _of_operators(rank: Rank) -> dict[str, int] | None:
    """Without a GPU the operators themselves are the device's time: by the ranges around them.

    A collective is of the phase that it began in, though it ends later.
    """
    trace, busy = rank.trace, rank.activity.busy
    ranges = [trace.spans(_named(trace, names)) for names in (BACKWARD, OPTIMIZER)]
    if not sum(map(len, ranges)):
        return None
    gloo = np.flatnonzero(gloo_rows(trace))
    begun = [gloo[intervals.place(spans[:, 0], spans[:, 1], trace.start[gloo]) >= 0] for spans in ranges]
    backward, optimizer = (
        intervals.overlap(busy, intervals.merge(spans, intervals.minus(trace.spans(rows), rank.activity.compute)))
        for spans, rows in zip(ranges, begun, strict=True)
    )
    backward = intervals.minus(backward, optimizer)
    rest = intervals.minus(busy, intervals.merge(backward, optimizer))
    forward = intervals.overlap(rest, intervals.union(rank.steps.host_start, rank.steps.host_end))
    return _partition(rank, [forward, backward, optimizer, intervals.minus(rest, forward)])


def _partition(rank: Rank, spans: list[np.ndarray]) -> dict[str, int]:
    """The time of each set that is in none before it, and what is left of the window."""
    window = np.array([[rank.activity.start, rank.activity.end]])
    result, before = {}, intervals.EMPTY
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
        spans = trace.spans(ranges[trace.lane[ranges] == lane])
        within = intervals.place(spans[:, 0], spans[:, 1], trace.start[launch]) >= 0
        result |= within & (launch >= 0) & (trace.lane[launch] == lane)
    return result


def _named(trace: Trace, names: re.Pattern[str]) -> np.ndarray:
    """Ranges and operators of the host whose name begins so."""
    return trace.with_name(lambda name: names.match(name) is not None) & np.isin(trace.category, (OPERATOR, ANNOTATION))


@dataclass(frozen=True)
class Ranges:
    """Ranges of the host, sorted by start: the rows, and which layer each is."""

    row: np.ndarray
    layer: np.ndarray

    def of(self, trace: Trace, rows: np.ndarray) -> np.ndarray:
        """For each row (-1: none) the layer whose range it begins in, on its own thread; -1 for none."""
        result = np.full(len(rows), -1, dtype=np.int64)
        for lane in np.unique(trace.lane[self.row]):
            mine = trace.lane[self.row] == lane
            ranges, layer = self.row[mine], self.layer[mine]
            place = intervals.place(trace.start[ranges], trace.end[ranges], trace.start[rows])
            within = (place >= 0) & (rows >= 0) & (trace.lane[rows] == lane)
            result[within] = layer[place[within]]
        return result


def layers(rank: Rank) -> list[dict[str, object]] | None:
    """Seconds of each layer's forward and backward and its share of the window; None without names."""
    trace = rank.trace
    names, forward = _forward(trace)
    if not names:
        return None
    backward, device = _backward(trace, forward), _on_gpu if trace.on_gpu.any() else _on_cpu
    window, rows = max(rank.breakdown.window, 1), []
    for name, spans in zip(names, device(rank, forward, backward, len(names)), strict=True):
        ahead, back = map(intervals.length, spans)
        share = 100 * (ahead + back) / window
        rows.append({"layer": name, "forward_s": ahead / 1e9, "backward_s": back / 1e9, "share_pct": share})
    return rows


def _on_gpu(rank: Rank, forward: Ranges, backward: Ranges, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """When kernels of each layer run, in its forward and its backward."""
    trace = rank.trace
    rows = np.flatnonzero(trace.on_gpu)
    ahead, back = (ranges.of(trace, trace.launches[rows]) for ranges in (forward, backward))
    for layer in range(count):
        yield trace.spans(rows[ahead == layer]), trace.spans(rows[(back == layer) & (ahead < 0)])


def _on_cpu(rank: Rank, forward: Ranges, backward: Ranges, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same of a CPU's operators and collectives."""
    busy = rank.activity.busy
    for layer in range(count):
        ahead, back = (rank.trace.spans(ranges.row[ranges.layer == layer]) for ranges in (forward, backward))
        yield intervals.overlap(busy, ahead), intervals.overlap(busy, intervals.minus(back, ahead))


def _forward(trace: Trace) -> tuple[list[str], Ranges]:
    """The layers' names in their order, and their ranges."""
    rows = np.flatnonzero(trace.category == ANNOTATION)
    kinds: dict[str, dict[int, int]] = {}  # kind -> number of the name -> number of the layer
    for index in np.unique(trace.name[rows]).tolist():
        if match := LAYER.match(trace.names[index]):
            kind = match["kind"] or match["module"]
            kinds.setdefault(kind, {})[index] = int(match["number"] or match["instance"])
    length = trace.end - trace.start
    totals = {kind: length[rows[np.isin(trace.name[rows], [*known])]].sum() for kind, known in kinds.items()}
    known = kinds[max(totals, key=lambda kind: int(totals[kind]))] if kinds else {}
    ordered = sorted(known, key=lambda index: known[index])
    place = np.full(len(trace.names), -1, dtype=np.int64)
    place[ordered] = np.arange(len(ordered))
    rows = trace.in_order(rows[place[trace.name[rows]] >= 0])
    return [trace.names[index].removeprefix("nn.Module: ") for index in ordered], Ranges(rows, place[trace.name[rows]])


def _backward(trace: Trace, forward: Ranges) -> Ranges:
    """Backwards of operators inside a layer's range."""
    sequence = np.full(len(trace), -1) if trace.sequence is None else trace.sequence
    engine = trace.starting((ENGINE,)) & (trace.category == OPERATOR)
    operators = np.flatnonzero((trace.category == OPERATOR) & (sequence >= 0) & ~engine)
    layer = forward.of(trace, operators)
    operators, layer = operators[layer >= 0], layer[layer >= 0]
    rows = np.flatnonzero(engine)
    rows = trace.in_order(rows[np.isin(sequence[rows], sequence[operators])])
    numbers, first = np.unique(sequence[operators], return_index=True)
    return Ranges(rows, layer[first[np.searchsorted(numbers, sequence[rows])]])
