"""Measured seconds as functions of size.

seconds │      ╱      linear between measured sizes, constant below the smallest,
        │  __╱        proportional to size beyond the largest
        └──────── size
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from scalewright.spec.hardware.timings import BF16_MARGIN, MESSAGES, TimingCurve, Timings

LAYER_FLOPS = 2.0 * 512 * 512 * 1408  # of the layer in the trainer's rule


class Curves:
    """Seconds of each measured operation, as functions of its size."""

    def __init__(self, timings: Timings) -> None:
        self.precisions, self.share = timings.precisions, timings.share
        self._curves: dict[tuple[str, str, str | None], TimingCurve]
        self._curves = {(curve.what, curve.phase, curve.precision): curve for curve in timings.curves}

    def __call__(
        self, what: str, size: float | np.ndarray, phase: str = "forward", precision: str | None = None
    ) -> np.ndarray:
        """Seconds at these sizes; 0 where there is no such curve."""
        if (curve := self._curves.get((what, phase, precision))) is None:
            return np.zeros(np.shape(size))
        sizes, seconds = np.array(curve.sizes), np.array(curve.seconds)
        seconds = seconds if what in MESSAGES else seconds / self.share
        size = np.asarray(size, float)
        inside = np.interp(size, sizes, seconds)
        return np.asarray(np.where(size > sizes[-1], seconds[-1] * size / sizes[-1], inside))


curves_of = lru_cache(maxsize=64)(Curves)  # one object for all runs of a machine


def narrow_is_fast(timings: Timings) -> bool:
    """Whether `precision: auto` means bf16 on this machine, by the trainer's rule (machine/probe.py)."""
    curves = curves_of(timings)
    if "bf16" not in curves.precisions:
        return False
    wide, narrow = (
        [float(curves("linear", LAYER_FLOPS, phase, precision)) for phase in ("forward", "backward")]
        for precision in ("fp32", "bf16")
    )
    ratios = [a / b for a, b in zip(wide, narrow, strict=True)]
    return sum(wide) / sum(narrow) >= BF16_MARGIN and min(ratios) >= 1


def probe_words(timings: Timings) -> str:
    """One line on the probe: processes, threads, date, and the machine's load."""
    processes = f"{timings.processes} process" + ("es" if timings.processes > 1 else "")
    threads = f"{timings.threads} thread" + ("s" if timings.threads > 1 else "")
    load = "" if timings.load is None else f", load {timings.load:g}"
    return f"{processes} of {threads} timed {timings.when or 'here'}{load} ({timings.how or 'as given'})"


def beyond_timed(timings: Timings, precision: str, devices: int) -> list[str]:
    """Properties of a run that the probe didn't time."""
    beyond = []
    if precision not in timings.precisions:
        beyond.append(f"kernels in {precision} (timed: {', '.join(timings.precisions)})")
    if devices > timings.processes:
        beyond.append(f"{devices} processes (timed: {timings.processes} at once)")
    return beyond
