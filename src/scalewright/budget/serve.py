"""Training and serving together: the smaller, longer-trained model of the same loss, where that costs less.

    total(N) = 6 N D(N) + 2 N T        D(N): tokens with which N parameters reach the loss; T: tokens to serve
    (Sardana et al. 2024, arXiv 2401.00448, eq. 3)

In FLOPs all are equal, wherever they are spent; in money they aren't: training costs what the plan says, serving what
the cheapest server of that size does, which reaches another share of the peak and needs memory for caches. `weight` is
how many times dearer a FLOP of serving is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from scalewright.budget.laws import Law
from scalewright.spec.prices import Band

SMALLEST = 1 / 60  # of the compute-optimal size; half the tokens a parameter that anybody has trained on lie there
PRICED = 9  # sizes whose serving is priced; between them its price is a power of the size


def serve(law: Law, params: float, tokens: float, served: float, weight: float = 1.0) -> dict[str, Any]:
    """The cheapest size for training and serving at the loss that (params, tokens) reach, beside it.

    `params` in the law's count; the keys of `serve` in the answer. `law` must be parametric.
    """
    loss, (sizes, lengths) = float(law.predict(params, tokens)), _same_loss(law, params, tokens)
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


def _same_loss(law: Law, params: float, tokens: float) -> tuple[np.ndarray, np.ndarray]:
    """Sizes around this one, and the tokens with which each has its loss."""
    e, a, b, alpha, beta = law.fit
    sizes = params * np.exp(np.linspace(np.log(SMALLEST), 0.7, 6000))
    left = float(law.predict(params, tokens)) - e - a / sizes**alpha
    return sizes[left > 0], (b / left[left > 0]) ** (1 / beta)


def serve_in_money(
    law: Law, params: float, tokens: float, served: float, training: Band, million: Callable[[float], Band | None]
) -> dict[str, Any] | None:
    """The same in money: `training` (params, tokens) costs that, `million` is of a million tokens served by a size.

    None where no size has a price. Other sizes train at the same price of a FLOP.
    """
    sizes, lengths = _same_loss(law, params, tokens)
    priced = {float(size): million(float(size)) for size in np.geomspace(sizes[0], sizes[-1], PRICED)}
    known = {size: each.median for size, each in priced.items() if each is not None}
    own = million(params)
    if own is None or len(known) < 2:
        return None
    at = np.log(sizes)
    each = np.exp(np.interp(at, np.log(list(known)), np.log(list(known.values()))))
    each = np.where((sizes >= min(known)) & (sizes <= max(known)), each, np.inf)
    trained = training.median * sizes * lengths / (params * tokens)
    best = int(np.argmin(trained + each * served / 1e6))
    chosen = million(float(sizes[best]))
    if chosen is None:
        return None
    share = float(sizes[best] * lengths[best]) / (params * tokens)
    rows = {
        "best": _bill(float(sizes[best]), float(lengths[best]), training.times(share), chosen, served),
        "optimum": _bill(params, tokens, training, own, served),
    }
    flops = law.k * params * tokens, 2 * params * 1e6
    gain = 1 - rows["best"]["total"]["p50"] / rows["optimum"]["total"]["p50"]
    return rows | {"saves": gain, "weight": own.median / flops[1] / (training.median / flops[0])}


def _bill(params: float, tokens: float, training: Band, million: Band, served: float) -> dict[str, Any]:
    serving = million.times(served / 1e6)
    # both at one price, so that they are low or high together
    both = Band(training.low + serving.low, training.median + serving.median, training.high + serving.high)
    keys = {"train": training, "serve": serving, "total": both, "per_million": million}
    return {"params": params, "tokens": tokens, **{key: band.dump() for key, band in keys.items()}}


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
