"""Serving by hand: what a batch gains, what guesses gain, what fits.

    a step of b requests      (W + b K) / bandwidth                W weights' bytes, K a request's cache
    gain of a batch           b (W + K) / (W + b K)
    guesses                   (1 - a^(k + 1)) / (1 - a) tokens     Leviathan et al. 2023, arXiv 2211.17192, eq. 1
    sums at tp                2 L · 2 alpha                        delays of two small sums a layer, one exchange each

The planner's own are in `inference/cost.py`.
"""

from __future__ import annotations


def batch_gain(weight_bytes: float, cache_bytes: float, batch: int) -> float:
    """Tokens/s of a batch over those of one request, where memory binds."""
    return batch * (weight_bytes + cache_bytes) / (weight_bytes + batch * cache_bytes)


def tokens_per_check(guesses: int, accepted: float) -> float:
    """Tokens that a step gains, each guess being accepted by itself with this probability."""
    return (1 - accepted ** (guesses + 1)) / (1 - accepted) if accepted < 1 else guesses + 1.0


def sum_share(weight_bytes: float, rate: float, layers: int, delay: float, tp: int) -> float:
    """The share of one token's time that is delays of sums over `tp` devices, the rest reading weights.

    All devices write to all and read: two hops, as engines do for small tensors, not a ring's 2 (tp - 1).
    """
    sums = 2 * layers * 2 * delay
    return sums / (sums + weight_bytes / tp / rate)


def most_requests(memory_bytes: float, weight_bytes: float, cache_bytes: float, devices: int = 1) -> int:
    """Requests whose caches fit beside the weights."""
    return max(0, int((devices * memory_bytes - weight_bytes) // cache_bytes))
