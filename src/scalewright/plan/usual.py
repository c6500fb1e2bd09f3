"""A layout for a run that doesn't state one: the fastest of the usual ones that fit.

tp 1 2 4 8 x pp 1 2 4 8 16 x micro-batch 1 2 4 x (sharded optimizer | FSDP), batch as stated or assumed
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scalewright.plan.constants import Constants
from scalewright.plan.evaluate import evaluate, prepare
from scalewright.plan.request import Request
from scalewright.plan.rows import number


def best_usual(
    asked: Sequence[tuple[Request, Mapping[str, Any]]], c: Constants | None = None
) -> list[Request]:
    """For every request (and its row) the one with the fastest usual layout; the leanest where none fits."""
    choices = [list(_candidates(r, number(row, "gbs"), number(row, "mbs"))) or [r] for r, row in asked]
    outcome = evaluate(prepare([one for some in choices for one in some], c), c)
    held = outcome.memory
    assert held is not None
    found, start = [], 0
    for (request, _), some in zip(asked, choices, strict=True):
        part = slice(start, start + len(some))
        start += len(some)
        rate = np.array([r.global_batch for r in some]) / outcome.step.seconds[part]
        fits = held.fits[part]
        best = int(np.argmax(np.where(fits, rate, 0.0))) if fits.any() else int(np.argmin(held.peak[part]))
        found.append(_named(request, some[best]))
    return found


def _named(request: Request, chosen: Request) -> Request:
    """The chosen request, with the choice among its assumptions."""
    words = f"layout tp {chosen.tp}, pp {chosen.pp}, zero {chosen.zero}, mbs {chosen.micro_batch}"
    words += " (the planner's own)"
    kept = [
        line
        for line in request.assumed
        if not line.startswith(("tp ", "pp ", "cp ", "mbs ", "gbs ", "sharding"))
    ]
    return replace(chosen, assumed=(*kept, words))


def _candidates(request: Request, batch: float | None, mbs: float | None) -> Iterator[Request]:
    torus = request.chip.kind == "tpu"
    for tp in (1,) if torus else (1, 2, 4, 8):
        for pp in (1,) if torus else (1, 2, 4, 8, 16):
            if request.devices % (tp * pp) or pp > request.model.num_hidden_layers:
                continue
            if tp > request.model.num_attention_heads:
                continue
            dp = request.devices // (tp * pp)
            for micro in (int(mbs),) if mbs else (1, 2, 4):
                total = batch or micro * dp * (4 * pp if pp > 1 else 1)
                if total < micro * dp:
                    continue
                for chunks in _chunks(request, pp):
                    yield replace(
                        request, tp=tp, pp=pp, sp=tp > 1 and request.framework.year >= 2023,
                        zero=3 if torus or (pp == 1 and tp == 1) else 1, micro_batch=micro,
                        micros=total / (micro * dp), chunks=chunks, schedule="interleaved" if chunks > 1
                        else "1f1b",
                    )  # fmt: skip


def _chunks(request: Request, pp: int) -> list[int]:
    """Virtual stages that Megatron's recipes use; other trainers run one stage a rank."""
    layers = request.model.num_hidden_layers
    wide = pp > 1 and request.framework.kernels == "modern"
    return [1, *(v for v in (2, 4, 6) if wide and layers % (pp * v) == 0)]
