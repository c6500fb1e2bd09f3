"""Attention backends: their rates forward and backward, the one that torch picks by itself, and a known trap.

FLOPs are those of the causal half: forward 2 B H S^2 K (two products of 2 B H S^2 K, halved), with the
backward 3.5 times that (five products more; Dao 2023, arXiv 2307.08691 §4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.gpu.budget import Check
from harness.gpu.clock import random_of, time_call
from harness.gpu.kernels import attention_backends, attention_kernels, kernels_of
from scalewright.model.attend import Scores
from scalewright.model.attention import fused_attention, ruled_attention
from scalewright.model.context import Rule
from scalewright.model.gpu_rows import has_varlen
from scalewright.model.visible import first_keys
from scalewright.parallel.inputs import packing_of

Picked = SDPBackend | None  # None: torch's own choice


def backends(device: torch.device) -> dict[str, Picked]:
    """Those that this device may have."""
    if device.type != "cuda":
        return {"torch's choice": None, "flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
    return {"torch's choice": None, "cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


@contextmanager
def using(backend: Picked) -> Iterator[None]:
    """Allows this backend alone; all of them for None."""
    if backend is None:
        yield
        return
    with sdpa_kernel(backend):
        yield


def attention(check: Check) -> None:
    """Rates of every backend at several lengths and head sizes, 4 query heads to a key head."""
    tokens = 256 if check.quick else 32768
    for length in (64,) if check.quick else (4096, 8192, 32768):
        for head, heads in ((16, 4),) if check.quick else ((64, 32), (128, 16)):
            for name, backend in backends(check.device).items():
                key = f"{name}, length {length}, head dim {head}"
                if not check.want(key):
                    continue
                with check.trying(key), using(backend):
                    q, k, v = heads_of(check.device, tokens // length, heads, length, head)
                    check.note(key, speed(check, q, k, v, None))
    key = "packed documents, as our model runs them"
    if not check.want(key):
        return
    with check.trying(key):
        length, heads, head = (64, 4, 16) if check.quick else (8192, 32, 64)
        q, k, v = heads_of(check.device, 1, heads, length, head)
        rule = documents(check.device, length)
        check.note(key, speed(check, q, k, v, rule))


def heads_of(device: torch.device, batch: int, heads: int, length: int, head: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v [B, H or H/4, S, K], random, with gradients."""
    shapes = [(batch, count, length, head) for count in (heads, heads // 4, heads // 4)]
    q, k, v = (random_of(device, *shape).requires_grad_() for shape in shapes)
    return q, k, v


def documents(device: torch.device, length: int) -> Rule:
    """Four documents of a row."""
    numbers = np.arange(length, dtype=np.int32)[None] // (length // 4)
    host = first_keys(torch.arange(length), torch.from_numpy(numbers))
    segments = packing_of(numbers, device).segments if device.type == "cuda" and has_varlen() else None
    return Rule(host.to(device), host, segments=segments)


def speed(check: Check, q: Tensor, k: Tensor, v: Tensor, rule: Rule | None) -> dict[str, Any]:
    """TFLOP/s forward and forward with backward, and the kernels that ran."""
    gradient = torch.randn_like(q)
    scale = q.shape[-1] ** -0.5

    def forward() -> Tensor:
        if rule is not None:
            return ruled_attention(q, k, v, rule, Scores(scale))
        return fused_attention(q, k, v, None, True, scale)

    def both() -> Any:
        return torch.autograd.grad(forward(), (q, k, v), gradient)

    def alone() -> Tensor:
        with torch.no_grad():
            return forward()

    batch, heads, length, head = q.shape
    flops = 2.0 * batch * heads * length * length * head
    seconds = 0.02 if check.quick else 0.2
    one, two = (time_call([run], check.device, seconds, least=5) for run in (alone, both))
    names = list(kernels_of(both, check.device))
    return {
        "forward_tflops": flops / one.median / 1e12,
        "forward_backward_tflops": 3.5 * flops / two.median / 1e12,
        "forward_s": one.dump(),
        "forward_backward_s": two.dump(),
        "backends_launched": attention_backends(names),
        "kernels": attention_kernels(names),
    }


def mask_trap(check: Check) -> None:
    """Gradients with an explicit mask, a length of 64 modulo 128, and scores near -180 must be finite.

    cuDNN's backward was reported to give NaN there on Hopper, by torch's own choice of backend
    (github.com/pytorch/pytorch/issues/196678). Each backend's error is against fp32 arithmetic.
    """
    length, head = 320, 128
    shape = (1, 8, length, head)
    base = random_of(check.device, *shape) * 0.1
    q, k, v = base + 4.0, random_of(check.device, *shape) * 0.1 - 4.0, random_of(check.device, *shape)
    gradient = random_of(check.device, *shape)
    mask = torch.ones(length, length, dtype=torch.bool, device=check.device).tril()[None, None]
    wanted = gradients(q.float(), k.float(), v.float(), gradient.float(), mask, plain)
    choices: dict[str, Picked] = dict(backends(check.device))
    choices["memory-efficient"] = SDPBackend.EFFICIENT_ATTENTION
    choices["math"] = SDPBackend.MATH
    for name, backend in choices.items():
        if not check.want(name):
            continue
        with check.trying(name), using(backend):
            found = gradients(q, k, v, gradient, mask, fused)
            errors = {
                letter: float((one.float() - other).norm() / other.norm())
                for letter, one, other in zip("qkv", found, wanted, strict=True)
            }
            finite = all(bool(entry.isfinite().all()) for entry in found)
            check.note(name, {"finite": finite, "relative_error_of_gradients": errors})


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """torch's."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """By the formula."""
    scores: Tensor = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


def gradients(
    q: Tensor, k: Tensor, v: Tensor, gradient: Tensor, mask: Tensor, core: Callable[..., Tensor]
) -> tuple[Tensor, ...]:
    """Of q, k and v."""
    inputs = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    return torch.autograd.grad(core(*inputs, mask), inputs, gradient)
