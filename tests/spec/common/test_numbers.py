"""Numbers as people write them, and those that nobody should read."""

from __future__ import annotations

import pytest

from scalewright.spec.common.numbers import number_of


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.5T", 1.5e12),
        ("250,000", 250_000),
        ("1,000,000", 1e6),
        ("1,234.5k", 1_234_500),
        ("10_000", 10_000),
        ("4e6", 4e6),
    ],
)
def test_thousands_have_three_digits(text: str, number: float) -> None:
    assert number_of(text, "tokens") == number


@pytest.mark.parametrize("text", ["1,5T", "0,1B", "3,50", "1,5e12", "1,00,000", "1.5,5", "12,34,567", "1234,567"])
def test_a_decimal_comma_is_no_number(text: str) -> None:
    assert number_of(text, "tokens") is None
