"""Scaling laws: the best size and tokens for FLOPs, and the loss of a size and its tokens.

    C = k N D                                     k = 6: two FLOPs a parameter forward, four backward
    L(N, D) = E + A / N^alpha + B / D^beta        parametric laws: alpha A / N^alpha = beta B / D^beta at the optimum
    N(C) = G (C / k)^(beta / (alpha + beta)),     G = (alpha A / (beta B))^(1 / (alpha + beta))
    D' = U + U R (1 - e^((1 - D / U) / R))        worth of D tokens of which U are unique, R = 15.39
    N' = V + V R (1 - e^((1 - N / V) / R))        and of N parameters, V the best size for U tokens, R = 5.31

Repeats are Muennighoff et al. 2023 (arXiv 2305.16264, equations 5 to 7): a token that is read again teaches less, and
so does a parameter beyond those that the unique tokens call for. Their constants serve the other laws, too.

N is counted as each law's paper did (`counts`), tokens are its tokenizer's, and its loss is per such token on its
corpus: losses of two laws can't be compared. The laws themselves are data/laws.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scalewright.spec.base import read_yaml
from scalewright.spec.errors import UserError, unknown

FOLDER = Path(__file__).parent / "data"
USUAL = "besiroglu"
# A fit up to 412M parameters missed its 1.4B by 0.4 to 1.5% and its 6.9B, 2.4 decades of FLOPs beyond, by 3 to 8%
# (Gadre et al.'s runs, fitted again): a band of 1.5% inside, and 2% more for each decade beyond.
INSIDE, A_DECADE = 0.015, 0.02
MANY = 1e30  # tokens: more change nothing


@dataclass(frozen=True)
class Law:
    """One law; `params` of its methods are in its own count, and arrays do as well as numbers."""

    name: str
    title: str
    form: Literal["parametric", "power", "table", "ratio"]
    counts: str
    tokenizer: str
    corpus: str
    range: Mapping[str, Sequence[float]]
    source: str
    why: str = ""  # where it stands apart
    spread: bool = False
    k: float = 6.0
    band: float = INSIDE
    constants: Mapping[str, float] = field(default_factory=dict)
    log_constants: Mapping[str, float] = field(default_factory=dict)
    repeats: Mapping[str, float] = field(default_factory=dict)
    rows: Sequence[Sequence[float]] = ()
    of: Literal["params", "tokens"] = "tokens"
    size: float = 0.0
    flops: float = 1.0
    exponent: float = 0.0
    ratio: float = 0.0
    loss: Mapping[str, float] = field(default_factory=dict)  # Kaplan's form
    loss_of_flops: Mapping[str, float] = field(default_factory=dict)

    @property
    def fit(self) -> tuple[float, float, float, float, float]:
        """E, A, B, alpha, beta of a parametric law; Gadre's a, b, eta are the same with both exponents 2 eta."""
        c = dict(self.constants)
        if "eta" in c:
            shrunk = 6 ** -c["eta"]
            return c["E"], c["a"] * shrunk, c["b"] * shrunk, 2 * c["eta"], 2 * c["eta"]
        c |= {name: math.exp(value) for name, value in self.log_constants.items()}
        return c["E"], c["A"], c["B"], c["alpha"], c["beta"]

    def optimum(self, flops: float) -> tuple[float, float]:
        """The best (parameters, tokens) for these FLOPs."""
        if self.form == "parametric":
            _, a, b, alpha, beta = self.fit
            params = (alpha * a / (beta * b)) ** (1 / (alpha + beta)) * (flops / self.k) ** (beta / (alpha + beta))
        elif self.form == "ratio":
            params = math.sqrt(flops / (self.k * self.ratio))
        elif self.form == "table":
            params = along(flops, [row[1] for row in self.rows], [row[0] for row in self.rows])
        else:
            size = self.size * (flops / self.flops) ** self.exponent
            params = size if self.of == "params" else flops / (self.k * size)
        return params, flops / (self.k * params)

    def tokens(self, params: float) -> float:
        """The tokens for which this size is the best."""
        if self.form == "parametric":
            _, a, b, alpha, beta = self.fit
            return float((beta * b / (alpha * a) * params**alpha) ** (1 / beta))
        if self.form == "table":
            return along(params, [row[0] for row in self.rows], [row[2] for row in self.rows])
        return self.optimum(solve(lambda flops: self.optimum(flops)[0], params))[1]

    def params(self, tokens: Any) -> Any:
        """The size for which so many tokens are the best."""
        if self.form == "parametric":
            _, a, b, alpha, beta = self.fit
            return (alpha * a / (beta * b) * tokens**beta) ** (1 / alpha)
        if self.form == "table":
            return along(tokens, [row[2] for row in self.rows], [row[0] for row in self.rows])
        return self.optimum(solve(lambda flops: self.optimum(flops)[1], tokens))[0]

    def predict(self, params: Any, tokens: Any, unique: float | None = None) -> Any:
        """The loss in nats a token; None of a law that has none. `unique`: tokens that aren't repeats."""
        worth = tokens
        if unique is not None:
            params, worth = self.worth(params, tokens, unique)
        if self.form == "parametric":
            e, a, b, alpha, beta = self.fit
            return e + a / params**alpha + b / worth**beta
        if self.loss:
            c = self.loss
            return ((c["n"] / params) ** (c["alpha"] / c["beta"]) + c["d"] / worth) ** c["beta"]
        if self.loss_of_flops:
            c = self.loss_of_flops
            return (self.k * params * worth / c["flops"]) ** -c["exponent"] + c["E"]
        return None

    def worth(self, params: Any, tokens: Any, unique: float) -> tuple[Any, Any]:
        """(parameters, tokens) that are worth as much with new tokens alone, where only so many are unique."""
        decay = find_law("muennighoff").repeats
        called_for = np.minimum(params, self.params(unique))
        fewer = np.where(tokens > unique, worth_of(params, called_for, decay["params"]), params)
        return fewer, worth_of(tokens, unique, decay["tokens"])

    def best(self, flops: float, unique: float | None = None) -> tuple[float, float]:
        """The best (parameters, tokens) for these FLOPs where only so many tokens are unique."""
        params, tokens = self.optimum(flops)
        if unique is None or tokens <= unique or self.form != "parametric":
            return params, tokens
        grid = params * np.exp(np.linspace(-4, 6, 4001))
        params = float(grid[np.argmin(self.predict(grid, flops / (self.k * grid), unique))])
        return params, flops / (self.k * params)

    def error(self, params: float, tokens: float) -> float:
        """The relative error of a predicted loss: the law's own inside its range, more for each decade beyond it."""
        low, high = self.range["flops"]
        flops = self.k * params * tokens
        return self.band + A_DECADE * max(0.0, math.log10(flops / high), math.log10(low / flops))

    def inside(self, params: float, flops: float) -> bool:
        """Whether runs of this size and these FLOPs were among those that it was fitted to."""
        return all(
            low <= value <= high for value, (low, high) in zip((params, flops), self.range.values(), strict=True)
        )


def worth_of(number: Any, unique: Any, decay: float) -> Any:
    """What `number` tokens are worth of which `unique` are seen first, the rest repeats; parameters likewise."""
    again = np.maximum(number / unique - 1, 0.0)
    return np.minimum(unique, number) + unique * decay * (1 - np.exp(-again / decay))


def along(value: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """A table's value between its rows, and beyond them by its last two, in logarithms."""
    x, y, at = np.log(xs), np.log(ys), math.log(value)
    i = int(np.clip(np.searchsorted(x, at) - 1, 0, len(x) - 2))
    return float(np.exp(y[i] + (y[i + 1] - y[i]) / (x[i + 1] - x[i]) * (at - x[i])))


def solve(function: Callable[[float], float], wanted: float, low: float = 1e3, high: float = 1e40) -> float:
    """Where a function that grows or falls all the way has this value, by halving its logarithm; an end if nowhere."""
    a, b, rising = math.log(low), math.log(high), function(high) > function(low)
    for _ in range(200):
        middle = (a + b) / 2
        if (function(math.exp(middle)) < wanted) == rising:
            a = middle
        else:
            b = middle
    return math.exp((a + b) / 2)


@lru_cache(maxsize=1)
def laws() -> dict[str, Law]:
    """Every law by its name."""
    return {name: Law(name=name, **keys) for name, keys in read_yaml(FOLDER / "laws.yaml").items()}


def find_law(name: str | None) -> Law:
    """The law of this name; the usual one for `all` or none. Raises UserError."""
    key = (USUAL if name in (None, "all") else str(name)).lower()
    if key not in laws():
        raise unknown("law", key, laws(), "--law")
    return laws()[key]


def tokens_for_loss(law: Law, params: float, loss: float, unique: float | None = None) -> float:
    """The tokens with which a parametric law's model of this size reaches a loss. Raises UserError where none do."""
    e, a, b, alpha, beta = law.fit
    least = e + a / params**alpha if unique is None else float(law.predict(params, MANY, unique))
    if loss <= least:
        of = "" if unique is None else f" on {unique:.3g} unique tokens"
        how = f"the lowest that {law.name} has for it{of} is {least:.3f}; give a larger size or a higher loss"
        raise UserError(f"no number of tokens brings {params:.3g} parameters to a loss of {loss:g}", "--loss", how)
    tokens = float((b / (loss - e - a / params**alpha)) ** (1 / beta))
    if unique is None or tokens <= unique:
        return tokens
    return solve(lambda tokens: float(law.predict(params, tokens, unique)), loss, tokens / 2)
