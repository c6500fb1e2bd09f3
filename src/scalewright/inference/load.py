"""What a replica gives under a load: rates and latencies, by the time that one round of its batch takes.

    round(B) = O steps of B sequences + B prefills      rate = B x O / round      TPOT = round / O

    closed   C requests in flight: B = min(C, what fits); the rest wait
    all      N requests at once: B = min(N, what fits), and N / B rounds
    rate     R requests a second: B = R x (TTFT + O x TPOT); above the highest rate the queue grows without end
    target   as many as keep a TPOT (and TTFT): MLPerf's Server and Interactive, a user's own targets

A request's own prefill delays the others' tokens (chunked or not: the work is the same), which `round` contains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.inference import cost
from scalewright.inference.constants import Constants
from scalewright.inference.setup import Columns

Array = np.ndarray
KINDS = ("closed", "all", "rate", "target")
STEPS = 40  # of a bisection: 12 digits


@dataclass(frozen=True)
class Loads:
    """The load of one replica, as arrays: its kind, its number, requests in all, and the targets in seconds."""

    kind: Array
    number: Array
    requests: Array
    tpot: Array
    ttft: Array


@dataclass(frozen=True)
class Served:
    """What one replica gives."""

    batch: Array
    most: Array  # sequences that fit, up to the engine's slots
    prefill_s: Array  # of one prompt, alone
    decode_s: Array  # of a step of the batch
    ttft_s: Array
    tpot_s: Array
    requests_per_s: Array
    overloaded: Array

    @property
    def fits(self) -> Array:
        """Whether one sequence fits."""
        return np.asarray(self.most >= 1)


def serve(t: Columns, c: Constants, loads: Loads) -> Served:
    """Rates and latencies of every replica."""
    context = t.input_len + t.output_len / 2
    whole = t.input_len + t.output_len
    most = np.maximum(cost.most_sequences(t, context), 0)  # paged: a request holds what it has reached
    most = np.where(cost.most_sequences(t, whole) < 1, 0, most)
    top = np.maximum(most, 1)
    kept = t.of(c, "kept")
    steps = t.output_len / cost.tokens_per_step(t)

    def rounds(batch: Array) -> tuple[Array, Array]:
        """(seconds of a round, of its decode steps)."""
        decoded = steps * cost.decode_s(t, c, batch, context)
        return (decoded + batch * cost.prefill_s(t, c, batch)) / kept, decoded

    def requests_per_s(batch: Array) -> Array:
        return batch / rounds(batch)[0]

    first = cost.prefill_s(t, c, np.ones(len(t)), apart=True)
    batch = np.minimum(top, np.maximum(loads.number, 1))
    rate, target = loads.kind == "rate", loads.kind == "target"
    highest = requests_per_s(top)
    if rate.any():
        needed = _bisect(lambda b: requests_per_s(b) >= loads.number, np.full(len(t), 0.01), top)
        batch = np.where(rate, needed, batch)
    if target.any():
        def late(b: Array) -> Array:
            return (rounds(b)[0] / np.maximum(t.output_len, 1) > loads.tpot) | (_first_s(t, first, b, rounds(b)) > loads.ttft)

        kept_b = _bisect(late, np.ones(len(t)), top)
        batch = np.where(target, np.maximum(np.where(late(kept_b), kept_b, top), 1), batch)
    seconds, decoded = rounds(batch)
    each = batch / seconds
    overloaded = rate & (loads.number >= highest)
    each = np.where(rate, np.minimum(loads.number, highest), each)
    each = np.where(target, each * np.where(np.isfinite(loads.tpot), c["latency.share"], 1.0), each)
    at_once = (loads.kind == "all") & (loads.requests > 0)
    waves = loads.requests / batch
    each = np.where(at_once, loads.requests / np.maximum(waves, 1) / seconds, each)
    ttft = _first_s(t, first, batch, (seconds, decoded))
    waiting = (loads.kind == "closed") & (loads.number > batch)
    ttft = np.where(waiting, np.maximum(loads.number / each - seconds, 0) + ttft, ttft)
    filled = batch * cost.prefill_s(t, c, batch) / 2
    ttft = np.where(at_once, np.maximum(loads.requests / 2 - batch / 2, 0) / each + np.maximum(filled, first), ttft)
    return Served(
        batch, most, first, cost.decode_s(t, c, batch, context), ttft,
        np.where(t.output_len > 0, seconds / np.maximum(t.output_len, 1), np.nan), each, overloaded,
    )  # fmt: skip


def _first_s(t: Columns, first: Array, batch: Array, rounds: tuple[Array, Array]) -> Array:
    """Seconds to the first token of a request that finds a place: its prefill, and those that it meets."""
    seconds, decoded = rounds
    busy = np.clip(1 - decoded / np.maximum(seconds, 1e-12), 0, 0.95)
    step = decoded / np.maximum(t.output_len, 1)
    return np.asarray(first * (1 + busy * np.minimum(batch - 1, 8) / 2) + np.where(batch > 1, step / 2, 0))


def _bisect(reached, low: Array, high: Array) -> Array:  # type: ignore[no-untyped-def]
    """The least number between the two at which `reached` holds, for each; `high` where it never does."""
    low, high = low.astype(float), high.astype(float)
    for _ in range(STEPS):
        middle = np.sqrt(low * high)
        yes = reached(middle)
        low, high = np.where(yes, low, middle), np.where(yes, middle, high)
    return high
