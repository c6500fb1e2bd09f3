"""Activations that are alive on a rank at once: they depend on the order alone, not on times.

    forward        + 1     (one stage, one micro-batch)
    backward       - 1
    input part     - (1 - kept)     the weight part still needs `kept` of it: inputs of the matmuls, and
    weight part    - kept           the gradients at their outputs

Between its input part and its weight part an activation is `kept` of its size; the papers count it whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from scalewright.spec.schedules.schedule import Schedule


def peak_activations(schedule: Schedule, size: Sequence[float] | None = None, kept: float = 1.0) -> tuple[float, ...]:
    """The peak of each rank: micro-batches x stages, or bytes when `size` is the bytes of each stage.

    With `kept` 1, as the papers count, only a whole backward or the weight part frees. The activation that a
    running forward makes is counted.
    """
    change = {"forward": 1.0, "backward": -1.0, "backward_input": kept - 1.0, "backward_weight": -kept}
    peaks = []
    for rank in range(schedule.ranks):
        held = peak = 0.0
        for action in schedule.compute(rank):
            held += change[action.kind] * (size[action.stage] if size is not None else 1.0)
            peak = max(peak, held)
        peaks.append(peak)
    return tuple(peaks)
