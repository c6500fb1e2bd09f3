"""Size, tokens, layout and rate that agree: the fixed point of a law and a plan.

    FLOPs of the amount = rate x device-seconds x goodput       rate: k N D a second of a device, first 40% of the peak
      ▲        │ law                                            N, D
      │        ▼ shape.py                                       a real model, N by count
      └──── plan: tokens a second of its best layout            until the size stays (two or three plans)

A size that fits no layout of these devices, where it is free, gives way to a smaller one, which is trained longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from scalewright.budget.amounts import DAYS, Ask
from scalewright.budget.laws import Law, solve, tokens_for_loss
from scalewright.budget.recipe import recipes, usual
from scalewright.budget.shape import GIVEN, NEAR, make_shape, size_of
from scalewright.plan.ask import ask as ask_plan
from scalewright.plan.reliability import Rhythm, rhythm, usual_spares
from scalewright.plan.search.choices import Plan
from scalewright.plan.search.objective import Goal
from scalewright.plan.search.search import search
from scalewright.plan.whole_run import USUAL_CURRENCY, habits_of
from scalewright.spec.common.formatting import count
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.model import ModelSpec
from scalewright.spec.prices import footprint
from scalewright.spec.question import Question

FIRST_MFU = 0.4
MOST_PLANS = 5
SHRINK = 0.75  # of a size that doesn't fit
MOST_DEVICES = 10**6
LATE = 0.005  # of the deadline
MOST_TRIES = 3
LEAST_STEPS = 1000  # a batch that leaves fewer is too large for a run


@dataclass
class Solved:
    """A model, its tokens, and, where there is a cluster, the plan of its best layout."""

    ask: Ask
    law: Law
    model: ModelSpec
    tokens: float
    place: ClusterSpec | None = None
    devices: int | None = None
    plan: Plan | None = None
    goodput: float = 1.0
    price: tuple[float, float, float] | None = None  # lowest, middle, highest of a device-hour
    currency: str = "USD"
    notes: list[str] = field(default_factory=list)

    @property
    def params(self) -> int:
        """As the law counts them."""
        return size_of(self.model, self.law.counts)

    @property
    def flops(self) -> float:
        """k N D of the law."""
        return self.law.k * self.params * self.tokens

    @property
    def rate(self) -> float:
        """Tokens a second of all devices, failures included."""
        assert self.plan is not None
        return self.plan.best[0].prediction.tokens_per_s * self.goodput

    @property
    def rhythm(self) -> Rhythm:
        """Of the planned run's saves and stops."""
        assert self.plan is not None
        step = self.plan.best[0].prediction.step_time_s
        return rhythm(self.devices or 1, replace(habits_of(self.plan.question), step_s=step))

    @property
    def days(self) -> float:
        """From its first step to its last."""
        return self.tokens / self.rate / 86400

    @property
    def paid(self) -> float:
        """Devices that are paid for, spare ones too, for each that works; of a stated goodput none are known."""
        if self.ask.goodput is not None or self.place is None or self.devices is None:
            return 1.0
        per_node = self.place.devices_per_node
        return 1 + usual_spares(self.devices, per_node) * per_node / self.devices

    @property
    def device_hours(self) -> float:
        """That are paid for."""
        assert self.devices is not None
        return self.days * 24 * self.devices * self.paid

    @property
    def meets_deadline(self) -> bool | None:
        """Whether it ends within the days; None where these are no deadline."""
        if self.plan is None or self.devices is None or self.ask.days is None or self.ask.amount == "days":
            return None
        return self.days <= self.ask.days * (1 + LATE)


def solve_budget(ask: Ask, place: ClusterSpec | None, tell: Callable[[str], None] = lambda text: None) -> Solved:
    """The model, the tokens and the plan of a budget. Raises UserError."""
    ask.check(place)
    flops = _flops_without_a_rate(ask)
    if place is None:
        return _made(ask, *sizes(ask, flops), flops)
    start = Solved(ask, ask.law, ask.model or make_shape(1e9), 0.0, place)
    start.price, start.currency = _price(ask, place, start.notes)
    hours, rate = _device_hours(ask, start), FIRST_MFU * _peak(place)
    if ask.devices is not None:
        return _on_devices(start, ask.devices, flops, hours, rate, tell)
    expected = hours if hours is not None else sizes_flops(ask, flops) / rate / 3600
    solved, note = None, ""
    for _ in range(MOST_TRIES):  # as many devices as these hours take in the time, the hours by the plan on them
        devices, note = _devices(ask, place, expected)
        if solved is not None and devices == solved.devices:
            break
        solved = _on_devices(start, devices, flops, hours, rate, tell)
        expected = solved.device_hours / solved.paid
    assert solved is not None
    return replace(solved, notes=[*solved.notes, note + (": it ends later" if solved.meets_deadline is False else "")])


def _on_devices(
    start: Solved, devices: int, flops: float | None, hours: float | None, rate: float, tell: Callable[[str], None]
) -> Solved:
    """The budget on so many devices; `rate`: k N D a second of one, to begin with."""
    ask = start.ask
    assert start.place is not None
    start.place.check_devices(devices)
    goodput = rhythm(devices).goodput() if ask.goodput is None else ask.goodput
    start = replace(start, devices=devices, goodput=goodput, notes=[*start.notes])
    if hours is None and ask.amount == "days":
        hours = (ask.days or 0.0) * 24 * devices * start.paid
    return _planned(start, flops, hours, rate, tell)


def sizes(ask: Ask, flops: float | None) -> tuple[float, float]:
    """(parameters in the law's count, tokens) for these FLOPs, or for what is fixed of the two."""
    law = ask.law
    params = ask.params if ask.model is None else float(size_of(ask.model, law.counts))
    if ask.fixed and params is not None and ask.tokens is not None:
        return params, ask.tokens
    if params is not None:
        if ask.loss is not None:
            return params, tokens_for_loss(law, params, ask.loss, ask.unique)
        return params, law.tokens(params) if flops is None else flops / (law.k * params)
    if ask.tokens is not None:
        return (law.params(ask.tokens) if flops is None else flops / (law.k * ask.tokens)), ask.tokens
    assert flops is not None
    return law.best(flops, ask.unique)


def sizes_flops(ask: Ask, flops: float | None) -> float:
    """k N D."""
    params, tokens = sizes(ask, flops)
    return ask.law.k * params * tokens


def _flops_without_a_rate(ask: Ask) -> float | None:
    """The FLOPs of a question that needs no machine; of a loss those at which the law's best size reaches it."""
    if ask.loss is None or ask.params is not None or ask.model is not None:
        return ask.flops
    law, wanted = ask.law, ask.loss
    least = law.fit[0]
    if wanted <= least:
        how = f"give more than {least:.3f}, which {law.name} has for any size and any number of tokens"
        raise UserError(f"no budget reaches a loss of {wanted:g}", "--loss", how)
    if ask.tokens is not None:
        raise UserError("--loss and --tokens are both given", "budget", "give --params beside --loss, or neither")
    return solve(lambda flops: float(law.predict(*law.best(flops, ask.unique), ask.unique)), wanted)


def _made(ask: Ask, params: float, tokens: float, flops: float | None) -> Solved:
    """The real model, and the tokens that keep to the FLOPs with its exact count."""
    law = ask.law
    near = NEAR if ask.params is None else GIVEN
    model = ask.model or make_shape(params, law.counts, ask.like, ask.vocab, near)
    if ask.tokens is None and flops is not None:
        tokens = flops / (law.k * size_of(model, law.counts))
    elif ask.tokens is None and ask.loss is not None:
        tokens = tokens_for_loss(law, size_of(model, law.counts), ask.loss, ask.unique)
    return Solved(ask, law, model, tokens)


def _planned(
    start: Solved, flops: float | None, hours: float | None, rate: float, tell: Callable[[str], None]
) -> Solved:
    """`start` with model, tokens and plan; `rate`: k N D a second of one device to begin with."""
    ask, law, devices = start.ask, start.law, start.devices or 1
    free = ask.params is None and ask.model is None and ask.tokens is None
    shrunk, plans, most = None, 0, math.inf
    while True:
        spend = flops if hours is None else rate * hours / start.paid * 3600 * start.goodput
        params, tokens = sizes(ask, spend)
        made = _made(ask, min(params, most), tokens if params <= most else 0.0, spend)
        if start.plan is not None and made.model == start.model:
            break
        tell(f"planning {made.model.name} on {count(devices)} devices")
        try:
            plan = _search(replace(start, model=made.model, tokens=made.tokens))
        except UserError as error:
            if not free or error.where != "memory":
                raise
            shrunk, most = shrunk or made.params, made.params * SHRINK
            continue
        last, start = start, replace(start, model=made.model, tokens=made.tokens, plan=plan)
        start.goodput = start.rhythm.goodput() if ask.goodput is None else ask.goodput
        plans += 1
        rate = law.k * start.params * plan.best[0].prediction.tokens_per_s / devices
        if hours is None or plans == MOST_PLANS or (last.plan and abs(last.params / start.params - 1) < NEAR):
            break
    if hours is not None and ask.tokens is None:
        start.tokens = start.rate * hours / start.paid * 3600 / devices
    if shrunk is not None:
        start.notes.append(
            f"{count(start.params)} parameters, the largest tried that fits on {devices:,} devices: "
            f"the best size for the budget, {count(shrunk)}, doesn't"
        )
    return start


def _search(start: Solved) -> Plan:
    """The best layout for the model, at the batch of the usual recipe."""
    question, _ = question_of(start)
    sequences = batch_sequences(start)
    return search(question, Goal(start.devices or 1, sequences, margin=0.02, top=1), explain=False)


def question_of(start: Solved) -> tuple[Question, list[str]]:
    """The run as a plan asks it."""
    assert start.place is not None
    question, notes = ask_plan(start.model, start.place, start.ask.seq_len)
    return question, notes.used(start.devices or 1, start.place)


def batch_sequences(start: Solved) -> int:
    """Sequences of a step: the recipe's batch, as a power of two times what is odd in the number of devices."""
    rows = recipes(start.params, size_of(start.model, "non-embedding"), max(start.tokens, 1.0), None)
    batch = min(usual(rows)[0], max(start.tokens / LEAST_STEPS, 1.0)) / start.ask.seq_len
    odd = start.devices or 1
    while odd % 2 == 0:
        odd //= 2
    return int(odd * 2 ** max(0, round(math.log2(max(batch / odd, 1.0)))))


def _peak(place: ClusterSpec) -> float:
    """Dense FLOP/s of one device in the precision that training takes first."""
    device = place.device
    peak = device.peak("bf16") or device.peak("fp16") or device.peak("fp32")
    if not peak:
        raise UserError(f"{device.id} has no known rate", "--cluster", "give another, or its peaks in a file")
    return float(peak)


def _price(ask: Ask, place: ClusterSpec, notes: list[str]) -> tuple[tuple[float, float, float] | None, str]:
    """The range of a device-hour's price and its currency: as given, the cluster's own, or the list's."""
    paid, currency = ask.paid.on(place, priced=ask.money is not None), (ask.currency or USUAL_CURRENCY).upper()
    if paid.price is not None:
        return (paid.price,) * 3, currency
    if paid.listed is None:
        notes.append(f"no cost: no price of {place.device.id} is known (--price)")
        return None, currency
    notes.append(f"price: {paid.listed.words}")
    return (paid.listed.low, paid.listed.median, paid.listed.high), paid.listed.currency


def _device_hours(ask: Ask, start: Solved) -> float | None:
    """The hours of one device that the amount pays for; None where it is no such amount."""
    if ask.device_hours is not None:
        return ask.device_hours
    if ask.money is not None:
        assert start.price is not None
        if not start.price[1]:
            raise UserError("the price is 0", "--price", "give what one device costs an hour: money buys no time at 0")
        return ask.money / start.price[1]
    if ask.energy is not None and start.place is not None:
        return ask.energy / footprint(1.0, start.place, ask.market.region, ask.pue).energy_kwh.median
    return None


def _devices(ask: Ask, place: ClusterSpec, hours: float) -> tuple[int, str]:
    """As many devices as end within the deadline (a power of two below a node, then whole nodes), and why so many."""
    wanted, node = hours / (24 * (ask.days or DAYS)), place.devices_per_node
    number = 2 ** math.ceil(math.log2(max(wanted, 1.0))) if wanted <= node else math.ceil(wanted / node) * node
    number = min(number, place.devices or MOST_DEVICES, MOST_DEVICES // node * node)
    number = max(1, min(number, node) if wanted <= node else number)
    why = f"for {ask.days:g} days" if ask.days is not None else f"so that it takes up to {DAYS:.0f} days"
    return number, f"devices {number:,} ({why}; --devices sets them)"
