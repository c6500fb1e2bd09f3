"""A price is stated or looked up, not both; a currency is of a stated one."""

from __future__ import annotations

import pytest

import scalewright as sw
from scalewright.spec.errors import UserError


@pytest.mark.parametrize(
    ("paid", "why"),
    [
        ({"currency": "EUR"}, "currency is given without a price"),
        ({"price": 2.0, "prices": "/nosuch.yaml"}, "--price and --prices are both given"),
        ({"price": 2.0, "cloud": "aws"}, "--price and --cloud are both given"),
        ({"price": -1.0}, "price is -1"),
        ({"price": 0.0}, "price is 0"),
        ({"price": 2.0, "currency": "XXX"}, "currency is 'XXX'"),
        ({"price": 2.0, "currency": "EU"}, "currency is 'EU'"),
    ],
)
def test_a_price_is_stated_once(paid, why):
    with pytest.raises(UserError, match=why):
        sw.inference("llama-3.1-8b", "h100-sxm", explain=False, **paid)


def test_a_stated_price_has_its_currency():
    got = sw.inference("llama-3.1-8b", "h100-sxm", explain=False, price=2.0, currency="eur")
    assert (got["cost_per_million"]["currency"], got["cost_per_million"]["price_per_device_hour"]) == ("EUR", 2.0)
