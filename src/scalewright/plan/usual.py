"""A layout for a run that doesn't state one: the fastest of the usual ones that fit.

    tp 1 2 4 8 x pp 1 2 4 8 16 x micro-batch 1 2 4 x (sharded optimizer | FSDP), batch as stated or assumed
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from scalewright.plan.constants import Constants
from scalewright.plan.evaluate import evaluate, prepare
from scalewright.plan.request import Request
from scalewright.plan.rows import number


def best_usual(request: Request, row: Mapping[str, Any], c: Constants | None = None) -> Request:
    """The request with the fastest usual layout; FSDP over everything where none fits."""
    batch = number(row, "gbs")
    found = list(_candidates(request, batch, number(row, "mbs")))
    if not found:
        return request
    outcome = evaluate(prepare(found, c), c)
    held = outcome.memory
    assert held is not None
    rate = np.array([r.global_batch for r in found]) / outcome.step.seconds
    fits = held.fits
    best = int(np.argmax(np.where(fits, rate, 0.0))) if fits.any() else int(np.argmin(held.peak))
    chosen = found[best]
    words = f"layout tp {chosen.tp}, pp {chosen.pp}, zero {chosen.zero}, mbs {chosen.micro_batch} (the planner's own)"
    kept = [line for line in request.assumed if not line.startswith(("tp ", "pp ", "cp ", "mbs ", "gbs ", "sharding"))]
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
                for zero in (3,) if torus or pp == 1 and tp == 1 else (1,):
                    yield replace(
                        request, tp=tp, pp=pp, sp=tp > 1 and request.framework.year >= 2023, zero=zero,
                        micro_batch=micro, micros=total / (micro * dp), chunks=1, schedule="1f1b",
                    )  # fmt: skip
