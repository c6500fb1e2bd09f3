"""What a budget is asked with: one amount, what of the model is fixed, and where it runs.

    amount      flops │ device_hours │ money │ energy (kWh) │ days (with devices) │ loss
    fixed       params, or a model; tokens; both: what they take
    deadline    days beside another amount: how many devices; with devices, size and tokens: whether it ends in time

Anything over-determined is refused, with the way out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scalewright.budget.laws import Law, find_law
from scalewright.budget.shape import FAMILY, MIXTURE, shape_keys
from scalewright.plan.whole_run import Market, WholeRun
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec

MOST = {
    "flops": 1e32, "device_hours": 1e13, "money": 1e14, "energy": 1e14, "days": 36525.0, "params": 1e14, "tokens": 1e18,
    "unique": 1e18, "serve": 1e21, "loss": 20.0,
}  # fmt: skip
EXAMPLES = {
    "flops": "1e23", "device_hours": "50000", "money": "250000", "energy": "40000", "days": "30", "params": "8B",
    "tokens": "1T", "unique": "100B", "serve": "2T", "loss": "2.1",
}  # fmt: skip
AMOUNTS = ("flops", "device_hours", "money", "energy", "loss")
DAYS = 30.0  # of a run whose devices aren't given


@dataclass(frozen=True)
class Ask:
    """A question; amounts in FLOPs, hours of one device, money, kWh, days, parameters, tokens."""

    flops: float | None = None
    device_hours: float | None = None
    money: float | None = None
    energy: float | None = None
    days: float | None = None
    loss: float | None = None
    params: float | None = None
    tokens: float | None = None
    model: ModelSpec | None = None
    devices: int | None = None
    law_name: str | None = None
    serve: float | None = None  # tokens to serve
    unique: float | None = None  # tokens at hand; more are repeats
    like: str | None = None
    vocab: int | None = None
    seq_len: int = 4096
    price: float | None = None
    currency: str | None = None
    goodput: float | None = None
    market: Market = field(default_factory=Market)
    pue: float | None = None

    @property
    def law(self) -> Law:
        return find_law(self.law_name)

    @property
    def paid(self) -> WholeRun:
        """What its device-hours cost, of any tokens."""
        return WholeRun(1.0, self.price, self.currency, self.goodput, self.market)

    @property
    def amount(self) -> str | None:
        """The key of what is to be spent or reached; days alone are one with their devices."""
        given = [key for key in AMOUNTS if getattr(self, key) is not None]
        return given[0] if given else "days" if self.days is not None and not self.fixed else None

    @property
    def fixed(self) -> bool:
        """Whether size and tokens are both given, so that days are a deadline."""
        return self.tokens is not None and (self.params is not None or self.model is not None)

    def check(self, place: object | None) -> None:
        """Raises UserError for impossible or contradicting amounts."""
        for key, most in MOST.items():
            value = getattr(self, key)
            if value is not None and not (math.isfinite(value) and 0 < value <= most):
                how = f"give a number above 0 and up to {most:g}, such as {EXAMPLES[key]}"
                raise UserError(f"{key.replace('_', ' ')} is {value:g}", f"--{key.replace('_', '-')}", how)
        self.paid.check()
        flags = {key: getattr(self, key) for key in (*AMOUNTS, "days", "params", "model", "tokens")}
        given = [f"--{key.replace('_', '-')}" for key, value in flags.items() if value is not None]
        amounts = [key for key in AMOUNTS if flags[key] is not None]
        if not given:
            how = "give --flops, --device-hours, --money, --energy, --params, --tokens, or --days with --devices"
            raise UserError("no budget is given", "budget", how)
        if len(amounts) > 1:
            raise UserError(f"{' and '.join(given[:2])} are both given", "budget", "keep one of them")
        if self.params is not None and self.model is not None:
            raise UserError("--params and --model are both given", "budget", "keep one of them")
        if self.fixed and amounts:
            how = f"leave out {given[0]}: size and tokens say what it takes; or leave out --tokens"
            raise UserError(f"size, tokens and {given[0]} are all given", "budget", how)
        if self.days is not None and self.devices is not None and amounts:
            how = "leave out --devices, and --days is the deadline that decides on them; or leave out --days"
            raise UserError(f"--days, --devices and {given[0]} are all given", "budget", how)
        if self.model is not None and (self.like or self.vocab):
            flag = "--like" if self.like else "--vocab"
            raise UserError(f"--model and {flag} are both given", flag, f"leave out {flag}: the model has its own")
        if place is None:
            timed = [key for key in ("device_hours", "money", "energy", "days", "devices") if getattr(self, key)]
            if timed:
                how = "add --cluster dgx-h100 (see `scalewright presets clusters`)"
                raise UserError(f"--{timed[0].replace('_', '-')} needs a cluster", "budget", how)
            market = vars(self.market) | {key: getattr(self, key) for key in ("price", "currency", "goodput", "pue")}
            unused = [key for key, value in market.items() if value is not None]
            if unused:
                how = "add --cluster dgx-h100: without one there is no time, money or energy; or leave it out"
                raise UserError(f"--{unused[0]} needs a cluster", "budget", how)
        elif self.days is not None and self.devices is None and not amounts and not self.fixed:
            raise UserError("--days is given without devices", "budget", "add --devices 64")
        if self.law.counts == MIXTURE and self.model is None and "moe" not in shape_keys(self.like or FAMILY):
            raise UserError(f"{self.law.name} is a law of mixtures of experts", "--law", "add --like qwen3_moe")
        if self.seq_len < 2:
            raise UserError(f"seq_len is {self.seq_len}", "--seq-len", "give a length such as 4096")
        if self.loss is not None and self.law.form != "parametric":
            raise UserError(f"{self.law.name} has no loss that can be solved for", "--loss", "add --law besiroglu")


def given_keys(ask: Ask) -> Mapping[str, Any]:
    """What was given, by its key."""
    keys = (*AMOUNTS, "days", "params", "tokens", "serve", "unique", "devices")
    return {key: value for key in keys if (value := getattr(ask, key)) is not None}
