"""A whole run of a number of tokens: days, device-hours, money, electricity and CO2, failures included.

    days = tokens / tokens per second / 86,400 / goodput            device-hours = days x 24 x (devices + spares)
    goodput = share of the time that trains once                    money, kWh, CO2 = device-hours x spec/prices.py

Without a stated goodput: plan/reliability.py, by this run's state, saves and validation, and with the spare nodes that
keep a run from waiting for what is mended. Bands: p10 and p90
of the step's time; money has the range over clouds beside it, kWh and CO2 those of hosts, sites and grids.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isfinite

from scalewright.plan.predict import Prediction
from scalewright.plan.records import Total
from scalewright.plan.reliability import Habits, rhythm, usual_spares
from scalewright.spec.common.formatting import count as amount
from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.optimizers import ADAMW
from scalewright.spec.prices import Band, Footprint, Price, currency_of, footprint, price_of, product
from scalewright.spec.question import Question
from scalewright.spec.run import OptimizerSpec, PythonRef
from scalewright.spec.tensors import count

# DeepSeek-V3's report (2412.19437, table 1): 2.664M device-hours of pre-training, 119k of longer context, 5k later.
OTHER_STAGES = "other stages (longer context, fine-tuning: 4.7% more in DeepSeek-V3's run)"
LEFT_OUT = f"evaluation, {OTHER_STAGES}, experiments, runs that failed"
MOST_TOKENS, MOST_PRICE = 1e18, 1e6
USUAL_CURRENCY = "USD"
WEIGHT_BYTES = 4  # of a parameter in a checkpoint, beside the optimizer's states
FORWARD = 1 / 3  # of a step: what a batch of validation takes


def habits_of(question: Question) -> Habits:
    """How a run saves and validates, by its file; of a module of one's own the state isn't known."""
    run, state = question.run, None
    if not isinstance(run.model, PythonRef):
        named = run.optimizer.record if isinstance(run.optimizer, OptimizerSpec) else question.optimizer or ADAMW
        state = count(question.model).total * (WEIGHT_BYTES + named.each)
    every = run.train.valid_every
    validated = run.train.valid_batches * FORWARD / every if every else 0.0
    return Habits(state, run.checkpoint.async_, save_every=run.checkpoint.every, evaluation=validated)


@dataclass(frozen=True)
class Market:
    """Where a price is looked up that isn't given, and whose electricity is used."""

    prices: str | None = None  # a file
    commitment: str | None = None
    cloud: str | None = None
    region: str | None = None


@dataclass(frozen=True)
class WholeRun:
    """The tokens of a run, and the price of one device for an hour."""

    tokens: float | None = None
    price: float | None = None
    currency: str | None = None
    goodput: float | None = None
    market: Market = Market()
    listed: Price | None = None  # in place of a price that isn't given
    cluster: ClusterSpec | None = None  # whose electricity is counted
    habits: Habits = field(default_factory=Habits)
    own_tokens: bool = False  # the run file's

    def check(self, priced: bool = False) -> None:
        """Raises UserError for impossible values; `priced`: the search uses the price even without tokens."""
        tokens, price, goodput = self.tokens, self.price, self.goodput
        if tokens is None:  # only the cost of a whole run uses these
            unused = {"currency": self.currency, "goodput": goodput, "region": self.market.region}
            unused |= {} if priced else {"price": price, **vars(self.market)}
            for flag, value in unused.items():
                if value is not None:
                    how = f"add --tokens 1e12, those of the whole run: only its cost uses the {flag}"
                    raise UserError(f"{flag} is given without tokens", f"--{flag}", how)
        elif not isfinite(tokens) or not 0 < tokens <= MOST_TOKENS:
            raise UserError(f"tokens is {tokens:g}", "--tokens", "give a number above 0, such as 1e12")
        if price is not None and (not isfinite(price) or not 0 < price <= MOST_PRICE):
            how = "give what one device costs an hour, such as 2.5, or leave it out"
            raise UserError(f"price is {price:g}", "--price", how)
        for key in ("prices", "commitment", "cloud"):
            if price is not None and getattr(self.market, key) is not None:
                raise UserError(f"--price and --{key} are both given", f"--{key}", "keep one: it looks a price up")
        if goodput is not None and not 0 < goodput <= 1:
            how = "give the share of the time that isn't lost to failures, such as 0.95"
            raise UserError(f"goodput is {goodput:g}", "--goodput", how)
        if self.currency is not None:
            currency_of(self.currency)

    def of(self, question: Question) -> WholeRun:
        """The same with the saves and the validation of this run, and its tokens where no others are given."""
        run = question.run
        tokens = self.tokens if self.tokens is not None else run.train.tokens
        if tokens is None and "train" in run.model_fields_set and run.train.steps:
            tokens = float(run.train.steps * run.layout.global_batch * question.seq_len)
        if tokens is None:
            return self
        return replace(self, tokens=tokens, habits=habits_of(question), own_tokens=self.tokens is None)

    def on(self, cluster: ClusterSpec, priced: bool = False) -> WholeRun:
        """The same at the cluster's own price, or the list's, where none was given; a CPU has neither price nor power.

        `priced`: needed even without tokens, by a search that weighs money.

        Raises UserError where a price that is needed, or one of a given commitment, cloud or file, isn't there.
        """
        if self.tokens is None and not priced:
            return self
        asked, powered = self.market, cluster.device.kind not in ("cpu", "mps")
        run = replace(self, cluster=cluster if powered else None)
        looked_up = asked.prices or asked.commitment or asked.cloud
        if run.price is None and not looked_up:
            run = replace(run, price=cluster.price_per_device_hour)
        if run.price is not None or not powered:
            return run
        try:
            price = price_of(cluster, asked.commitment or "on_demand", asked.cloud, asked.prices)
        except UserError:
            if looked_up or priced:
                raise
            return run
        return replace(run, listed=price)

    @property
    def hourly(self) -> float | None:
        """What one device costs for an hour: the given price, or the middle of the list's."""
        return self.price if self.price is not None or self.listed is None else self.listed.median

    def goodput_of(self, prediction: Prediction) -> float:
        """The share of the time that trains: as given, or by usual failures and this run's state and saves."""
        if self.goodput is not None:
            return self.goodput
        return rhythm(prediction.request.devices, replace(self.habits, step_s=prediction.step_time_s)).goodput()

    def spares(self, prediction: Prediction) -> int:
        """Spare devices that are paid for as the others, in whole nodes; of a stated goodput none are known."""
        if self.goodput is not None or self.cluster is None:
            return 0
        per_node = self.cluster.devices_per_node
        return per_node * usual_spares(prediction.request.devices, per_node)

    def total(self, prediction: Prediction) -> Total:
        """Days, device-hours, money, electricity and CO2; without a price the cost is None, of a CPU the power."""
        assert self.tokens is not None
        if self.price is None and self.currency is not None:
            raise UserError("currency is given without a price", "--currency", "add --price 2.5")
        devices, goodput = prediction.request.devices, self.goodput_of(prediction)
        low, high = prediction.band_s
        seconds = Band(low, prediction.step_time_s, high)
        steps = self.tokens / prediction.tokens
        days = seconds.times(steps / 86400 / goodput)
        hours = days.times(24 * (devices + self.spares(prediction)))
        bands = {"days": days, "device_hours": hours}
        currency, power = None, self._power(hours)
        if self.price is not None:
            bands["cost"], currency = hours.times(self.price), (self.currency or USUAL_CURRENCY).upper()
        elif self.listed is not None:
            bands["cost"], currency = product(hours, self.listed), self.listed.currency
        return Total(
            days=days.median, device_hours=hours.median, cost=bands["cost"].median if "cost" in bands else None,
            currency=currency, goodput=goodput, failures_device_hours=hours.median * (1 - goodput), left_out=LEFT_OUT,
            band={name: {"p10": band.low, "p90": band.high} for name, band in bands.items()},
            energy_kwh=power.energy_kwh.dump() if power else None, co2_kg=power.co2_kg.dump() if power else None,
        )  # fmt: skip

    def _power(self, hours: Band) -> Footprint | None:
        return footprint(hours, self.cluster, self.market.region) if self.cluster is not None else None

    def assumed(self, prediction: Prediction) -> list[str]:
        """The defaults in use, in words."""
        listed = f"price: {self.listed.words}: a list's; --price gives yours" if self.listed is not None else None
        if self.tokens is None:
            return [listed] if listed else []
        lines = [f"tokens {amount(self.tokens)} (of the run file)"] if self.own_tokens else []
        lines += [f"currency {USUAL_CURRENCY}"] if self.price is not None and self.currency is None else []
        if listed is not None and self.price is None:
            lines.append(listed)
        elif self.price is None and self.cluster is not None:
            lines.append(f"no cost: no price of {self.cluster.device.id} is known (--price)")
        if self.goodput is None:
            share, every = f"{100 * self.goodput_of(prediction):.4g}%", self.habits.save_every
            saved = f"saves every {counted(every, 'steps')}" if every else "saves at their best interval"
            spares = self.spares(prediction)
            held = f", {counted(spares, 'spare devices')} paid for as the others" if spares else ""
            lines.append(f"goodput {share} (failures as in Llama 3's run, {saved}{held})")
        power = self._power(Band(1.0, 1.0, 1.0))
        return [*lines, *(power.assumed if power else ())]
