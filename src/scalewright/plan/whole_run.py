"""A whole run of a number of tokens: days, device-hours and cost, failures included.

    days = tokens / tokens per second / 86,400 / goodput            device-hours = days x 24 x devices
    goodput = share of the time that isn't lost to failures         cost = device-hours x price

Without a stated goodput: 1 / (1 + devices x stops per device-hour x hours of a stop), of data/failures.yaml.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite
from pathlib import Path

from scalewright.plan.predict import Prediction
from scalewright.plan.records import Total
from scalewright.spec.base import read_yaml
from scalewright.spec.errors import UserError

FILE = Path(__file__).parent / "data" / "failures.yaml"
# DeepSeek-V3's report (2412.19437, table 1): 2.664M device-hours of pre-training, 119k of longer context, 5k later.
OTHER_STAGES = "other stages (longer context, fine-tuning: 4.7% more in DeepSeek-V3's run)"
LEFT_OUT = f"evaluation, writing of checkpoints, {OTHER_STAGES}, experiments, runs that failed"
MOST_TOKENS, MOST_PRICE = 1e18, 1e6
USUAL_CURRENCY = "USD"


@dataclass(frozen=True)
class WholeRun:
    """The tokens of a run, and the price of one device for an hour."""

    tokens: float | None = None
    price: float | None = None
    currency: str | None = None
    goodput: float | None = None

    def check(self, priced: bool = False) -> None:
        """Raises UserError for impossible values; `priced`: the search uses the price even without tokens."""
        tokens, price, goodput = self.tokens, self.price, self.goodput
        if tokens is None:  # only the cost of a whole run uses these
            unused = {"price": None if priced else price, "currency": self.currency, "goodput": goodput}
            for flag, value in unused.items():
                if value is not None:
                    how = f"add --tokens 1e12, those of the whole run: only its cost uses the {flag}"
                    raise UserError(f"{flag} is given without tokens", f"--{flag}", how)
        elif not isfinite(tokens) or not 0 < tokens <= MOST_TOKENS:
            raise UserError(f"tokens is {tokens:g}", "--tokens", "give a number above 0, such as 1e12")
        if price is not None and (not isfinite(price) or not 0 <= price <= MOST_PRICE):
            how = "give what one device costs an hour, such as 2.5"
            raise UserError(f"price is {price:g}", "--price", how)
        if goodput is not None and not 0 < goodput <= 1:
            how = "give the share of the time that isn't lost to failures, such as 0.95"
            raise UserError(f"goodput is {goodput:g}", "--goodput", how)
        if self.currency is not None and not re.fullmatch("[A-Za-z]{3}", self.currency):
            raise UserError(f"currency is '{self.currency}'", "--currency", "give three letters, such as EUR")

    def priced_at(self, price: float | None) -> WholeRun:
        """The same, at the cluster's price where none was given."""
        return self if self.price is not None else replace(self, price=price)

    def total(self, prediction: Prediction) -> Total:
        """Days, device-hours and cost, with their currency and goodput; without a price the cost is None."""
        assert self.tokens is not None
        if self.price is None and self.currency is not None:
            raise UserError("currency is given without a price", "--currency", "add --price 2.5")
        devices = prediction.request.devices
        goodput = usual_goodput(devices) if self.goodput is None else self.goodput
        days = self.tokens / prediction.tokens * prediction.step_time_s / 86400 / goodput
        hours = days * 24 * devices
        cost = None if self.price is None else hours * self.price
        currency = None if self.price is None else (self.currency or USUAL_CURRENCY).upper()
        usual: dict[str, float | None] = {"days": days, "device_hours": hours, "cost": cost}
        low, high = (seconds / prediction.step_time_s for seconds in prediction.band_s)
        band = {key: {"p10": value * low, "p90": value * high} for key, value in usual.items() if value is not None}
        lost = hours * (1 - goodput)
        return Total(
            days=days, device_hours=hours, cost=cost, currency=currency, goodput=goodput, band=band,
            failures_device_hours=lost, left_out=LEFT_OUT,
        )  # fmt: skip

    def assumed(self, devices: int) -> list[str]:
        """The defaults in use, in words."""
        if self.tokens is None:
            return []
        money = [f"currency {USUAL_CURRENCY}"] if self.price is not None and self.currency is None else []
        if self.goodput is not None:
            return money
        return [*money, f"goodput {100 * usual_goodput(devices):.4g}% (failures as in Llama 3's run)"]


def usual_goodput(devices: int) -> float:
    """The share of the time that a run on these devices trains, at the failure rates of failures.yaml."""
    rates = _rates()
    return 1 / (1 + devices * rates["stops_per_device_hour"] * rates["hours_of_a_stop"])


@lru_cache(maxsize=1)
def _rates() -> dict[str, float]:
    return {name: float(entry["value"]) for name, entry in read_yaml(FILE).items()}
