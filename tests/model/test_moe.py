"""A mixture of experts against a loop over tokens, and routers against their formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from scalewright.model.mlp import hidden_units
from scalewright.model.moe import Experts, MoE
from scalewright.model.router import Router
from scalewright.spec.model import ModelSpec

KEYS: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4,
}  # fmt: skip
MIXTURE: dict[str, Any] = {"num_experts": 8, "top_k": 3, "moe_intermediate_size": 12}
CASES: dict[str, dict[str, Any]] = {
    "softmax": {},
    "softmax, not normalized": {"normalize_top_k": False, "routed_scale": 2.5},
    "softmax, biased": {"router_bias": True},
    "softmax, groups": {"groups": 4, "top_groups": 2},
    "sigmoid": {"score": "sigmoid"},
    "sigmoid, corrected, groups": {"score": "sigmoid", "router_bias": True, "groups": 2, "top_groups": 1},
    "weighed on the way in": {"score": "sigmoid", "normalize_top_k": False, "weigh_input": True},
    "shared experts": {"num_shared_experts": 2},
    "shared expert behind a gate": {"num_shared_experts": 1, "shared_gate": True, "shared_intermediate_size": 20},
}


def make(mixture: dict[str, Any], **keys: Any) -> MoE:
    """A mixture with wide random weights, biases too."""
    spec = ModelSpec.parse({**KEYS, "moe": {**MIXTURE, **mixture}, **keys})
    moe = MoE(spec)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in moe.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.5)
    return moe


def chosen(router: Router, row: Tensor) -> dict[int, float]:
    """A token's experts and weights, step by step."""
    moe, bias = router.moe, router.bias
    logits = router.weight @ row
    if moe.score == "softmax":
        scores = torch.softmax(logits if bias is None else logits + bias, dim=0)
        ranked = scores
    else:
        scores = torch.sigmoid(logits)
        ranked = scores if bias is None else scores + bias
    size = moe.num_experts // moe.groups
    best = 1 if moe.score == "softmax" else 2
    values = [sum(sorted(ranked[g * size : (g + 1) * size].tolist())[-best:]) for g in range(moe.groups)]
    groups = sorted(range(moe.groups), key=lambda g: -values[g])[: moe.top_groups]
    allowed = [e for e in range(moe.num_experts) if moe.groups == 1 or e // size in groups]
    experts = sorted(allowed, key=lambda e: -float(ranked[e]))[: moe.top_k]
    total = sum(float(scores[e]) for e in experts) if moe.normalize_top_k else 1.0
    return {e: float(scores[e]) / total * moe.routed_scale for e in experts}


def one_expert(experts: Experts, number: int, row: Tensor) -> Tensor:
    """What an expert does to one token."""
    parts = {name: getattr(experts, name) for name in ("gate", "up", "down")}
    linear = {name: part.weight[number] for name, part in parts.items() if part is not None}
    biases = {name: 0.0 if part.bias is None else part.bias[number] for name, part in parts.items() if part}
    up = linear["up"] @ row + biases["up"]
    gate = linear["gate"] @ row + biases["gate"]
    if experts.kind == "swiglu_clamped":
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        hidden = (up + 1) * gate * torch.sigmoid(1.702 * gate)
    else:
        hidden = torch.nn.functional.silu(gate) * up
    return linear["down"] @ hidden + biases["down"]


def by_token(moe: MoE, row: Tensor, weights: dict[int, Any]) -> Tensor:
    """What the mixture gives for a token, expert by expert."""
    if moe.weigh_input:
        out = sum(one_expert(moe.experts, expert, weight * row) for expert, weight in weights.items())
    else:
        out = sum(weight * one_expert(moe.experts, expert, row) for expert, weight in weights.items())
    if moe.shared is not None:
        gate = 1.0 if moe.shared_gate is None else torch.sigmoid(moe.shared_gate(row))
        out = out + gate * moe.shared(row)
    assert isinstance(out, Tensor)
    return out


@pytest.mark.parametrize("keys", [{}, {"mlp_bias": True}, {"mlp_bias": True, "mlp_type": "swiglu_clamped"}], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_mixture_is_what_a_loop_over_its_tokens_gives(name: str, keys: dict[str, Any]) -> None:
    moe = make(CASES[name], **keys)
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
    out = moe(x)
    for row, result in zip(x.flatten(0, 1), out.flatten(0, 1), strict=True):
        expected = by_token(moe, row, chosen(moe.router, row))
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)  # fp32, sums in another order


def test_every_token_arrives_and_experts_without_tokens_have_zero_gradients() -> None:
    moe = make({"score": "sigmoid", "router_bias": True})
    with torch.no_grad():  # all tokens to experts 0, 1 and 2
        moe.router.bias.copy_(torch.tensor([9.0, 8.0, 7.0, 0, 0, 0, 0, 0]))
    rows = torch.randn(7, 16)
    choice = moe.router(rows)
    assert choice.counts.tolist() == [7, 7, 7, 0, 0, 0, 0, 0]
    moe(rows[None]).sum().backward()
    for stack in (moe.experts.gate, moe.experts.up, moe.experts.down):
        assert stack.weight.grad[:3].abs().amax(dim=(1, 2)).min() > 0
        assert not stack.weight.grad[3:].any()


def test_a_correction_bias_chooses_and_doesnt_weigh() -> None:
    """DeepSeek-V3 eq. 16: it takes part in the choice alone, and has no gradient."""
    moe = make({"score": "sigmoid", "router_bias": True, "top_k": 8})
    rows = torch.randn(5, 16)
    before = moe.router(rows)
    with torch.no_grad():
        moe.router.bias.add_(torch.arange(8.0))
    after = moe.router(rows)
    order = lambda choice: choice.weights.gather(1, choice.experts.argsort(dim=1))  # noqa: E731
    torch.testing.assert_close(order(before), order(after))
    assert not moe.router.bias.requires_grad


def test_a_weight_of_the_input_gives_the_router_its_gradient() -> None:
    """Through the expert, f(w x): the router's weights and x get what autograd of the loop gives them."""
    moe = make({"score": "sigmoid", "normalize_top_k": False, "weigh_input": True, "top_k": 1})
    x = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
    wanted = [moe.router.weight, moe.experts.gate.weight, x]  # type: ignore[union-attr]
    found = torch.autograd.grad(moe(x).square().sum(), wanted)
    total = torch.zeros(())
    for row in x[0]:
        scores = torch.sigmoid(moe.router.weight @ row)
        best = int(scores.argmax())
        total = total + by_token(moe, row, {best: scores[best]}).square().sum()
    for gradient, expected in zip(found, torch.autograd.grad(total, wanted), strict=True):
        assert expected.abs().max() > 0.01
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)  # fp32, sums in another order


def test_a_weight_of_the_input_is_another_function_than_one_of_the_output() -> None:
    keys = {"score": "sigmoid", "normalize_top_k": False}
    x = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(2))
    before, after = make({**keys, "weigh_input": True}), make(keys)
    assert (before(x) - after(x)).abs().max() > 0.01


def test_clamped_units_are_the_formula_and_have_no_gradient_beyond_their_clamps() -> None:
    gate = torch.tensor([-9.0, -1.0, 0.5, 6.9, 7.5, 30.0], requires_grad=True)
    up = torch.tensor([8.0, 0.3, -0.7, -7.5, 2.0, -30.0], requires_grad=True)
    units = hidden_units("swiglu_clamped", gate, up)
    g, u = gate.detach().clamp(max=7.0), up.detach().clamp(-7.0, 7.0)
    torch.testing.assert_close(units.detach(), g * torch.sigmoid(1.702 * g) * (u + 1))
    units.sum().backward()
    assert (gate.grad == 0).tolist() == [False, False, False, False, True, True]
    assert (up.grad == 0).tolist() == [True, False, False, True, False, True]
