"""How long the watchdog waits before it asks, reports and gives up.

in a step       max(step_s, usual x a usual step)               then ranks are asked
in slow phases  max(other_s, share x the phase's timeout)       start, save, validation, compilation
a stalled step  max(stalled_s, stalled_usual x a usual step)    then rank 0 reports it
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """Seconds, and multiples of a usual step; tests take less."""

    tick_s: float = 0.5  # between two looks
    step_s: float = 5.0
    usual: float = 3.0
    other_s: float = 60.0  # also the time until ranks are asked again
    share: float = 0.25
    answer_s: float = 2.0  # that the others have to post their positions
    stalled_s: float = 10.0
    stalled_usual: float = 5.0
    grace_s: float = 15.0  # beyond the timeout, for the main thread to end by the groups' own
