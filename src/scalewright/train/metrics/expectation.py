"""The predicted step time of this run on this machine beside the measured one.

    plan.predict(model, this machine, layout) --> predicted event, a line at the start
    step times of this call, and their parts   --> "a step took 158 ms, predicted 142 ms (+11%): as expected"

A GPU is priced from its published figures, or by the cluster that the run names. A CPU has none: it is priced from
timings of its kernels, which `plan` and `predict` on `--cluster local` take once and keep. They need some seconds with
nothing beside them, so that `train` only reads them. Without any, a note gives the reason; it never stops a run.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from scalewright.machine.local import find_cluster, timed_cluster
from scalewright.machine.timings import known_timings
from scalewright.plan.predict import price
from scalewright.spec.common.formatting import against, short_time
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.model import ModelSpec
from scalewright.spec.question import Question
from scalewright.spec.run import RunSpec
from scalewright.spec.step_parts import PARTS, together
from scalewright.train.resolve import Resolved

COLD = 3  # steps of a call that set up memory and kernels, and aren't compared
ENOUGH = 3  # steps after those that make a median


@dataclass
class Expectation:
    """Seconds of a step: predicted (null where there can be no prediction), and measured as the run goes."""

    p10: float | None = None
    p50: float | None = None
    p90: float | None = None
    breakdown_s: Mapping[str, float] = field(default_factory=dict)
    memory_gib: Mapping[str, float] = field(default_factory=dict)  # by kind, of the worst rank
    comm_bytes: Mapping[str, float] = field(default_factory=dict)  # by axis, of a device and step
    note: str = ""
    _step_count: int = 0
    _steps: deque[tuple[float, Mapping[str, float]]] = field(default_factory=lambda: deque(maxlen=1000))

    def dump(self) -> dict[str, object]:
        """The `predicted` event."""
        band = {"p10": self.p10, "p50": self.p50, "p90": self.p90}
        parts = {key: dict(getattr(self, key)) for key in ("breakdown_s", "memory_gib", "comm_bytes")}
        return {**band, **parts, "note": self.note}

    def promise(self) -> str:
        """A line for the start of a run."""
        if self.p50 is None:
            return f"no prediction of a step's time: {self.note}" if self.note else ""
        band = f"{short_time(self.p10)} to {short_time(self.p90)}"
        return f"a step should take {short_time(self.p50)} ({band}){f'; {self.note}' if self.note else ''}"

    def measured(self, seconds: float, parts: Mapping[str, float]) -> None:
        """Notes one step: its time, and where that went."""
        self._step_count += 1
        if self._step_count > COLD:
            self._steps.append((seconds, parts))

    @property
    def median_s(self) -> float | None:
        """The median step of this call, its first steps left out; None after too few."""
        return median(seconds for seconds, _ in self._steps) if len(self._steps) >= ENOUGH else None

    def outcome(self) -> dict[str, float | None]:
        """Predicted and measured seconds, as a run's result has them."""
        return {"predicted_step_time_s": self.p50, "measured_step_time_s": self.median_s}

    def words(self) -> str:
        """A line for the end of a run; empty without a prediction, or after too few steps."""
        measured_s = self.median_s
        if self.p50 is None or measured_s is None:
            return ""
        return compare(self.p50, self.p10 or self.p50, self.p90 or self.p50, measured_s, self._blame())

    def _blame(self) -> str:
        """The part that takes the most more (or less) than predicted, in words. Parts are means, which add up where
        medians don't, scaled to the median step beside them: a few slow steps would give a part more than the step."""
        sums = defaultdict[str, float](float)
        for _, parts in self._steps:
            for name, seconds in parts.items():
                sums[name] += seconds
        usual, whole = self.median_s or 0.0, sum(seconds for seconds, _ in self._steps)
        scale = usual / whole if whole else 0.0
        measured = together({name: seconds * scale for name, seconds in sums.items()})
        predicted = together(self.breakdown_s)
        if not measured or not predicted:
            return ""
        sign = 1 if usual > (self.p50 or 0.0) else -1
        names = {**measured, **predicted}
        worst = max(names, key=lambda name: sign * (measured.get(name, 0.0) - predicted.get(name, 0.0)))
        figures = f"{short_time(measured.get(worst, 0.0))}, {short_time(predicted.get(worst, 0.0))} predicted"
        return f"most of it in {PARTS.get(worst, worst)} ({figures})"


def compare(predicted: float, low: float, high: float, measured: float, blame: str = "") -> str:
    """The predicted and the measured step time in a line; seconds.

    >>> compare(0.1, 0.08, 0.12, 0.11)
    'a step took 110 ms, predicted 100 ms (+10%): as expected'
    """
    line = f"a step took {short_time(measured)}, predicted {short_time(predicted)}"
    line += f" ({against(measured, predicted)}): "
    if low <= measured <= high:
        return f"{line}as expected"
    line += "slower than expected" if measured > high else "faster than expected"
    line += f", {blame}" if blame else ""
    return line + (" (other work on this machine counts, too)" if measured > high else "")


def expect(resolved: Resolved) -> Expectation:
    """The prediction for a run whose precision and device are chosen; a note where there can be none."""
    if not isinstance(resolved.model, ModelSpec):
        return Expectation(note="the model is the user's own, and its operators can't be counted")
    try:
        place, note = place_of(resolved.run)
        if place is None:
            return Expectation(note=note)
        prediction = price(Question(resolved.run, place, length=resolved.seq_len))
    except (UserError, RunError) as error:
        return Expectation(note=str(error))
    except Exception as error:  # a planner that fails is no reason not to train
        return Expectation(note=f"{type(error).__name__}: {error}")
    (low, high), seconds = prediction.band_s, prediction.step_time_s
    return Expectation(low, seconds, high, prediction.breakdown, prediction.memory_gib, prediction.comm_bytes, note)


def place_of(run: RunSpec) -> tuple[ClusterSpec | None, str]:
    """The machine as the planner sees it, and a note on it; None where it has no figures."""
    if run.device == "cuda":
        return find_cluster(run.cluster), ""
    if run.device != "cpu":
        return None, f"nobody publishes figures of {run.device}"
    devices = run.layout.devices
    if (timings := known_timings(devices)) is None:
        command = f"scalewright predict tiny --cluster local --devices {devices}"  # any model times the same kernels
        return None, f"this machine has not been timed lately (once: `{command}`)"
    busy = timings.load is not None and timings.load > 0.5 * devices * timings.threads
    note = f"timed beside other work (load {timings.load:.1f})" if busy else ""
    return timed_cluster(devices, timings), note
