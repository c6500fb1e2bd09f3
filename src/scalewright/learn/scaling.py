"""Batch size against steps, and the loss of a size and its tokens, by the published fits.

steps      S / S_min = 1 + B_crit / B           McCandlish et al. 2018, arXiv 1812.06162, eq. 2.11
loss       E + A / N^alpha + B / D^beta         Besiroglu et al. 2024, the refit of Hoffmann et al. 2022
optimum    the best size for C FLOPs, by each law of `budget/laws.py`
"""

from __future__ import annotations


def steps_over_least(batch_tokens: float, critical_tokens: float) -> float:
    """Steps to a loss over those of an endless batch."""
    return 1 + critical_tokens / batch_tokens


def chinchilla_loss(parameters: float, tokens: float, law: str = "besiroglu") -> float:
    """Nats a token by a law's fit, on its corpus and with its tokenizer."""
    from scalewright.budget.laws import find_law

    return float(find_law(law).predict(parameters, tokens))


def optimum_spread(flops: float) -> float:
    """The largest best size for these FLOPs over the smallest, over all laws of dense models in the list."""
    from scalewright.budget.laws import laws

    sizes = [float(law.optimum(flops)[0]) for law in laws().values() if "mixture" not in law.counts]
    return max(sizes) / min(sizes)
