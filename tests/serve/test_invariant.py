"""A product whose rows depend on each other is noticed, and a model's weights keep their values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scalewright.serve.batches import hidden_agree
from scalewright.serve.invariant import MOST, agree, threads, turn_weights
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


@pytest.mark.parametrize("name", ["tied", "llama", "latent", "mixture"])
def test_values_stay_and_strides_come_back(name: str) -> None:
    model = model_of(name)
    before, tokens = {key: value.clone() for key, value in model.state_dict().items()}, torch.arange(9)[None]
    with torch.inference_mode():
        plain = model(tokens)
        undo = turn_weights(model, 2)
        assert (model(tokens) - plain).abs().max() < 1e-5  # fp32, logits of about 1
    assert "forward" in vars(model.get_submodule("layers.0.attention.o"))
    assert not any(isinstance(module, nn.Linear) and module.weight.numel() for module in model.modules())
    undo()
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
        assert value.is_contiguous()
    assert not any("forward" in vars(module) or getattr(module, "joined", None) for module in model.modules())


@pytest.mark.parametrize("name", ["llama", "latent", "tied"])
def test_hidden_keys_change_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where they do, as in a kernel that sums from the end, it is noticed."""
    model, real = model_of(name), F.scaled_dot_product_attention
    assert hidden_agree(model)

    def by_length(q: Tensor, k: Tensor, v: Tensor, **keys: Any) -> Tensor:
        return real(q, k, v, **keys) * (1 + 1e-7 * (k.shape[2] > 300))

    monkeypatch.setattr(F, "scaled_dot_product_attention", by_length)
    assert not hidden_agree(model)


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
