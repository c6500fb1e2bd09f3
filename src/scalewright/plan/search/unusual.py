"""What of a layout nobody has measured, or hardly anybody runs: it has to be faster by a stated margin to come first.

    never measured      a feature that no bundled run has (plan/features.py): a schedule, a trainer's ZeRO stage,
                        offload, two that were never together
    beyond measured     tp, pp, cp or ep larger than in any bundled run
    short ring          cp that leaves a rank fewer than CP_TOKENS tokens, whose messages attention hardly covers
    many reductions     ZeRO-2 over more than ACCUMULATIONS micro-batches, whose gradients all are reduced

    score of a first layout = seconds · (1 + EACH) ^ how many, at most MOST of them

A prediction is some 10% off of what was measured, and more of what wasn't: a gain below EACH from one such feature
isn't known to be any. `--margin 0` puts the fastest first, whatever it has.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scalewright.plan.features import measured_sizes, never
from scalewright.plan.request import CP_KINDS, OFFLOADS, SCHEDULES, Request
from scalewright.plan.search.space import Rows, Space

EACH, MOST = 0.05, 2
CP_TOKENS = 4096
ACCUMULATIONS = 16


def unusual(r: Request) -> list[str]:
    """The words for what is unusual in a layout."""
    names = never(r)
    names += [f"{axis} {getattr(r, axis)}, above any measured" for axis, most in measured_sizes().items()
              if getattr(r, axis) > most]  # fmt: skip
    if r.cp > 1 and r.seq_len / r.cp < CP_TOKENS:
        names.append(f"cp {r.cp} at {r.seq_len} tokens")
    if r.zero_stage == 2 and r.accumulation > ACCUMULATIONS and r.dp * r.cp > 1:
        names.append(f"ZeRO-2 over {r.accumulation:g} micro-batches")
    return names


def handicap(space: Space, rows: Rows) -> np.ndarray:
    """By what factor each row's score counts as larger; each combination of what matters is looked at once."""
    core = {axis: space.core[axis][rows.core] for axis in ("tp", "pp", "cp", "cp_kind", "ep", "dp", "accumulation")}
    shard = space.shard["zero_stage"][rows.shard]
    sizes = (core[axis] for axis in ("tp", "pp", "cp", "cp_kind", "ep"))
    several = core["accumulation"] > ACCUMULATIONS, core["dp"] * core["cp"] > 1
    columns = [*sizes, *several, shard, space.pipe["schedule"][rows.pipe], rows.offload]
    _, first, inverse = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
    counts = np.array([min(len(unusual(_request(space, rows, i))), MOST) for i in first.tolist()])
    return np.asarray((1 + EACH) ** counts[inverse.reshape(-1)])


def _request(space: Space, rows: Rows, i: int) -> Request:
    """Row `i` as far as it matters here."""
    tp, pp, cp, ep = (int(space.core[axis][rows.core[i]]) for axis in ("tp", "pp", "cp", "ep"))
    return replace(
        space.template,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        cp_kind=CP_KINDS[space.core["cp_kind"][rows.core[i]]],
        accumulation=float(space.core["accumulation"][rows.core[i]]),
        zero_stage=int(space.shard["zero_stage"][rows.shard[i]]),
        schedule=SCHEDULES[space.pipe["schedule"][rows.pipe[i]]],
        offload=OFFLOADS[space.offloads[rows.offload[i]]],
    )
