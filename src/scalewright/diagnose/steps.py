"""The steps of a trace: when the GPU began the work of each, which isn't when the host did.

    host   │ ProfilerStep#4      │ ProfilerStep#5      │            annotations of torch.profiler
              launch ─┐               launch ─┐
    GPU               ▼ step 4                ▼ step 5       ▼     from its first kernel to the next step's

Kernels belong to the step whose host window launched them, by correlation. What was launched before the first step or
after the last one isn't in any. Without annotations a trace is one window.

What recording itself cost a run without a GPU, where the trace has the time of a step without it:

    steps before the recording   │ 74 ms │ 74 ms │          `step_time_s` of the trace: the median of those
    recorded steps                               │  110 ms  │  110 ms  │
    each = (110 - 74) ms / operators of a step                              nanoseconds an operator

A profiler writes down every operator, so that thousands of short ones look worse than they are, and a loader's wait
looks better. The rank with the most operators is taken: the others wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.cpu import main_operators
from scalewright.diagnose.logs.lines import real
from scalewright.diagnose.traces.trace import Trace

STEP = re.compile(r"^ProfilerStep#(\d+)$")
KEY = "step_time_s"  # of a trace's own metadata
MOST = 20_000.0  # ns: what is beyond wasn't the recorder, which takes 1 to 5 microseconds an operator


@dataclass(frozen=True)
class Steps:
    """Steps in order: their numbers, the host's windows and the GPU's, all int64 [n], nanoseconds."""

    number: np.ndarray
    host_start: np.ndarray
    host_end: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        return len(self.number)


def steps(trace: Trace) -> Steps:
    """The profiled steps; none where nothing names them."""
    numbers = np.array([int(m[1]) if (m := STEP.match(name)) else -1 for name in trace.names], dtype=np.int64)
    rows = trace.in_order(np.flatnonzero((numbers[trace.name] >= 0) & ~trace.on_gpu))
    _, first = np.unique(numbers[trace.name[rows]], return_index=True)
    rows = rows[np.sort(first)]
    number = numbers[trace.name[rows]]
    host_start, host_end = trace.start[rows], trace.end[rows]
    if not trace.on_gpu.any() or not len(rows):
        return Steps(number, host_start, host_end, host_start, host_end)
    launched = trace.launches
    gpu = np.flatnonzero(trace.on_gpu & (launched >= 0))
    step = intervals.place(host_start, host_end, trace.start[launched[gpu]])
    gpu, step = gpu[step >= 0], step[step >= 0]
    far = np.iinfo(np.int64).max
    start, end = np.full(len(rows), far), np.full(len(rows), -far)
    np.minimum.at(start, step, trace.start[gpu])
    np.maximum.at(end, step, trace.end[gpu])
    some = end > start
    start, end = start[some], end[some]
    if len(start):
        end[:-1] = np.maximum(start[1:], start[:-1])
    return Steps(number[some], host_start[some], host_end[some], start, end)


@dataclass(frozen=True)
class ProfilerCost:
    """Seconds of a step without and with the recorder; nanoseconds that it cost an operator."""

    step: float
    recorded: float
    each: float

    def dump(self) -> dict[str, object]:
        """The keys of `profiler_cost` in `diagnose --json`."""
        return {"step_time_s": self.step, "recorded_step_time_s": self.recorded, "operator_us": self.each / 1e3}


def profiler_cost(traces: Sequence[Trace], steps: Sequence[Steps]) -> ProfilerCost | None:
    """What it cost; None where no trace has the time of other steps, or no steps."""
    before = [seconds for trace in traces if 0 < (seconds := real(trace.about.get(KEY)) or 0.0) < 1e6]
    if not before or not all(map(len, steps)):
        return None
    with_it = [(of_rank.host_end[-1] - of_rank.host_start[0]) / len(of_rank) for of_rank in steps]
    operators = [1.0]  # of the main thread in a step
    for trace, of_rank in zip(traces, steps, strict=True):
        starts = trace.start[main_operators(trace)]
        inside = (starts >= of_rank.host_start[0]) & (starts < of_rank.host_end[-1])
        operators.append(np.count_nonzero(inside) / len(of_rank))
    step, recorded = float(np.median(before)), float(np.median(with_it)) / 1e9
    return ProfilerCost(step, recorded, min(max(recorded - step, 0.0) * 1e9 / max(operators), MOST))
