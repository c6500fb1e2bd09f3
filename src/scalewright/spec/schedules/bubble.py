"""The bubble in closed form, as published, and by the clock where nothing is.

    p ranks, v stages on each, m micro-batches; F, I, W seconds of one stage's forward, input and weight part

    gpipe, 1f1b      (p-1)(F+I+W)          Huang et al. 2019 §2.3; Narayanan et al. 2021 §2.2.1
    interleaved      (p-1)(F+I+W)          Narayanan et al. 2021 §2.2.2: (p-1)/(v m) of the ideal
    zb-h1            (p-1)(F+I-W)          Qi et al. 2023, table 1; holds while W <= F, I
    zb-interleaved   (p-1)(F+I-W)          ZB-H1's, in stages a v-th as long
    zbv              0 within each rank    Qi et al. 2023 §6: F = I = W, m >= 2p - 1; but rank r starts
                                           r F late, so that a common end costs (p-1) F
    dualpipev        (p-1)(FB+I+W-3W)      DeepSeek-AI, DualPipe's README (its PP is 2p here), for pairs
    dualpipe         (p/2-1)(FB+I+W-3W)    computed together in FB, the rank that idles most, F = I >= W
      without pairs  (p-1 or p/2-1)(F+I-W) ours, by the clock: sends needn't wait for the other half
    pipedream        0                     Harlap et al. 2018: it fills once, not once a step

Micro-batches and costs outside these conditions are timed by `simulate`.
"""

from __future__ import annotations

from scalewright.spec.schedules.action import LOOP
from scalewright.spec.schedules.build import schedule
from scalewright.spec.schedules.clock import StageCost, simulate

UNIT = StageCost(1, 1, 1)  # the papers' usual picture: a backward takes twice its forward


def bubble_fraction(
    kind: str,
    ranks: int,
    virtual_stages: int,
    micro_batches: int,
    cost: StageCost = UNIT,
    overlapped: float | None = None,
    common_end: bool = True,
) -> float:
    """The bubble as a share of the step: idle / (idle + busy), of the rank that idles most.

    GPipe's and the zero-bubble papers divide so; Megatron-LM's divide by the ideal: `idle_time / busy_time`.
    """
    idle = idle_time(kind, ranks, virtual_stages, micro_batches, cost, overlapped, common_end)
    return idle / (idle + busy_time(kind, ranks, virtual_stages, micro_batches, cost, overlapped))


def busy_time(
    kind: str,
    ranks: int,
    virtual_stages: int,
    micro_batches: int,
    cost: StageCost = UNIT,
    overlapped: float | None = None,
) -> float:
    """Seconds that a rank computes in a step: the ideal, v m (F+I+W), less what pairs save.

    dualpipev and dualpipe: of the rank that computes the most pairs, at the fold.
    """
    if kind in ("gpipe", "1f1b", "interleaved", "pipedream"):
        return virtual_stages * micro_batches * (cost.forward + cost.backward)
    apart = cost.forward + cost.backward_input + cost.backward_weight
    if kind in LOOP or kind == "zbv":
        return virtual_stages * micro_batches * apart
    # In dualpipe each way has half of the micro-batches, and a fold half as deep.
    depth, micros = (ranks, micro_batches) if kind == "dualpipev" else (ranks // 2, micro_batches // 2)
    saved = (2 * micros - 2 * depth - 1) * (apart - overlapped) if overlapped is not None else 0.0
    return 2 * micros * apart - saved


def idle_time(
    kind: str,
    ranks: int,
    virtual_stages: int,
    micro_batches: int,
    cost: StageCost = UNIT,
    overlapped: float | None = None,
    common_end: bool = True,
) -> float:
    """Seconds that a rank waits in a step, when all stages cost the same and messages take no time.

    `overlapped` is the time of a forward and a backward computed together (dualpipev, dualpipe). `common_end`
    says that all ranks start and end a step together, as they do when the gradient's norm is clipped;
    without it each rank counts from its own first action to its own last, as Qi et al. do.
    """
    found = closed_form(kind, ranks, virtual_stages, micro_batches, cost, overlapped, common_end)
    if found is not None:
        return found
    plan = schedule(kind, ranks, virtual_stages, micro_batches, pairs=overlapped is not None)
    timing = simulate(plan, cost, overlapped=overlapped)
    spans = (timing.makespan,) * ranks if common_end else timing.active
    return max(span - busy for span, busy in zip(spans, timing.busy, strict=True))


def closed_form(
    kind: str,
    ranks: int,
    virtual_stages: int,
    micro_batches: int,
    cost: StageCost = UNIT,
    overlapped: float | None = None,
    common_end: bool = True,
) -> float | None:
    """The formula of the table above; None where it doesn't hold."""
    p, f, i, w = ranks, cost.forward, cost.backward_input, cost.backward_weight
    if kind == "pipedream":
        return 0.0
    if kind in ("gpipe", "1f1b"):
        return (p - 1) * (f + cost.backward)
    if kind == "interleaved":
        # With fewer micro-batches than ranks a rank waits for its own chunks too (ours, found by the clock).
        return (p - 1 + (virtual_stages - 1) * max(0, p - micro_batches)) * (f + cost.backward)
    if kind in ("zb-h1", "zb-interleaved"):
        # A weight part hides no more than the part beside it takes (the cap is ours, found by the clock).
        return (p - 1) * (f + i - min(w, f, i)) if micro_batches >= p else None
    if kind == "zbv":
        return _zbv(p, micro_batches, cost, common_end)
    depth = p if kind == "dualpipev" else p // 2
    if f != i or not common_end:
        return None
    if overlapped is None:
        return (depth - 1) * (f + i - min(w, f))
    return (depth - 1) * (overlapped + (i + w) - 3 * w) if w <= f else None


def _zbv(ranks: int, micros: int, cost: StageCost, common_end: bool) -> float | None:
    """ZB-V's; published for F = I = W. For W <= F <= I it is ours, found by the clock."""
    f, i, w = cost.forward, cost.backward_input, cost.backward_weight
    if micros < 2 * ranks - 1:
        return None
    if not common_end:
        return 0.0 if f == i == w else None
    return (ranks - 1) * max(i, 2 * (i - w)) if w <= f <= i else None
