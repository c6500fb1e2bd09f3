"""What a replica gives under a load: rates and latencies, by the time that one round of its batch takes.

    round(B) = O steps of B sequences + B prefills      rate = B x O / round      TPOT = round / O

    closed   C requests in flight: B = min(C, what fits); the rest wait
    rate     R requests a second: B = R x (TTFT + O x TPOT); above the highest rate the queue grows without end
    target   as many as keep a TPOT (and TTFT): MLPerf's Server and Interactive, a user's own targets

Of N requests in all the last ones leave the batch half empty: the last B take ∫ step(B x share still running), over
lengths that are all O, or exponential (texts of people; the longest is `lengths.longest` means). A request's own
prefill delays the others' tokens (chunked or not: the work is the same), which `round` contains. With prefill apart,
rate = min(prefill's, decode's), and a request waits for both.

A benchmark's requests start together, and go on in waves where their lengths are equal: each waits for a share of the
wave's prefills (`first.even`, `first.varied`), which requests that come at random don't.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from scalewright.inference import cost
from scalewright.inference.constants import Constants
from scalewright.inference.setup import Columns

Array = np.ndarray
KINDS = ("closed", "rate", "target")
ENDLESS = 1e9  # requests that are always waiting
STEPS = 16  # of a bisection: four digits
TENTHS = (np.arange(10) + 0.5) / 10  # of the time in which the last batch drains


@dataclass(frozen=True)
class Load:
    """The load of a whole system."""

    kind: str = "closed"
    number: float = 1.0
    requests: float = 0.0
    tpot: float = float("inf")
    ttft: float = float("inf")
    varied: bool = False  # lengths differ from request to request
    waves: bool = False  # a benchmark's: its requests start together


@dataclass(frozen=True)
class Loads:
    """The load of one replica, as arrays: its kind, its number, requests in all (0: endless), targets in seconds."""

    kind: Array
    number: Array
    requests: Array
    tpot: Array
    ttft: Array
    varied: Array  # whether lengths differ from request to request
    waves: Array

    def take(self, rows: Array) -> Loads:
        """The loads of these rows."""
        return Loads(*(getattr(self, key)[rows] for key in self.__dataclass_fields__))


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


class Times:
    """Seconds of a round, for any batch, of these replicas."""

    def __init__(self, t: Columns, c: Constants) -> None:
        self.t, self.c = t, c
        self.context = t.input_len + t.output_len / 2
        fit = cost.most_sequences(t, self.context)  # paged: a request holds what it has reached
        self.most = np.where(cost.most_sequences(t, t.input_len + t.output_len) < 1, 0, np.maximum(fit, 0))
        self.top = np.maximum(self.most, 1)
        self.kept = t.of(c, "kept") * t.of(c, "release") * t.of(c, "door")
        self.steps = t.output_len / cost.tokens_per_step(t)
        self.apart = t.prefills > 0
        self.first = cost.prefill_s(t, c, np.ones(len(t)), apart=True)

    def share(self, batch: Array) -> Array:
        """What is left of the rate beside what engines lose to ragged batches; one sequence loses nothing."""
        return np.asarray(self.kept + (1 - self.kept) / np.maximum(batch, 1))

    def decoded(self, batch: Array) -> Array:
        """Seconds of a batch's decode steps."""
        return np.asarray(self.steps * cost.decode_s(self.t, self.c, batch, self.context) / self.share(batch))

    def filled(self, batch: Array) -> Array:
        """Seconds of a batch's prefills."""
        return np.asarray(batch * cost.prefill_s(self.t, self.c, batch) / self.share(batch))

    def prefilled(self) -> Array:
        """Requests a second that replicas which only prefill take, in batches of eight."""
        return np.asarray(self.t.prefills / np.maximum(self.filled(np.full(len(self.t), 8.0)) / 8, 1e-9))

    def round(self, batch: Array) -> Array:
        """Seconds of a round, in which every sequence of the batch is prefilled and decoded."""
        return self.decoded(batch) + np.where(self.apart, 0.0, self.filled(batch))

    def rate(self, batch: Array) -> Array:
        """Requests a second."""
        return np.asarray(batch / self.round(batch))

    def tpot(self, batch: Array) -> Array:
        """Seconds of a token."""
        return np.asarray(self.round(batch) / np.maximum(self.t.output_len, 1))

    def ttft(self, batch: Array) -> Array:
        """Seconds to the first token of a request that finds a place: its prefill, and those that it meets."""
        seconds, decoded = self.round(batch), self.decoded(batch)
        busy = np.clip(1 - decoded / np.maximum(seconds, 1e-12), 0, 0.95)
        step = np.where(batch > 1, decoded / np.maximum(self.t.output_len, 1) / 2, 0)
        waited = self.first * (1 + busy * np.minimum(batch - 1, 8) / 2) + step
        return np.asarray(waited + self.t.of(self.c, "front"))

    def drained(self, batch: Array, varied: Array) -> Array:
        """Seconds in which the last batch is decoded."""
        even = self.decoded(batch)
        if not varied.any():
            return even
        longest = np.minimum(self.c["lengths.longest"], np.log(np.maximum(batch, 1)) + 0.58)
        left = [self.decoded(np.maximum(batch * np.exp(-longest * at), 1.0)) for at in TENTHS]
        return np.where(varied, sum(left) * longest / len(TENTHS), even)


class Reached(Protocol):
    """A question about a batch, answered for every replica."""

    def __call__(self, times: Times, loads: Loads, batch: Array) -> Array: ...


def serve(t: Columns, c: Constants, loads: Loads) -> Served:
    """Rates and latencies of every replica."""
    times = Times(t, c)
    batch = np.minimum(times.top, np.maximum(loads.number, 1))
    each_decode = replace(loads, number=loads.number / np.where(times.apart, t.decodes, 1))
    batch = _searched(times, each_decode, batch, "rate", lambda x, of, b: x.rate(b) >= of.number)
    batch = _searched(times, loads, batch, "target", lambda x, of, b: (x.tpot(b) > of.tpot) | (x.ttft(b) > of.ttft))
    rate, target = loads.kind == "rate", loads.kind == "target"
    highest = np.where(
        times.apart, np.minimum(t.decodes * times.rate(times.top), times.prefilled()), times.rate(times.top)
    )
    each = np.where(rate, np.minimum(loads.number, highest), times.rate(batch))
    limited = target & np.isfinite(loads.tpot)
    each = np.where(limited, each * c["latency.share"], each)
    ttft = times.ttft(batch)
    closed = loads.kind == "closed"
    counted = closed & (loads.requests > 0)
    over = rate & (loads.number >= highest) & (loads.requests > 0)  # so many come that half of the surplus is inside
    surplus = loads.requests / 2 * (1 - highest / np.maximum(loads.number, 1e-12))
    batch = np.where(over, np.minimum(batch, np.maximum(surplus, 1)), batch)
    batch = np.where(counted, np.minimum(batch, loads.requests), batch)
    if counted.any():
        rounds = np.maximum(loads.requests / batch - 1, 0)
        seconds = rounds * times.decoded(batch) + times.drained(batch, loads.varied)
        seconds += np.where(times.apart, 0, loads.requests / batch * times.filled(batch))
        each = np.where(counted, loads.requests / np.maximum(seconds, 1e-12), each)
    at_once = counted & (loads.number >= loads.requests)
    queue = np.where(np.isfinite(loads.number) & closed, np.maximum(loads.number - batch, 0), 0)
    queue = np.where(at_once, np.maximum(loads.requests / 2 - batch / 2, 0), queue)
    wave = times.filled(batch)
    ttft = ttft + np.where(loads.waves & ((closed & ~at_once) | over), _share(c, loads) * wave, 0)
    ttft = np.where(at_once, wave / 2, ttft) + queue / each
    batch, each, ttft = _apart(times, loads, batch, each, ttft)
    tpot = np.where(t.output_len > 0, times.tpot(batch), np.nan)
    return Served(
        batch, times.most, times.first, cost.decode_s(t, c, batch, times.context), ttft, tpot, each,
        rate & (loads.number >= highest),
    )  # fmt: skip


def _share(c: Constants, loads: Loads) -> Array:
    """What a request waits of the prefills of its wave."""
    return np.where(loads.varied, c["first.varied"], c["first.even"])


def _searched(times: Times, loads: Loads, batch: Array, kind: str, reached: Reached) -> Array:
    """The batch of replicas with this kind of load: the largest (of a rate: the least) at which `reached` changes."""
    rows = np.flatnonzero(loads.kind == kind)
    if not len(rows):
        return batch
    mine, some = Times(times.t.take(rows), times.c), loads.take(rows)
    low = np.full(len(rows), 0.01 if kind == "rate" else 1.0)
    high = mine.top.astype(float)
    for _ in range(STEPS):
        middle = np.sqrt(low * high)
        yes = reached(mine, some, middle)
        low, high = np.where(yes, low, middle), np.where(yes, middle, high)
    batch = batch.astype(float)
    batch[rows] = high if kind == "rate" else low
    return batch


def _apart(times: Times, loads: Loads, batch: Array, each: Array, ttft: Array) -> tuple[Array, Array, Array]:
    """(batch, rate, TTFT) with prefill apart, of a whole system: C = X (TTFT + O x TPOT), X at most prefill's rate.

    A rate is given, and with it the batch of each replica that decodes; C follows from it.
    """
    if not times.apart.any():
        return batch, each, ttft
    t, decodes = times.t, times.t.decodes
    pre = times.prefilled()
    most, number = times.top * decodes, np.where(loads.kind == "target", times.top * decodes, loads.number)
    inside, rate = np.minimum(most, np.maximum(number, 1)), each
    for _ in range(12):
        rate = np.minimum(decodes * times.rate(np.maximum(inside / decodes, 1)), pre)
        waiting = np.maximum(number - rate * times.first, 1)
        decoding = rate * times.decoded(np.maximum(inside / decodes, 1))
        inside = (inside + np.minimum(np.minimum(waiting, most), np.maximum(decoding, 1))) / 2
    at_rate = loads.kind == "rate"
    inside, rate = np.where(at_rate, batch * decodes, inside), np.where(at_rate, each, rate)
    known = (loads.kind == "closed") & np.isfinite(number)
    waiting = np.where(known, number / np.maximum(rate, 1e-12) - times.decoded(inside / decodes), 0)
    share = np.where(loads.waves & (loads.kind == "closed"), _share(times.c, loads), 0)
    waited = np.maximum(
        times.first + t.of(times.c, "front") + share * np.minimum(number, most) / np.maximum(pre, 1e-12), waiting
    )
    apart = times.apart
    return (
        np.where(apart, inside / decodes, batch), np.where(apart, rate, each), np.where(apart, waited, ttft),
    )  # fmt: skip
