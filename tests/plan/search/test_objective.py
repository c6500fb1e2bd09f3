"""The score that a search minimises: time, cost or energy of a step."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.plan.chips import chip_of
from scalewright.plan.cost.timeline import PARTS
from scalewright.plan.search.objective import make_objective, power
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster

H100 = chip_of(load_cluster("dgx-h100"))


def test_time_is_the_sum_of_the_parts() -> None:
    parts = {part: np.array([1.0, 2.0]) for part in PARTS}
    assert make_objective("time", H100, 8, None).score(parts) == pytest.approx([len(PARTS), 2 * len(PARTS)])


def test_energy_is_watts_times_seconds_and_waiting_draws_less() -> None:
    objective = make_objective("energy", H100, 8, None)
    watts, shares, assumed = power(H100)
    assert watts == 700
    assert objective.score({"compute": np.array([2.0])})[0] == pytest.approx(8 * 700 * 2.0)
    assert objective.score({"pp_bubble": np.array([2.0])})[0] == pytest.approx(8 * 700 * 2.0 * shares["bubble"])
    assert "700 W" in assumed[0]


def test_a_device_without_a_data_sheet_has_assumed_power() -> None:
    _, _, assumed = power(chip_of(load_cluster("tpu-v5p")))
    assert "assumed" in assumed[0]


@pytest.mark.parametrize("price", [0.0, -1.0, float("nan"), float("inf")])
def test_a_price_must_be_positive_and_finite(price: float) -> None:
    with pytest.raises(UserError, match="price is"):
        make_objective("cost", H100, 8, price)


def test_cost_of_a_step() -> None:
    objective = make_objective("cost", H100, 8, 3.6)
    assert objective.score({"compute": np.array([100.0])})[0] == pytest.approx(8 * 3.6 * 100 / 3600)
