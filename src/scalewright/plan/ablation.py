"""Ablation of a layout: its time and memory without each axis and technique.

    tp 8              without it up to 210.0 GiB are needed, of 72.0 usable
    interleaved x 6   12.4% faster with it (-0.96 s pipeline bubble), 2.4 GiB more
    recompute full    without it up to 112.0 GiB are needed, of 72.0 usable; costs 10.8%

One part is removed at a time, the rest stays; data parallelism takes over an axis's devices. (`why_not` searches anew.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scalewright.plan.explain import resized
from scalewright.plan.frameworks import of_framework
from scalewright.plan.predict import Asking, Prediction, layout_keys
from scalewright.plan.records import Removed
from scalewright.plan.request import Request
from scalewright.plan.search.compare import differences, value_words
from scalewright.spec.common.formatting import gib
from scalewright.spec.schedules.kinds import KINDS

PLAIN = tuple(name for name, kind in KINDS.items() if kind.complexity == 0)
Without = tuple[str, Request | None]  # the removed part, the rest as a request (None: not legal)


def ablation(prediction: Prediction) -> Asking[list[Removed]]:
    """Each axis and technique in use, removed. `fits`: at the memory's p90, or at the median if the layout only so."""
    parts = list(_without(prediction.request))
    without = iter((yield [request for _, request in parts if request is not None]))
    return [_entry(prediction, part, None if request is None else next(without)) for part, request in parts]


def _entry(prediction: Prediction, part: str, bare: Prediction | None) -> Removed:
    """The entry of one part; `bare` is the layout without it."""
    if bare is None:
        problem = f"{part}: without it the batch doesn't divide among {prediction.request.devices:,} devices"
        return Removed(what=part, step_time_s=None, gain_pct=None, saves_gib=None, fits=False, why=problem)
    needs, usable = prediction.needs_gib(None)
    needs, usable = bare.needs_gib(None if needs <= usable else 0.0)
    gain, saved = 100 * (bare.step_time_s / prediction.step_time_s - 1), bare.peak_gib - prediction.peak_gib
    pace, parts = _pace(gain), differences(bare, prediction)
    pace += f" ({parts})" if pace and parts else ""
    if needs > usable:  # memory first
        why = f"without it up to {gib(needs)} are needed, of {gib(usable)} usable" + (f"; {pace}" if pace else "")
    else:
        why = f"{pace or 'as fast with it'}, {gib(abs(saved))} {'less' if saved > 0 else 'more'}"
    return {
        "what": part,
        "step_time_s": bare.step_time_s,
        "gain_pct": gain,
        "saves_gib": saved,
        "fits": needs <= usable,
        "why": f"{part}: {why}",
    }


def _pace(gain: float) -> str:
    """A speedup of `gain` percent in words; empty where there is none."""
    if abs(gain) <= 0.05:
        return ""
    if gain < 0:
        return f"costs {-gain:.1f}%"
    return f"{1 + gain / 100:.1f}x as fast with it" if gain > 100 else f"{gain:.1f}% faster with it"


def _without(r: Request) -> Iterator[Without]:
    for axis in ("tp", "pp", "cp"):
        if getattr(r, axis) > 1:
            yield f"{axis} {getattr(r, axis)}", resized(r, axis, 1)
    if r.ep * r.etp > 1:
        yield f"ep {r.ep}" + (f" etp {r.etp}" if r.etp > 1 else ""), replace(r, ep=1, etp=1)
    if r.dp_replicate > 1:
        yield f"{r.dp_replicate} replicas", replace(r, dp_replicate=1)
    allows = of_framework(r.framework).allows
    plain = next((name for name in ("1f1b", *PLAIN) if allows("schedule", name)), "1f1b")
    if r.pp > 1 and (r.schedule, r.virtual_stages) != (plain, 1):
        chunks = f" x {r.virtual_stages}" if r.virtual_stages > 1 else ""
        yield f"{r.schedule}{chunks}", replace(r, schedule=plain, virtual_stages=1, stage_layers=None)
    if r.zero_stage > 0 and r.dp * r.cp > 1:
        yield f"zero {r.zero_stage}", replace(r, zero_stage=0, dp_replicate=1)
    if r.recompute != "none":
        yield f"recompute {value_words(layout_keys(r)['recompute'])}", replace(r, recompute="none", share=1.0)
    if r.offload != "none":
        yield f"offload {r.offload}", replace(r, offload="none")
