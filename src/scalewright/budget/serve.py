"""Training and serving together: the smaller, longer-trained model of the same loss, where that costs less.

    total(N) = 6 N D(N) + 2 N T        D(N): tokens with which N parameters reach the loss; T: tokens to serve
    (Sardana et al. 2024, arXiv 2401.00448, eq. 3)

FLOPs are counted as equal wherever they are spent. Serving reaches a smaller share of the peak than training, and then
the smaller model pays even earlier: `weight` is how many times dearer a FLOP of serving is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from scalewright.budget.laws import Law

SMALLEST = 1 / 60  # of the compute-optimal size; half the tokens a parameter that anybody has trained on lie there


def serve(law: Law, params: float, tokens: float, served: float, weight: float = 1.0) -> dict[str, Any]:
    """The cheapest size for training and serving at the loss that (params, tokens) reach, beside it.

    `params` in the law's count; the keys of `serve` in the answer. `law` must be parametric.
    """
    e, a, b, alpha, beta = law.fit
    loss = float(law.predict(params, tokens))
    sizes = params * np.exp(np.linspace(np.log(SMALLEST), 0.7, 6000))
    left = loss - e - a / sizes**alpha
    sizes, left = sizes[left > 0], left[left > 0]
    lengths = (b / left) ** (1 / beta)
    totals = law.k * sizes * lengths + weight * 2 * sizes * served
    at = int(np.argmin(totals))
    best, length = float(sizes[at]), float(lengths[at])
    own = law.k * params * tokens + weight * 2 * params * served
    half = _break_even(law, params, tokens, loss, weight)
    return {
        "tokens": served, "loss": loss, "params": best, "train_tokens": length, "tokens_per_param": length / best,
        "train_flops": law.k * best * length, "serve_flops": 2 * best * served, "total_flops": float(totals[at]),
        "optimum": {"params": params, "tokens": tokens, "total_flops": own}, "ratio": float(totals[at]) / own,
        "half_size": half, "law": law.name, "weight": weight,
    }  # fmt: skip


def _break_even(law: Law, params: float, tokens: float, loss: float, weight: float) -> dict[str, float] | None:
    """The served tokens beyond which half the size costs less in all; None where no tokens bring it to the loss."""
    e, a, b, alpha, beta = law.fit
    size = params / 2
    left = loss - e - a / size**alpha
    if left <= 0:
        return None
    length = float((b / left) ** (1 / beta))
    extra = law.k * (size * length - params * tokens)
    return {"params": size, "train_tokens": length, "break_even_tokens": extra / (weight * 2 * (params - size))}
