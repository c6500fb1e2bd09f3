"""Training and serving in money: as in FLOPs where all cost the same, a smaller model where serving is dearer."""

from __future__ import annotations

import pytest

import scalewright as sw
from scalewright.budget.laws import find_law
from scalewright.budget.serve import serve, serve_in_money
from scalewright.spec.prices import Band

SERVED = 2e12


def money(dear: float) -> dict:
    """10B parameters at the best length: a FLOP of training costs 1e-18, one of serving `dear` times that."""
    law = find_law("besiroglu")
    size, tokens = 1e10, law.tokens(1e10)
    price = 1e-18 * law.k * size * tokens
    found = serve_in_money(
        law, size, tokens, SERVED, Band(price / 2, price, 2 * price),
        lambda params: None if params > 1.5e10 else Band(*(2e-12 * dear * params * part for part in (0.5, 1, 2))),
    )  # fmt: skip
    assert found is not None
    return found


def test_at_one_price_of_a_flop_it_is_the_answer_in_flops() -> None:
    law = find_law("besiroglu")
    flops, priced = serve(law, 1e10, law.tokens(1e10), SERVED), money(1.0)
    assert priced["weight"] == pytest.approx(1.0)
    assert priced["best"]["params"] == pytest.approx(flops["params"], rel=0.01)  # both on grids
    assert priced["best"]["tokens"] == pytest.approx(flops["train_tokens"], rel=0.01)
    assert 1 - priced["saves"] == pytest.approx(flops["ratio"], rel=1e-3)
    total = priced["best"]["total"]
    assert total["p10"] == pytest.approx(total["p50"] / 2)
    assert total["p90"] == pytest.approx(total["p50"] * 2)


def test_dearer_serving_asks_for_a_smaller_model_that_saves_more() -> None:
    sizes, gains = zip(
        *((found["best"]["params"], found["saves"]) for found in map(money, (0.3, 1.0, 3.0))), strict=True
    )
    assert sizes == tuple(sorted(sizes, reverse=True))
    assert gains == tuple(sorted(gains))


def test_the_price_of_serving_is_the_inference_planner_s() -> None:
    answer = sw.budget(params=8e9, tokens=1e12, cluster="dgx-h100", devices=64, price=2.0, serve=SERVED)
    bill = answer["serve"]["money"]
    served = sw.inference("llama-3-8b", "dgx-h100", 1024, 256, ttft_s=2, tpot_s=0.05, price=2.0, search=True)
    assert bill["optimum"]["per_million"]["p50"] == pytest.approx(served["cost_per_million"]["all"])
    assert bill["optimum"]["train"] == answer["total"]["cost"]
    assert bill["best"]["total"]["p50"] < bill["optimum"]["total"]["p50"]
    assert "in USD: " in str(answer)
    assert sw.budget(flops=1e21, serve=SERVED)["serve"]["money"] is None
