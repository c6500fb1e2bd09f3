"""Values are cut at commas outside brackets; every combination has a label that a folder can have."""

from __future__ import annotations

import re

import pytest

from scalewright.spec.errors import UserError
from scalewright.spec.sweep import read_sweep, split_values


def test_values_in_brackets_and_quotes_stay_whole() -> None:
    assert split_values("1e-4, 3e-4") == ["1e-4", "3e-4"]
    assert split_values("[0.9,0.95],[0.9,0.99]") == ["[0.9,0.95]", "[0.9,0.99]"]
    assert split_values("{every: 2},none,'a,b'") == ["{every: 2}", "none", "'a,b'"]


def test_product_labels_and_shared_overrides() -> None:
    fixed, points = read_sweep(["optimizer.lr=1e-4,3e-4", "train.steps=5", "layout.tp=1,2"])
    assert fixed == ["train.steps=5"]
    assert [point.label for point in points] == ["lr-1e-4_tp-1", "lr-1e-4_tp-2", "lr-3e-4_tp-1", "lr-3e-4_tp-2"]
    assert points[1].overrides == ["optimizer.lr=1e-4", "layout.tp=2"]


def test_labels_are_names_and_never_the_same() -> None:
    _, points = read_sweep(["a.path=x/y,x y,../z", "b.path=1,2"])
    labels = [point.label for point in points]
    assert len(set(labels)) == 6
    assert all(re.fullmatch(r"[\w.\-]+", label) for label in labels)
    assert labels[0].startswith("a.path-x-y_b.path-1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["optimizer.lr=1e-4"], "no key has more than one value"),
        (["optimizer.lr=1e-4,,3e-4"], "an empty value"),
        (["lr"], "is not a key with values"),
        (["a=1,2", "a=3,4"], "given twice"),
        (["out_dir=a,b"], "'out_dir' can't be swept"),
        (["seed=1,2", "name=a,b"], "'name' can't be swept"),
    ],
)
def test_mistakes(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_sweep(arguments)
