"""What of a layout nobody has measured, or hardly anybody runs: it has to be faster by a stated margin to come first.

    never measured      a feature that no bundled run has (plan/features.py): a schedule, a trainer's ZeRO stage,
                        offload, two that were never together
    beyond measured     tp, pp, cp or ep larger than in any bundled run
    tp over nodes       more tensor-parallel ranks than the fast links join
    short ring          cp that leaves a rank fewer than CP_TOKENS tokens, whose messages attention hardly covers
    many reductions     ZeRO-2 over more than ACCUMULATIONS micro-batches, whose gradients all are reduced

    score of a first layout = seconds · (1 + EACH) ^ how many, at most MOST of them

A prediction is some 10% off of what was measured, and more of what wasn't: a gain below EACH from one such feature
isn't known to be any. `--margin 0` puts the fastest first, whatever it has.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scalewright.plan.features import measured, never
from scalewright.plan.request import Request
from scalewright.plan.search.space import Rows, Space

EACH, MOST = 0.05, 2
CP_TOKENS = 4096
ACCUMULATIONS = 16


def unusual(r: Request) -> list[str]:
    """The words for what is unusual in a layout."""
    names = never(r)
    sizes = ((axis, getattr(r, axis), most) for axis, most in measured().sizes.items())
    names += [f"{axis} {size}, above any measured" for axis, size, most in sizes if size > most]
    if r.tp > r.chip.domain > 1:
        names.append(f"tp {r.tp} over nodes")
    if r.cp > 1 and r.seq_len / r.cp < CP_TOKENS:
        names.append(f"cp {r.cp} at {r.seq_len} tokens")
    if r.zero_stage == 2 and r.accumulation > ACCUMULATIONS and r.dp * r.cp > 1:
        names.append(f"ZeRO-2 over {r.accumulation:g} micro-batches")
    return names


def handicap(space: Space, rows: Rows) -> np.ndarray:
    """By what factor each row's score counts as larger; each combination of what matters is looked at once."""
    t = space.table(rows)
    sizes, many = (t.tp, t.pp, t.cp, t.cp_kind, t.ep, t.zero_stage), t.accumulation > ACCUMULATIONS
    columns = np.stack([*sizes, t.schedule, t.offload, many, t.dp * t.cp > 1])
    _, first, inverse = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    counts = np.array([min(len(unusual(_request(space, rows, i))), MOST) for i in first.tolist()])
    return np.asarray((1 + EACH) ** counts[inverse.reshape(-1)])


def _request(space: Space, rows: Rows, i: int) -> Request:
    """Row `i` as far as it matters here."""
    keys, axes = space.keys(rows, i), ("tp", "pp", "cp", "cp_kind", "ep", "zero_stage", "schedule", "offload")
    accumulation = float(space.core["accumulation"][rows.core[i]])
    return replace(space.template, accumulation=accumulation, **{axis: keys[axis] for axis in axes})
