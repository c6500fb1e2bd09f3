"""Curves of measured seconds, read at any size.

seconds │      ╱      between two measured sizes a straight line (a start, and so much a unit),
        │  __╱        below the smallest its seconds, beyond the largest as many a unit
        └──────── size
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from scalewright.spec.hardware.timings import TimingCurve, Timings

LAYER_FLOPS, BF16_MARGIN = 2.0 * 512 * 512 * 1408, 1.15  # the layer that the trainer's rule times, its margin


class Curves:
    """Seconds of one size or of many."""

    def __init__(self, timings: Timings) -> None:
        self.precisions = timings.precisions
        self._found: dict[tuple[str, str, str | None], TimingCurve] = {
            (curve.what, curve.phase, curve.precision): curve for curve in timings.curves
        }

    def __call__(
        self, what: str, size: float | np.ndarray, phase: str = "forward", precision: str | None = None
    ) -> np.ndarray:
        """Below the smallest size its seconds, beyond the largest as many a unit; no curve: nothing."""
        curve = self._found.get((what, phase, precision))
        if curve is None:
            return np.zeros(np.shape(size))
        sizes, seconds = np.array(curve.sizes), np.array(curve.seconds)
        asked = np.asarray(size, float)
        inside = np.interp(asked, sizes, seconds)
        return np.asarray(np.where(asked > sizes[-1], seconds[-1] * asked / sizes[-1], inside))


@lru_cache(maxsize=64)
def curves_of(timings: Timings) -> Curves:
    """The curves, made once."""
    return Curves(timings)


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
    """What was timed, when, and beside how much other work, in a line."""
    many = f"{timings.processes} process" + ("es" if timings.processes > 1 else "")
    threads = f"{timings.threads} thread" + ("s" if timings.threads > 1 else "")
    load = "" if timings.load is None else f", load {timings.load:g}"
    return f"{many} of {threads} timed {timings.when or 'here'}{load} ({timings.how or 'as given'})"


def beyond_timed(timings: Timings, precision: str, devices: int) -> list[str]:
    """What of a run the probe didn't time."""
    found = []
    if precision not in timings.precisions:
        found.append(f"kernels in {precision} (timed: {', '.join(timings.precisions)})")
    if devices > timings.processes:
        found.append(f"{devices} processes (timed: {timings.processes} at once)")
    return found
