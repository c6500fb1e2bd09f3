"""The model on a GPU is the model on a CPU: logits, greedy tokens, attention and its gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from devices import DEVICES
from model.tiny_specs import SPECS, make, tokens
from scalewright.model.attend import Scores
from scalewright.model.attention import fused_attention, ruled_attention
from scalewright.model.context import Rule
from scalewright.model.visible import first_keys, is_visible
from scalewright.parallel.inputs import packing_of
from scalewright.serve.generate import generate

# Attention against the formula in fp32: bf16 inputs and outputs round to 0.4%, sums stay in fp32 inside.
ERROR = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("device", DEVICES)
def test_logits_are_the_cpus(device: str, name: str) -> None:
    """Other kernels sum in other orders: 1e-4 on logits of order 1 to 10."""
    model, ids = make(name), tokens()
    documents = (torch.arange(ids.shape[1]) // 10)[None].expand(len(ids), -1).contiguous()
    with torch.no_grad():
        wanted = [model(ids), model(ids, documents=documents)]
        model.to(device)
        ids, there = ids.to(device), documents.to(device)
        packing = packing_of(documents.numpy(), torch.device(device))
        found = [model(ids), model(ids, documents=there), model(ids, documents=there, packing=packing)]
    for one, other in zip(found, [*wanted, wanted[1]], strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "bloom", "gemma2"])
@pytest.mark.parametrize("device", DEVICES)
def test_greedy_tokens_are_the_cpus(device: str, name: str) -> None:
    """With the cache, from prompts of different lengths."""
    model, prompts = make(name).eval(), [[1, 2, 3, 4, 5], [7, 8]]
    wanted = generate(model, prompts, max_new_tokens=12, temperature=0.0)
    assert generate(model.to(device), prompts, max_new_tokens=12, temperature=0.0) == wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kv_heads", [8, 2])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_attention_is_its_formula(device: str, packed: bool, kv_heads: int, dtype: torch.dtype) -> None:
    """Forward and all three gradients, of one document and of three, at a length no tile divides."""
    torch.manual_seed(0)
    length = 200
    q, k, v = (torch.randn(2, n, length, 64, device=device).to(dtype) for n in (8, kv_heads, kv_heads))
    compare(q, k, v, documents_of(2, length, device) if packed else None, ERROR[dtype])


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_finite_where_all_scores_are_low(device: str) -> None:
    """Documents, a length of 64 modulo 128, scores near -180: one library's backward was reported to give
    NaN here on Hopper, by torch's own choice of backend (github.com/pytorch/pytorch/issues/196678)."""
    torch.manual_seed(0)
    length = 320
    q, k, v = (torch.randn(1, 8, length, 128, device=device).mul(0.1) for _ in range(3))
    q, k, v = (q + 4).bfloat16(), (k - 4).bfloat16(), v.bfloat16()
    found = with_gradients(q, k, v, documents_of(1, length, device))
    assert all(bool(tensor.isfinite().all()) for tensor in found)


def compare(q: Tensor, k: Tensor, v: Tensor, rule: Rule | None, allowed: float) -> None:
    """Ours against the formula in fp32: output, dq, dk, dv, each by the norm of its error."""
    wanted = with_gradients(q.float(), k.float(), v.float(), rule, formula=True)
    for name, one, other in zip(("out", "dq", "dk", "dv"), with_gradients(q, k, v, rule), wanted, strict=True):
        error = float((one.float() - other).norm() / other.norm())
        assert error < allowed, f"{name}: {error}"


def with_gradients(q: Tensor, k: Tensor, v: Tensor, rule: Rule | None, formula: bool = False) -> list[Tensor]:
    """The output, and the gradients for a fixed random one of it."""
    inputs = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    if formula:
        out = by_formula(*inputs, rule)
    elif rule is not None:
        out = ruled_attention(*inputs, rule, Scores(q.shape[-1] ** -0.5))
    else:
        out = fused_attention(*inputs, None, causal=True, scale=q.shape[-1] ** -0.5)
    generator = torch.Generator().manual_seed(1)
    slope = torch.randn(out.shape, generator=generator).to(out.device, out.dtype)
    return [out.detach(), *torch.autograd.grad(out, inputs, slope)]


def by_formula(q: Tensor, k: Tensor, v: Tensor, rule: Rule | None) -> Tensor:
    """softmax(q k^T / sqrt(K)) v."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    length = q.shape[2]
    index = torch.arange(length, device=q.device)
    visible = is_visible(index, index, first_keys(index) if rule is None else rule.first)
    scores: Tensor = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return scores.masked_fill(~visible, float("-inf")).softmax(-1) @ v


def documents_of(rows: int, length: int, device: str) -> Rule:
    """Three documents in each row, and a rest."""
    numbers = np.arange(length, dtype=np.int32)[None] // (length // 3)
    host = first_keys(torch.arange(length), torch.from_numpy(numbers))
    segments = packing_of(numbers.repeat(rows, 0), torch.device(device)).segments
    return Rule(host.to(device), host, segments=segments)
