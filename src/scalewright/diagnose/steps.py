"""The steps of a trace: when the GPU began the work of each, which isn't when the host did.

    host   │ ProfilerStep#4      │ ProfilerStep#5      │            annotations of torch.profiler
              launch ─┐               launch ─┐
    GPU               ▼ step 4                ▼ step 5       ▼     from its first kernel to the next step's

Kernels belong to the step whose host window launched them, by correlation. What was launched before the first
step or after the last one isn't in any. Without annotations a trace is one window.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from scalewright.diagnose.traces.trace import Trace

STEP = re.compile(r"^ProfilerStep#(\d+)$")


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
    rows = np.flatnonzero((numbers[trace.name] >= 0) & ~trace.on_gpu) if len(numbers) else np.empty(0, int)
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    number = numbers[trace.name[rows]] if len(rows) else np.empty(0, dtype=np.int64)
    _, first = np.unique(number, return_index=True)
    rows, number = rows[np.sort(first)], number[np.sort(first)]
    host_start, host_end = trace.start[rows], trace.end[rows]
    if not trace.on_gpu.any() or not len(rows):
        return Steps(number, host_start, host_end, host_start, host_end)
    launched = trace.launches
    gpu = np.flatnonzero(trace.on_gpu & (launched >= 0))
    step = np.searchsorted(host_start, trace.start[launched[gpu]], side="right") - 1
    inside = (step >= 0) & (trace.start[launched[gpu]] < host_end[np.maximum(step, 0)])
    gpu, step = gpu[inside], step[inside]
    far = np.iinfo(np.int64).max
    start, end = np.full(len(rows), far), np.full(len(rows), -far)
    np.minimum.at(start, step, trace.start[gpu])
    np.maximum.at(end, step, trace.end[gpu])
    some = end > start
    start, end = start[some], end[some]
    if len(start):
        end[:-1] = np.maximum(start[1:], start[:-1])
    return Steps(number[some], host_start[some], host_end[some], start, end)
