"""Products whose rows don't depend on each other: a request gets the same bits whatever is computed beside it.

    y = x W^T, x [M, in]        row i of y should be a function of row i of x, bit by bit, for every M

A product's library chooses its order of sums by M. Measured here (MKL of torch 2.13, AVX-512, fp32; 13 shapes, one
thread): with W stored as [out, in] a row's bits change below 16 rows; with it stored as [in, out] they are the same
from 2 to 191 rows, and a product of 2 rows is about as fast as one of 1. So weights are stored that way (their shapes
stay, their strides change), and a forward has 2 to 191 rows. The last of them are padding, 32 numbers or more: the end
of a vector loop over all rows (SiLU, sigmoid) is computed number by number, by other instructions, and lies there.
Of several threads each has a loop's end of its own, so they compute the products alone, and narrow ones among those,
whose sums are shared out by M, are made in pieces of `in`, of a number that agrees. Matrices that multiply the
same rows are stored side by side, as one: where rows are few, calls count.

What a library does on another machine isn't promised by anybody, so `agrees` tries it, with the model's own shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scalewright.model.attention import Attention
from scalewright.model.decoder import Decoder, Head
from scalewright.model.latent_attention import LatentAttention
from scalewright.model.mlp import MLP
from scalewright.model.moe import Experts, Stack
from scalewright.model.router import Router

MOST = 191  # rows of a forward, the padding included
TAIL = 32  # numbers that a vector loop may leave to be computed one by one: two vectors
LEAST_OF_BATCHES = 4  # rows with latent attention: smaller products of small heads are made by other code
TRIED = (2, 3, 4, 7, 16, 17, 33, 64, 100, 127, 150, 190)
PIECES = (2, 3, 4, 6, 8, 16)  # of a product's sums


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


@dataclass(frozen=True)
class Joined:
    """Matrices that multiply the same rows, side by side in one, so that one product does: q, k and v; gate and up."""

    weight: Tensor  # [sum of out, in], stored as [in, sum of out]; each matrix's own tensor is a view of it
    bias: Tensor | None
    sizes: list[int]
    pieces: int
    threads: int

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """x [..., in] -> each matrix's product."""
        return torch.split(_product(self.weight, self.bias, self.pieces, self.threads, x), self.sizes, dim=-1)


def join_products(model: nn.Module, threads: int) -> Callable[[], None]:
    """Joins the first matrices of attentions and gated MLPs, by so many threads; returns what undoes it."""
    pieces: dict[tuple[int, ...], int] = {}
    changed = list[tuple[Attention | MLP, list[nn.Linear]]]()
    for module, linears in _joinable(model):
        weight = torch.cat([linear.weight.data.t() for linear in linears], dim=1).t()
        sizes = [len(linear.weight) for linear in linears]
        if weight.device.type != "cpu" or (number := _pieces(weight, threads, pieces)) == 0:
            continue
        biases = [linear.bias for linear in linears if linear.bias is not None]
        module.joined = Joined(weight, torch.cat(tuple(biases)) if biases else None, sizes, number, threads)
        for linear, part in zip(linears, torch.split(weight, sizes), strict=True):
            linear.weight.data = part
        changed.append((module, linears))

    def undo() -> None:
        for module, linears in changed:
            module.joined = None
            for linear in linears:
                linear.weight.data = linear.weight.data.contiguous()

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


Product = Callable[[Tensor], Tensor]


def share_products(model: nn.Module, threads: int) -> Callable[[], None]:
    """Has so many threads compute each linear layer, in pieces where it must be; returns what undoes it."""
    pieces: dict[tuple[int, ...], int] = {}
    changed = list[nn.Linear]()
    joined = {id(linear) for module, linears in _joinable(model) if module.joined is not None for linear in linears}
    for module in model.modules():
        if threads == 1 or not isinstance(module, nn.Linear) or "forward" in vars(module):  # tensor parallelism's own
            continue
        if id(module) not in joined and (number := _pieces(module.weight, threads, pieces)):
            module.forward = partial(_product, module.weight, module.bias, number, threads)  # type: ignore[method-assign]
            changed.append(module)

    def undo() -> None:
        for module in changed:
            del module.forward

    return undo


def _joinable(model: nn.Module) -> Iterator[tuple[Attention | MLP, list[nn.Linear]]]:
    """Modules with their linear layers that multiply the same rows."""
    for module in model.modules():
        if isinstance(module, Attention):
            yield module, [module.q, module.k, module.v]
        elif isinstance(module, MLP) and module.gate is not None:
            yield module, [module.gate, module.up]


def _pieces(weight: Tensor, number: int, known: dict[tuple[int, ...], int]) -> int:
    """In how many pieces so many threads make a product whose rows don't depend on each other; 0: in none."""
    shape = tuple(weight.shape)
    if shape not in known:
        tried = (n for n in (1, *PIECES) if agree(partial(_product, weight, None, n, number), weight))
        known[shape] = next(tried, 0)
    return known[shape]


def _product(weight: Tensor, bias: Tensor | None, pieces: int, number: int, x: Tensor) -> Tensor:
    """x W^T + bias by so many threads, summed over so many parts of `in`, one after the other."""
    with threads(number):
        if pieces == 1:
            return F.linear(x, weight, bias)
        size = -(-weight.shape[1] // pieces)
        parts = zip(torch.split(x, size, dim=-1), torch.split(weight, size, dim=1), strict=True)
        out = sum(F.linear(part, of_weight) for part, of_weight in parts)
    assert isinstance(out, Tensor)
    return out if bias is None else out + bias


@torch.inference_mode()
def agree(product: Product, weight: Tensor) -> bool:
    """Whether each row of a product with a matrix [out, in] has the same bits alone and among others."""
    x = torch.randn(MOST, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    whole = product(x)
    return all(torch.equal(product(x[MOST - rows :]), whole[MOST - rows :]) for rows in TRIED)


def agrees(model: nn.Module) -> bool:
    """Whether that is so for all products of the model, on this machine; False on a GPU, where nothing is tried."""
    tried = set[tuple[int, ...]]()
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    shared = {id(linear.weight) for linear in linears if getattr(linear.forward, "func", None) is _product}
    shared |= {id(linear.weight) for module, parts in _joinable(model) if module.joined is not None for linear in parts}
    for weight in multiplied(model):
        matrix = weight[0] if weight.dim() == 3 else weight
        if matrix.device.type != "cpu":
            return False
        if id(weight) in shared or matrix.shape in tried:  # `_pieces` has tried it
            continue
        tried.add(tuple(matrix.shape))
        if not agree(partial(F.linear, weight=matrix), matrix):
            return False
    for module in model.modules():
        if isinstance(module, LatentAttention) and module.halves is not None:
            return all(_batches_agree(half) for half in module.halves)
    return True


@torch.inference_mode()
def _batches_agree(matrices: Tensor) -> bool:
    """The same for a product of every head's rows [H, M, in] with its own matrix [H, in, out]."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(matrices.shape[0], MOST, matrices.shape[1], generator=generator).to(matrices.dtype)
    whole = x @ matrices
    return all(torch.equal(x[:, MOST - m :] @ matrices, whole[:, MOST - m :]) for m in TRIED if m >= LEAST_OF_BATCHES)


class threads:
    """Computes with so many threads inside. A class: a generator's context costs twenty times the two calls."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(self.number)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.before)
