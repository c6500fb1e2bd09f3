"""A product whose rows depend on each other is noticed, and a model's weights keep their values."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from scalewright.serve.invariant import MOST, agree, join_products, multiplied, share_products, threads, turn_weights
from serve.schedules import model_of


def test_rows_that_depend_on_others_are_noticed() -> None:
    weight = torch.randn(48, 32, generator=torch.Generator().manual_seed(0)).t().contiguous().t()

    def by_number(x: Tensor) -> Tensor:
        """Sums in another order below 16 rows, as a library may."""
        halves = x[:, :16] @ weight[:, :16].t() + x[:, 16:] @ weight[:, 16:].t()
        return F.linear(x, weight) if len(x) >= 16 else halves

    def by_place(x: Tensor) -> Tensor:
        """The last row as the end of a loop over all."""
        out = F.linear(x, weight)
        return torch.cat([out[:-1], out[-1:] * (1 + 1e-7)]) if len(x) < MOST else out

    assert agree(lambda x: F.linear(x, weight), weight)
    assert not agree(by_number, weight)
    assert not agree(by_place, weight)


def test_values_stay_and_strides_come_back() -> None:
    model = model_of("tied")
    before = [weight.clone() for weight in multiplied(model)]
    undo = [turn_weights(model), join_products(model, 2), share_products(model, 2)]
    assert all(torch.equal(a, b) for a, b in zip(before, multiplied(model), strict=True))
    assert any(weight.stride(-1) != 1 for weight in multiplied(model))
    x = torch.randn(3, 32)
    shared = model.layers["0"].mlp.down(torch.randn(3, 48))
    assert shared.shape == (3, 32)
    for back in reversed(undo):
        back()
    assert all(weight.is_contiguous() for weight in multiplied(model))
    assert "forward" not in vars(model.layers["0"].mlp.down)
    assert model.layers["0"].mlp.joined is None
    assert torch.equal(model.layers["0"].attention.q(x), F.linear(x, model.layers["0"].attention.q.weight))


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
