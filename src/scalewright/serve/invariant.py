"""Products whose rows don't depend on each other: a request gets the same bits whatever is computed beside it.

    y = x W^T, x [M, in]        row i of y should be a function of row i of x, bit by bit, for every M

A product's library chooses its order of sums by M. Measured here (MKL of torch 2.13, AVX-512, fp32; 13 shapes, one
thread): with W stored as [out, in] a row's bits change below 16 rows; with it stored as [in, out] they are the same
from 2 to 128 rows, and a product of 2 rows is about as fast as one of 1. So weights are stored that way (their shapes
stay, their strides change), and a forward has 2 to 128 rows. The last of them are padding, 32 numbers or more: the end
of a vector loop over all rows (SiLU, sigmoid) is computed number by number, by other instructions, and lies there.

What a library does on another machine isn't promised by anybody, so `agrees` tries it, with the model's own shapes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scalewright.model.decoder import Decoder, Head
from scalewright.model.latent_attention import LatentAttention
from scalewright.model.moe import Experts, Stack
from scalewright.model.router import Router

MOST = 128  # rows of a forward, the padding included
TAIL = 32  # numbers that a vector loop may leave to be computed one by one: two vectors
LEAST_OF_BATCHES = 4  # rows with latent attention: smaller products of small heads are made by other code
TRIED = (2, 3, 4, 7, 16, 17, 33, 64, 100, 127)


def turn_weights(model: nn.Module) -> Callable[[], None]:
    """Stores matrices as [in, out], in place, and gives every expert 2 rows or none; returns what undoes it."""
    changed = list(multiplied(model))
    experts = [module for module in model.modules() if isinstance(module, Experts)]
    latents = [module for module in model.modules() if isinstance(module, LatentAttention)]
    for weight in changed:
        weight.data = weight.data.transpose(-1, -2).contiguous().transpose(-1, -2)
    for module in experts:
        module.least_rows = 2
    for latent in latents:
        to_key, to_value = (half.detach().contiguous() for half in latent.to_heads())
        latent.halves = to_key, to_value

    def undo() -> None:
        for weight in changed:
            weight.data = weight.data.contiguous()
        for module in experts:
            module.least_rows = 0
        for latent in latents:
            latent.halves = None

    return undo


def padding(model: Decoder) -> int:
    """Rows of padding that a forward ends with."""
    moe = model.spec.moe
    return -(-TAIL // min(TAIL, moe.num_experts if moe is not None else TAIL))  # a router's scores are narrow


def padded_rows(model: Decoder, tokens: int) -> int:
    """The rows of a forward of so many tokens."""
    return max(tokens + padding(model), 2 if model.spec.mla is None else LEAST_OF_BATCHES)


def multiplied(model: nn.Module) -> list[Tensor]:
    """The matrices that the model multiplies with: its embedding, too, where the head is tied to it."""
    modules = [module for module in model.modules() if isinstance(module, nn.Linear | Stack | Head | Router)]
    weights = [module.weight for module in modules if module.weight is not None]
    if isinstance(model, Decoder) and model.embed is not None and (model.head is None or model.head.weight is None):
        weights.append(model.embed.weight)
    return weights


def matrices(model: nn.Module) -> dict[tuple[int, ...], Tensor]:
    """One matrix [out, in] of each shape that the model multiplies with."""
    shapes: dict[tuple[int, ...], Tensor] = {}
    for weight in multiplied(model):
        matrix = weight[0] if weight.dim() == 3 else weight
        shapes.setdefault((*matrix.shape, *matrix.stride()), matrix)
    return shapes


@torch.inference_mode()
def agrees(model: nn.Module) -> bool:
    """Whether each row of the model's products has the same bits alone and among others, on this machine."""
    generator = torch.Generator().manual_seed(0)
    for matrix in matrices(model).values():
        if matrix.device.type != "cpu":
            return False
        x = torch.randn(MOST, matrix.shape[1], generator=generator).to(matrix.dtype)
        whole = F.linear(x, matrix)
        for rows in TRIED:
            if not torch.equal(F.linear(x[MOST - rows :], matrix), whole[MOST - rows :]):
                return False
    for module in model.modules():
        if isinstance(module, LatentAttention) and module.halves is not None:
            return all(_batches_agree(half, generator) for half in module.halves)
    return True


def _batches_agree(matrices: Tensor, generator: torch.Generator) -> bool:
    """The same for a product of every head's rows [H, M, in] with its own matrix [H, in, out]."""
    x = torch.randn(matrices.shape[0], MOST, matrices.shape[1], generator=generator).to(matrices.dtype)
    whole = x @ matrices
    return all(torch.equal(x[:, MOST - m :] @ matrices, whole[:, MOST - m :]) for m in TRIED if m >= LEAST_OF_BATCHES)


@contextlib.contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Computes with so many threads inside; None: as before."""
    before = torch.get_num_threads()
    if number is None or number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
