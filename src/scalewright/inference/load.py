"""What a replica gives under a load: rates and latencies, by the time that one round of its batch takes.

    round(B) = O - 1 steps of B sequences + B prefills     X = B / round requests/s     TPOT = (round - TTFT) / (O - 1)

    closed   C requests in flight: B = min(C, what fits); the rest wait. Little's law: C = X (TTFT + (O - 1) TPOT)
    rate     R requests a second: B = R x round; above the highest rate the queue grows without end
    target   as many as keep a TPOT (and TTFT) in the median; MLPerf's are of the 99th percentile (`tails`)

Of N requests in all the last ones leave the batch half empty: the last B take ∫ step(B x share still running), over
lengths that are all O, or exponential (texts of people; the longest is `lengths.longest` means). A request's prefill
delays the others' tokens (chunked or not: the work is the same), which `round` contains; its own comes before its first
token and isn't in TPOT. With prefill apart, rate = min(prefill's, decode's), and a request waits for both.

Requests that come at random wait for prefills as in a queue with one server (M/D/1): r / (2 (1 - r)) of them, where
prefills take r of the time. A benchmark's start together, and go on in waves where their lengths are equal: each waits
for a share of the wave's prefills (`first.even`). Of N that are sent at once,
the median one waits for the prefills of N / 2, and where fewer have a place, until it has one.
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
SETTLES = 20  # rounds in which a load with prefill apart settles, half of the way each: three digits
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
    tails: bool = False  # targets are of the 99th percentile, not of the median


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
    tails: Array

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


@dataclass(frozen=True)
class Round:
    """A round of a batch."""

    batch: Array
    decoded: Array  # seconds of its decode steps
    filled: Array  # seconds of its prefills
    seconds: Array  # of both, or of the steps alone where prefill is apart

    @property
    def rate(self) -> Array:
        """Requests a second."""
        return np.asarray(self.batch / np.maximum(self.seconds, 1e-12))


class Times:
    """Seconds of a round, for any batch, of these replicas."""

    def __init__(self, t: Columns, c: Constants) -> None:
        self.t, self.c = t, c
        self.context = t.input_len + t.output_len / 2
        fit = cost.most_sequences(t, self.context)  # paged: a request holds what it has reached
        self.most = np.where(cost.most_sequences(t, t.input_len + t.output_len) < 1, 0, np.maximum(fit, 0))
        self.top = np.maximum(self.most, 1)
        self.kept = t.of(c, "kept") * t.of(c, "release")
        # tokens behind the first, which the prefill gives where there is one
        self.further = np.maximum(t.output_len - np.minimum(t.input_len, 1), 0)
        self.steps = self.further / cost.tokens_per_step(t)
        self.apart = t.prefills > 0
        self.first = cost.prefill_s(t, c, np.ones(len(t)), apart=True)
        self.front = t.of(c, "front")  # seconds before the engine: HTTP, tokenizer, scheduler

    def share(self, batch: Array) -> Array:
        """What is left of the rate beside what engines lose to ragged batches; one sequence loses nothing."""
        others = np.maximum(batch - 1, 0)
        return np.asarray(1 - (1 - self.kept) * others / (others + self.c["batch.half"]))

    def decoded(self, batch: Array) -> Array:
        """Seconds of a batch's decode steps."""
        return np.asarray(self.steps * cost.decode_s(self.t, self.c, batch, self.context) / self.share(batch))

    def filled(self, batch: Array) -> Array:
        """Seconds of a batch's prefills, and of what others hold up at the door."""
        batch = np.maximum(batch, 1)  # less than one on average: one now and then
        door = (batch - 1) * self.t.of(self.c, "door")
        return np.asarray(batch * cost.prefill_s(self.t, self.c, batch) / self.share(batch) + door)

    def prefilled(self) -> Array:
        """Requests a second that replicas which only prefill take, in batches of eight."""
        return np.asarray(self.t.prefills / np.maximum(self.filled(np.full(len(self.t), 8.0)) / 8, 1e-9))

    def at(self, batch: Array) -> Round:
        """The round of a batch, in which every sequence is prefilled and decoded."""
        decoded, filled = self.decoded(batch), self.filled(batch)
        return Round(batch, decoded, filled, decoded + np.where(self.apart, 0.0, filled))

    def tpot(self, of: Round, first: Array) -> Array:
        """Seconds of a further token, of a request whose first one came `first` seconds after it had a place."""
        after = np.maximum(of.seconds - np.where(self.apart, 0.0, first), of.decoded)
        if (some := self.further > 0).all():
            return np.asarray(after / self.further)
        alone = cost.decode_s(self.t, self.c, of.batch, self.context) / self.share(of.batch)
        alone = alone / cost.tokens_per_step(self.t)
        return np.asarray(np.where(some, after / np.maximum(self.further, 1e-9), alone))

    def first_token(self, of: Round) -> Array:
        """Seconds to the first token of a request that has a place: its prefill, and those that it meets."""
        busy = 1 - of.decoded / np.maximum(of.seconds, 1e-12)
        step = np.where(of.batch > 1, of.decoded / np.maximum(self.further, 1) / 2, 0)
        waits = self.first * (1 + queued(busy, of.batch - 1)) + step
        waits = np.where(self.apart, waits, np.minimum(waits, of.filled))  # the rest of a round is of later tokens
        return np.where((self.further > 0) | self.apart, waits, of.seconds)  # a request of one token is its prefill

    def drained(self, of: Round, varied: Array) -> Array:
        """Seconds in which the last batch is decoded."""
        if not varied.any():
            return of.decoded
        longest = np.minimum(self.c["lengths.longest"], np.log(np.maximum(of.batch, 1)) + 0.58)
        left = [self.decoded(np.maximum(of.batch * np.exp(-longest * at), 1.0)) for at in TENTHS]
        return np.where(varied, sum(left) * longest / len(TENTHS), of.decoded)


def queued(busy: Array, others: Array) -> Array:
    """How many prefills a request waits for on average, at most half of the others'."""
    free = np.maximum(1 - busy, 1e-9)
    return np.asarray(np.minimum(busy / (2 * free), np.maximum(others, 0) / 2))


class Reached(Protocol):
    """A question about a batch, answered for every replica."""

    def __call__(self, times: Times, loads: Loads, of: Round) -> Array: ...


def serve(t: Columns, c: Constants, loads: Loads) -> Served:
    """Rates and latencies of every replica."""
    times = Times(t, c)
    rate, closed = loads.kind == "rate", loads.kind == "closed"
    counted = closed & (loads.requests > 0)
    at_once = counted & (loads.number >= loads.requests)
    batch = np.minimum(times.top, np.maximum(loads.number, 1))
    each_decode = replace(loads, number=loads.number / np.where(times.apart, t.decodes, 1))
    batch = _searched(times, each_decode, batch, "rate", lambda x, asked, of: of.rate >= asked.number)
    batch = _searched(times, loads, batch, "target", _misses)
    full = times.at(times.top).rate
    highest = np.where(times.apart, np.minimum(t.decodes * full, times.prefilled()), full)
    over = rate & (loads.number >= highest)
    # so many come that half of the surplus is inside
    surplus = loads.requests / 2 * (1 - highest / np.maximum(loads.number, 1e-12))
    batch = np.where(over & (loads.requests > 0), np.minimum(batch, np.maximum(surplus, 1)), batch)
    batch = np.where(counted, np.minimum(batch, loads.requests), batch)
    of = times.at(batch)
    each = np.where(rate, np.minimum(loads.number, highest), of.rate)
    free = closed & (np.maximum(loads.number, 1) <= times.top)  # all of them have a place, or are at the door
    each = np.where(free, np.maximum(loads.number, 1) / (of.seconds + times.front), each)
    each = np.where(loads.tails & np.isfinite(loads.tpot), each * c["latency.share"], each)
    if counted.any():
        seconds = np.maximum(loads.requests / batch - 1, 0) * of.decoded + times.drained(of, loads.varied)
        seconds += np.where(times.apart, 0, loads.requests / batch * of.filled) + times.front
        each = np.where(counted, loads.requests / np.maximum(seconds, 1e-12), each)
    queue = np.where(np.isfinite(loads.number) & closed, np.maximum(loads.number - batch, 0), 0)
    queue = np.where(at_once, np.maximum(loads.requests / 2 - batch, 0), queue)
    first = times.first_token(of) + _together(c, loads, of, over & (loads.requests > 0), at_once)
    ttft = times.front + first + queue / each
    tpot = np.where(t.output_len > 0, times.tpot(of, first), np.nan)
    if times.apart.any():
        batch, each, ttft, tpot = _apart(times, loads, batch, each, (ttft, tpot))
    return Served(batch, times.most, times.first, cost.decode_s(t, c, batch, times.context), ttft, tpot, each, over)


def _misses(times: Times, loads: Loads, of: Round) -> Array:
    """Whether a batch misses its targets."""
    first = times.first_token(of)
    return np.asarray((times.tpot(of, first) > loads.tpot) | (first + times.front > loads.ttft))


def _together(c: Constants, loads: Loads, of: Round, over: Array, at_once: Array) -> Array:
    """What the median request waits for prefills of those that came with it, beside those that it meets anyway."""
    alone, middle = of.filled / np.maximum(of.batch, 1), loads.requests / 2
    between = alone - 1 / np.maximum(loads.number, 1e-12)  # of a rate: what one prefill takes beyond the next arrival
    waits = np.where(_in_waves(loads), c["first.even"] * of.filled, 0.0)
    waits = np.where(over, np.maximum(middle * between, 0.0), waits)
    return np.where(at_once, np.minimum(middle, of.batch) * alone, waits)


def _in_waves(loads: Loads) -> Array:
    """Whether requests go on as they started, together."""
    return np.asarray(loads.waves & ~loads.varied & (loads.kind == "closed"))


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
        yes = reached(mine, some, mine.at(middle))
        low, high = np.where(yes, low, middle), np.where(yes, middle, high)
    batch = batch.astype(float)
    batch[rows] = high if kind == "rate" else low
    return batch


def _apart(
    times: Times, loads: Loads, batch: Array, each: Array, seconds: tuple[Array, Array]
) -> tuple[Array, Array, Array, Array]:
    """(batch, rate, TTFT, TPOT) with prefill apart, of a whole system: C = X (TTFT + (O - 1) TPOT).

    A rate is given, and with it the batch of each replica that decodes; C follows from it.
    """
    decodes = times.t.decodes
    pre = times.prefilled()
    most, number = times.top * decodes, np.where(loads.kind == "target", times.top * decodes, loads.number)
    inside, rate, pre_s = np.minimum(most, np.maximum(number, 1)), each, 1 / np.maximum(pre, 1e-12)
    filled = times.first + times.front
    for _ in range(SETTLES):
        of = times.at(inside / decodes)
        rate = np.minimum(decodes * of.rate, pre)
        held = _held(times, loads, rate * pre_s, np.minimum(number, most)) * pre_s
        waiting = np.maximum(number - rate * (filled + held), 1e-3)
        inside = (inside + np.minimum(np.minimum(waiting, most), np.maximum(rate * of.decoded, 1e-3))) / 2
    at_rate = loads.kind == "rate"
    inside, rate = np.where(at_rate, batch * decodes, inside), np.where(at_rate, each, rate)
    of = times.at(inside / decodes)
    known = (loads.kind == "closed") & np.isfinite(number)
    held = _held(times, loads, rate * pre_s, np.minimum(number, most)) * pre_s
    rate = np.where(known, np.minimum(rate, number / (filled + held + of.decoded)), rate)
    waiting = np.where(known, number / np.maximum(rate, 1e-12) - of.decoded, 0)
    waited = np.maximum(filled + held, waiting)
    apart = times.apart
    return (
        np.where(apart, inside / decodes, batch), np.where(apart, rate, each), np.where(apart, waited, seconds[0]),
        np.where(apart, times.tpot(of, waited), seconds[1]),
    )  # fmt: skip


def _held(times: Times, loads: Loads, busy: Array, others: Array) -> Array:
    """How many prefills a request waits for where replicas only prefill."""
    return np.where(_in_waves(loads), times.c["first.even"] * others, queued(busy, others))
