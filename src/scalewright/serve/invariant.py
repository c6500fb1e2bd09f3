"""Products whose rows don't depend on each other: a request gets the same bits whatever is computed beside it.

    y = x W^T, x [M, in]        row i of y should be a function of row i of x, bit by bit, for every M

A product's library chooses its order of sums by M. Measured here (MKL of torch 2.13, AVX-512, fp32; 13 shapes, one
thread): with W stored as [out, in] a row's bits change below 16 rows; with it stored as [in, out] they are the same
from 2 to 128 rows, and a product of 2 rows is about as fast as one of 1. So weights are stored that way (their shapes
stay, their strides change), a forward has 2 to 128 rows, and the last of them is padding: where a vector loop's end is
computed one by one, by other instructions, it is in that row.

What a library does on another machine isn't promised by anybody, so `agrees` tries it, with the model's own shapes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scalewright.model.decoder import Decoder, Head
from scalewright.model.moe import Experts, Stack

MOST = 128  # rows of a forward, the padding included
TRIED = (2, 3, 7, 16, 17, 33, 64, 100, 127)


def turn_weights(model: nn.Module) -> Callable[[], None]:
    """Stores matrices as [in, out], in place, and gives every expert 2 rows or none; returns what undoes it."""
    changed = [(module, module.weight.data) for module in multiplied(model)]
    experts = [module for module in model.modules() if isinstance(module, Experts)]
    for module, weight in changed:
        module.weight.data = weight.transpose(-1, -2).contiguous().transpose(-1, -2)
    for module in experts:
        module.least_rows = 2

    def undo() -> None:
        for module, _ in changed:
            module.weight.data = module.weight.data.contiguous()
        for module in experts:
            module.least_rows = 0

    return undo


def multiplied(model: nn.Module) -> list[nn.Module]:
    """The modules whose weights the model multiplies with: its embedding, too, where the head is tied to it."""
    modules = [m for m in model.modules() if isinstance(m, nn.Linear | Stack | Head) and m.weight is not None]
    if isinstance(model, Decoder) and model.embed is not None and (model.head is None or model.head.weight is None):
        modules.append(model.embed)
    return modules


def matrices(model: nn.Module) -> dict[tuple[int, ...], Tensor]:
    """One matrix [out, in] of each shape that the model multiplies with."""
    shapes: dict[tuple[int, ...], Tensor] = {}
    for module in multiplied(model):
        weight: Tensor = module.weight
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
    return True


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
