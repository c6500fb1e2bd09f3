"""The columns of a step's report, one tensor on the device: sums over ranks, then decisions.

LOSS AUX NORM TOKENS STOP     all-reduced, equal on all ranks; in fp64, for exact tokens (MPS has fp32 alone)
                              STOP: 1 of a rank with a signal, world + 1 of rank 0 with a callback's "stop",
                              less than 1 in all of ranks that are to meet others anew
WRITTEN                       ranks whose part of the save that is under way is on the disk, or has failed; more than
                              all ranks: it is committed
BUSIEST ENTROPY DROPPED       of a mixture's experts, means over layers (train/balance.py); 0 without one
SKIPPED .. FACTOR             the guard's decision (train/guard/decide.py), equal on all ranks
LOCAL                         this rank's own part in a non-finite step
OUTER                         norm of the outer gradient applied after the step (train/diloco.py), else 0
from MEMORY on                each rank's memory in GiB, in a place of its own, since columns are summed
"""

from __future__ import annotations

from typing import Literal

StopReason = Literal["signal", "callback", "regroup"]

LOSS, AUX, NORM, TOKENS, STOP, WRITTEN, BUSIEST, ENTROPY, DROPPED = range(9)
SUMMED = 9
(
    SKIPPED,  # 1: the update was left out
    STREAK,  # non-finite steps in a row, this one included; 0: this one was finite
    SPIKE,  # 0: none, 1: of the loss, 2: of the gradient norm
    Z,  # robust standard deviations above the usual value
    USUAL,  # the median that Z is measured from, in the unit of the loss or of the norm
    FACTOR,  # what ZClip multiplied the gradient by; 1: nothing
    SCALE,  # the loss scale of the step (fp16); 1 elsewhere
    LOCAL,  # 1: this rank's loss wasn't finite; 2: its gradients weren't; 0: both were
    OUTER,
) = range(SUMMED, SUMMED + 9)
WIDTH = MEMORY = SUMMED + 9


def stop_request(signal: bool, callback: bool, world: int, regroup: bool = False) -> float:
    """The value that a rank asked to stop adds to STOP; signals of all ranks add up to `world` at most."""
    return world + 1 if callback else 1 if signal else 0.5 / world if regroup else 0


def stop_reason(total: float, world: int) -> StopReason | None:
    """Why the run is to stop, from the sum over ranks; a callback's wish is put before signals."""
    return "callback" if total > world else "signal" if total >= 1 else "regroup" if total > 0 else None
