"""Batch and peak learning rate by size, as published fits have them: data/recipes.yaml.

    batch, lr = coefficient x C^flops x N^params x D^tokens x L^loss

They were found for one optimizer, schedule and corpus each, and differ twofold: beginnings for a sweep, not its end.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from scalewright.budget.laws import FOLDER
from scalewright.spec.base import read_yaml

USUAL = "step-law"  # the only one that has tokens and size apart, as over-trained models need it
MOST_RATE, LEAST_RATE = (
    6e-3,
    2e-5,
)  # AdamW's at 0.1M parameters, and at a trillion: the fits cross both outside their ranges
MOST_BATCH = 1.6e7  # tokens: Llama 3.1 405B's largest, and DeepSeek-V3's is 63M


@lru_cache(maxsize=1)
def _recipes() -> dict[str, dict[str, Any]]:
    recipes: dict[str, dict[str, Any]] = read_yaml(FOLDER / "recipes.yaml")
    return recipes


def recipes(params: float, non_embedding: float, tokens: float, loss: float | None) -> list[dict[str, Any]]:
    """Each fit's batch in tokens and learning rate (None: it has none), whether this is in its range, its source."""
    rows = []
    for name, recipe in _recipes().items():
        size = non_embedding if recipe["counts"] == "non-embedding" else params
        values = {"flops": 6 * size * tokens, "params": size, "tokens": tokens, "loss": loss}
        inside = all(low <= (values[key] or 0) <= high for key, (low, high) in recipe["range"].items())
        row = {"name": name, "inside": inside, "source": recipe["source"]}
        rows.append(row | {key: _power(recipe[key], values) if key in recipe else None for key in ("batch", "lr")})
    return rows


def _power(terms: dict[str, float], values: dict[str, float | None]) -> float | None:
    powers = {key: power for key, power in terms.items() if key != "coefficient"}
    if any(values[key] is None for key in powers):
        return None
    return float(terms["coefficient"] * math.prod((values[key] or 0.0) ** power for key, power in powers.items()))


def usual(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """The batch in tokens and the learning rate to begin with, within what anybody has run."""
    row = next(row for row in rows if row["name"] == USUAL)
    return min(row["batch"], MOST_BATCH), min(max(row["lr"], LEAST_RATE), MOST_RATE)
