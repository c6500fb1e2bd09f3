"""Matmul rates at the shapes that models have, in the three products of a linear layer.

forward          y = x W^T      [M,K][K,N]
input gradient   dx = dy W      [M,N][N,K]
weight gradient  dW = dy^T x    [N,M][M,K]        M tokens, K in, N out
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.gpu.budget import Check
from harness.gpu.clock import random_of, rate, sets_for, time_call
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec
from scalewright.spec.tensors import tensors

MODELS = ("llama-3.2-1b", "qwen2.5-0.5b", "llama-3.1-8b", "llama-3.2-3b")


def shapes(model: ModelSpec) -> dict[tuple[int, int], str]:
    """(out, in) of every distinct linear layer, the head's among them, and the first name that has it."""
    found: dict[tuple[int, int], str] = {}
    for tensor in tensors(model):
        if len(tensor.shape) == 2:
            name = "head" if tensor.shape[0] == model.vocab_size else tensor.name.removesuffix(".weight")
            found.setdefault((tensor.shape[0], tensor.shape[1]), name.removeprefix("layers.0."))
    return found


def gemm(check: Check) -> None:
    """TFLOP/s of every shape of some models, at 8,192 tokens, then at 32,768 while time lasts."""
    seconds = 0.01 if check.quick else 0.08
    for tokens in (64,) if check.quick else (8192, 32768):
        for name in ("tiny",) if check.quick else MODELS:
            for (rows, columns), layer in shapes(load_model_spec(name)).items():
                key = f"{name} {layer} [{columns} -> {rows}], {tokens} tokens"
                if not check.want(key, 2 * seconds):
                    continue
                with check.trying(key):
                    check.note(key, products(check.device, tokens, rows, columns, seconds))


def products(device: torch.device, tokens: int, rows: int, columns: int, seconds: float) -> dict[str, object]:
    """The three products' rates for M = tokens, N = rows, K = columns."""
    count = sets_for(device, 2.0 * (tokens * columns + rows * columns + tokens * rows))
    inputs = [
        (random_of(device, tokens, columns), random_of(device, rows, columns), random_of(device, tokens, rows))
        for _ in range(count)
    ]
    kinds: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        "forward": lambda x, w, dy: x @ w.t(),
        "input_gradient": lambda x, w, dy: dy @ w,
        "weight_gradient": lambda x, w, dy: dy.t() @ x,
    }
    flops = 2.0 * tokens * rows * columns
    return {
        kind: rate(flops, time_call([_bound(product, operand) for operand in inputs], device, seconds), 1e12)
        for kind, product in kinds.items()
    }


def _bound(
    product: Callable[[Tensor, Tensor, Tensor], Tensor], each: tuple[Tensor, Tensor, Tensor]
) -> Callable[[], Tensor]:
    return lambda: product(*each)
