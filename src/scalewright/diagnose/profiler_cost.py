"""What recording itself cost a run without a GPU, where the trace has the time of a step without it.

    steps before the recording   │ 74 ms │ 74 ms │          `step_time_s` of the trace: the median of those
    recorded steps                               │  110 ms  │  110 ms  │
    each = (110 - 74) ms / operators of a step                              nanoseconds an operator

A profiler writes down every operator, so that thousands of short ones look worse than they are, and a
loader's wait looks better. The rank with the most operators is taken: the others wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalewright.diagnose.cpu import main_operators
from scalewright.diagnose.steps import Steps
from scalewright.diagnose.traces.trace import Trace

KEY = "step_time_s"  # of a trace's own metadata
MOST = 20_000.0  # ns: what is beyond wasn't the recorder, which takes 1 to 5 microseconds an operator


@dataclass(frozen=True)
class ProfilerCost:
    """Seconds of a step without and with the recorder; nanoseconds that it cost an operator."""

    step: float
    recorded: float
    each: float

    def dump(self) -> dict[str, object]:
        """The keys of `profiler_cost` in `diagnose --json`."""
        return {
            "step_time_s": self.step,
            "recorded_step_time_s": self.recorded,
            "operator_us": self.each / 1e3,
        }


def profiler_cost(traces: Sequence[Trace], steps: Sequence[Steps]) -> ProfilerCost | None:
    """What it cost; None where no trace has the time of other steps, or no steps."""
    before = [seconds for trace in traces if (seconds := _time(trace.about.get(KEY)))]
    counts = [len(rank_steps) for rank_steps in steps]
    if not before or not min(counts):
        return None
    with_it = [(rank_steps.host_end[-1] - rank_steps.host_start[0]) / len(rank_steps) for rank_steps in steps]
    operators = [_operators(trace, some) for trace, some in zip(traces, steps, strict=True)]
    step, recorded = float(np.median(before)), float(np.median(with_it)) / 1e9
    each = max(recorded - step, 0.0) * 1e9 / max(*operators, 1.0)
    return ProfilerCost(step, recorded, min(each, MOST))


def _operators(trace: Trace, steps: Steps) -> float:
    """The main thread's in a step."""
    starts = trace.start[main_operators(trace)]
    inside = (starts >= steps.host_start[0]) & (starts < steps.host_end[-1])
    return float(np.count_nonzero(inside)) / len(steps)


def _time(value: Any) -> float:
    """Seconds; 0 for what isn't a time."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return 0.0
    return float(value) if 0 < value < 1e6 else 0.0
