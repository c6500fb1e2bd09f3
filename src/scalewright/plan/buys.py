"""What each axis and technique of a layout buys: the same layout without it, in time and in memory.

    tp 8              without it up to 210 GiB of the 72.0 there are would be needed
    interleaved x 6   12.4% faster by it (-0.96 s pipeline bubble), with 2.4 GiB more
    recompute full    without it up to 112 GiB of the 72.0 there are would be needed; costs 10.8%

One is taken away at a time and the rest stays as it is; data parallelism takes up the devices of an axis.
What is best when the rest is chosen anew is `why_not`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from scalewright.plan.capabilities import find_capabilities
from scalewright.plan.constants import Constants
from scalewright.plan.explain import resized
from scalewright.plan.predict import Prediction, layout_keys, predict_table
from scalewright.plan.request import Request
from scalewright.plan.search.compare import differences, value_words
from scalewright.spec.schedules.kinds import KINDS

Without = tuple[str, Request | None]  # what is taken away, and what is left; None where nothing legal is


def buys(found: Prediction, c: Constants | None = None) -> list[dict[str, Any]]:
    """{what, step_time_s, gain_pct, saves_gib, fits, why} of each axis and technique in use.

    `gain_pct`: of speed, by it; below 0 it costs time. `fits`: whether the layout without it does, up to the
    p90 of its memory, or to the median where the layout itself fits no further. Numbers are None where the
    layout without it can't be.
    """
    taken = list(_without(found.request))
    left = [request for _, request in taken if request is not None]
    priced = iter(predict_table(left, c)) if left else iter(())
    return [_entry(found, what, None if request is None else next(priced)) for what, request in taken]


def _entry(found: Prediction, what: str, bare: Prediction | None) -> dict[str, Any]:
    if bare is None:
        dealt = f"the batch can't be dealt to {found.request.devices:,} devices"
        numbers = dict.fromkeys(("step_time_s", "gain_pct", "saves_gib"))
        return {"what": what, **numbers, "fits": False, "why": f"{what}: without it {dealt}"}
    needs, room = bare.needs_gib(_headroom(found))
    gain = 100 * (bare.step_time_s / found.step_time_s - 1)
    saved = bare.peak_gib - found.peak_gib
    return {
        "what": what,
        "step_time_s": bare.step_time_s,
        "gain_pct": gain,
        "saves_gib": saved,
        "fits": needs <= room,
        "why": f"{what}: {_why(found, bare, gain, saved)}",
    }


def _why(found: Prediction, bare: Prediction, gain: float, saved: float) -> str:
    """In words, memory first where it is what decides."""
    needs, room = bare.needs_gib(_headroom(found))
    pace, parts = _pace(gain), differences(bare, found)
    pace += f" ({parts})" if pace and parts else ""
    if needs > room:
        short = f"without it up to {needs:.1f} GiB of the {room:.1f} there are would be needed"
        return f"{short}; {pace}" if pace else short
    return f"{pace or 'as fast by it'}, with {abs(saved):.1f} GiB {'less' if saved > 0 else 'more'}"


def _headroom(found: Prediction) -> float | None:
    """As `needs_gib` has it: null, where the layout fits up to the p90 of its memory."""
    needs, room = found.needs_gib(None)
    return None if needs <= room else 0.0


def _pace(gain: float) -> str:
    """A gain of speed, in percent; empty where there is none."""
    if abs(gain) <= 0.05:
        return ""
    if gain < 0:
        return f"costs {-gain:.1f}%"
    return f"{1 + gain / 100:.1f}x as fast by it" if gain > 100 else f"{gain:.1f}% faster by it"


def _without(r: Request) -> Iterator[Without]:
    """The layout without each of its axes, then without each of its techniques."""
    for axis in ("tp", "pp", "cp"):
        if getattr(r, axis) > 1:
            yield f"{axis} {getattr(r, axis)}", resized(r, axis, 1)
    if r.ep * r.etp > 1:
        yield f"ep {r.ep}" + (f" etp {r.etp}" if r.etp > 1 else ""), replace(r, ep=1, etp=1)
    if r.dp_replicate > 1:
        yield f"{r.dp_replicate} replicas", replace(r, dp_replicate=1)
    plain = _plain_schedule(r)
    if r.pp > 1 and (r.schedule, r.virtual_stages) != (plain, 1):
        chunks = f" x {r.virtual_stages}" if r.virtual_stages > 1 else ""
        yield f"{r.schedule}{chunks}", replace(r, schedule=plain, virtual_stages=1, stage_layers=None)
    if r.zero_stage > 0 and r.dp * r.cp > 1:
        yield f"zero {r.zero_stage}", replace(r, zero_stage=0, dp_replicate=1)
    if r.recompute != "none":
        yield f"recompute {value_words(layout_keys(r)['recompute'])}", replace(r, recompute="none", share=1.0)
    if r.offload != "none":
        yield f"offload {r.offload}", replace(r, offload="none")


def _plain_schedule(r: Request) -> str:
    """1F1B, or the plainest that the trainer has."""
    has = find_capabilities(r.framework.name)
    plain = [name for name, kind in KINDS.items() if kind.complexity == 0 and has.allows("schedule", name)]
    return "1f1b" if "1f1b" in plain or not plain else plain[0]
