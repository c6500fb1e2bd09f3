"""Device time by layer of the model, where the trace names layers.

    host     │ layers.0 ──────────── │ ... │ autograd::engine::evaluate_function: MmBackward0     number 17
             │  aten::mm   number 17 │     │   its forward had number 17: layers.0
    device   ▼ ██ forward                  ▼ ██ backward

    ranges      `model.layers.0`, which `train` and `record` write, or `nn.Module: LlamaDecoderLayer_0` of a
                profiler with modules; of several kinds (a block and the blocks within it) the longest
    forward     launched inside such a range, recomputation too
    backward    launched by the backward of an operator inside one (autograd numbers them alike)

A collective that FSDP launches between layers belongs to none. On a CPU operators are the device's time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.ranks import Rank
from scalewright.diagnose.traces.trace import ANNOTATION, OPERATOR, Trace

NAME = re.compile(
    r"(?P<kind>(?:[\w.]*\.)?(?:layers?|h|blocks?))\.(?P<number>\d{1,6})$"
    r"|nn\.Module: (?P<module>\w+)_(?P<instance>\d{1,6})$"
)
BACKWARD = "autograd::engine::evaluate_function"


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
            when = trace.start[np.maximum(rows, 0)]
            place = np.searchsorted(trace.start[ranges], when, side="right") - 1
            within = (place >= 0) & (when < trace.end[ranges[np.maximum(place, 0)]])
            within &= (rows >= 0) & (trace.lane[np.maximum(rows, 0)] == lane)
            result[within] = layer[place[within]]
        return result

    def spans(self, trace: Trace, layer: int) -> np.ndarray:
        """When a layer's ranges run; int64 [n, 2]."""
        rows = self.row[self.layer == layer]
        return intervals.union(trace.start[rows], trace.end[rows])


def layers(rank: Rank) -> list[dict[str, object]] | None:
    """Seconds of each layer's forward and backward and its share of the window; None without names."""
    trace = rank.trace
    names, forward = _forward(trace)
    if not names:
        return None
    backward = _backward(trace, forward)
    if trace.on_gpu.any():
        seconds = _of_kernels(trace, forward, backward, len(names))
    else:
        seconds = _of_operators(rank, forward, backward, len(names))
    window = max(rank.breakdown.window, 1)
    return [
        {"layer": name, "forward_s": ahead / 1e9, "backward_s": back / 1e9, "share_pct": 100 * (ahead + back) / window}
        for name, (ahead, back) in zip(names, seconds, strict=True)
    ]


def _forward(trace: Trace) -> tuple[list[str], Ranges]:
    """The layers' names in their order, and their ranges."""
    rows = np.flatnonzero(trace.category == ANNOTATION)
    kinds: dict[str, dict[int, int]] = {}  # kind -> number of the name -> number of the layer
    for index in np.unique(trace.name[rows]).tolist():
        if match := NAME.match(trace.names[index]):
            kind = match["kind"] or match["module"]
            kinds.setdefault(kind, {})[index] = int(match["number"] or match["instance"])
    length = trace.end - trace.start
    totals = {kind: length[rows[np.isin(trace.name[rows], [*known])]].sum() for kind, known in kinds.items()}
    known = kinds[max(totals, key=lambda kind: int(totals[kind]))] if kinds else {}
    ordered = sorted(known, key=lambda index: known[index])
    place = np.full(len(trace.names), -1, dtype=np.int64)
    place[ordered] = np.arange(len(ordered))
    rows = rows[place[trace.name[rows]] >= 0]
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    names = [trace.names[index].removeprefix("nn.Module: ") for index in ordered]
    return names, Ranges(rows, place[trace.name[rows]])


def _backward(trace: Trace, forward: Ranges) -> Ranges:
    """Backwards of operators inside a layer's range."""
    empty = np.empty(0, dtype=np.int64)
    if trace.sequence is None:
        return Ranges(empty, empty)
    engine = trace.starting((BACKWARD,)) & (trace.category == OPERATOR)
    operators = np.flatnonzero((trace.category == OPERATOR) & (trace.sequence >= 0) & ~engine)
    layer = forward.of(trace, operators)
    operators, layer = operators[layer >= 0], layer[layer >= 0]
    rows = np.flatnonzero(engine & (trace.sequence >= 0))
    if not len(operators) or not len(rows):
        return Ranges(empty, empty)
    numbers, first = np.unique(trace.sequence[operators], return_index=True)
    place = np.minimum(np.searchsorted(numbers, trace.sequence[rows]), len(numbers) - 1)
    same = numbers[place] == trace.sequence[rows]
    rows, of = rows[same], layer[first[place[same]]]
    order = np.argsort(trace.start[rows], kind="stable")
    return Ranges(rows[order], of[order])


def _of_kernels(trace: Trace, forward: Ranges, backward: Ranges, count: int) -> list[tuple[int, int]]:
    """Nanoseconds in which a kernel of each layer runs, in its forward and its backward."""
    rows = np.flatnonzero(trace.on_gpu)
    launch = trace.launches[rows]
    ahead = forward.of(trace, launch)
    back = np.where(ahead < 0, backward.of(trace, launch), -1)

    def busy(of: np.ndarray, layer: int) -> int:
        some = rows[of == layer]
        return intervals.length(intervals.union(trace.start[some], trace.end[some]))

    return [(busy(ahead, layer), busy(back, layer)) for layer in range(count)]


def _of_operators(rank: Rank, forward: Ranges, backward: Ranges, count: int) -> list[tuple[int, int]]:
    """The same of a CPU's operators and collectives."""
    seconds = []
    for layer in range(count):
        ahead = forward.spans(rank.trace, layer)
        back = intervals.minus(backward.spans(rank.trace, layer), ahead)
        seconds.append(
            (
                intervals.length(intervals.overlap(rank.activity.busy, ahead)),
                intervals.length(intervals.overlap(rank.activity.busy, back)),
            )
        )
    return seconds
