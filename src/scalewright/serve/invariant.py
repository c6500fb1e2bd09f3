"""Products whose rows don't depend on each other: a request gets the same bits whatever is computed beside it.

    y = x W^T, x [M, in]        row i of y should be a function of row i of x, bit by bit, for every M

A product's library chooses its order of sums by M, by its threads, and by how W is stored. Measured here (MKL of torch
2.13, AVX-512, fp32): with W stored as [out, in] a row's bits change below 16 rows; as [in, out] they are the same from
2 to 191 rows of one thread, but not of two where `out` is narrow. In parts [8, in, out / 8], as a batch of products,
each of which one thread makes, a row's bits are the same from 2 to 191 rows and for one and two threads, and two share
the reading of W evenly: twice as fast for few rows and many words. So linear layers are stored that way, those that
multiply the same rows as one (q, k and v; gate and up), the rest as [in, out]; a forward has 2 to 191 rows. The last of
them are padding, 32 numbers or more: the end of a vector loop over all rows (SiLU, sigmoid) is computed number by
number, by other instructions, and lies there. Each of several threads has a loop's end of its own, so that one makes
all but products and attention. Where every loop ends with a vector (`even`) there is no padding, and two make it.

What a library does on another machine isn't promised by anybody, so `agrees` tries it, with the model's own shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

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
PARTS, WIDTH = (8, 4, 2, 1), 16  # of a product, if each is so many numbers wide, or a multiple of it


def turn_weights(model: nn.Module, number: int = 1) -> Callable[[], None]:
    """Stores matrices as products of so many threads read them, in place; returns what undoes it.

    Linear layers keep no weight meanwhile: their forward has it. Every expert gets 2 rows or none.
    """
    latents = [module for module in model.modules() if isinstance(module, LatentAttention)]
    for latent in latents:
        to_key, to_value = (half.detach().contiguous() for half in latent.to_heads())
        latent.halves = to_key, to_value
    undo = [_put(module, parts, number) for module, parts in _products(model)]
    changed = list(multiplied(model))
    experts = [module for module in model.modules() if isinstance(module, Experts)]
    for weight in changed:
        weight.data = weight.data.transpose(-1, -2).contiguous().transpose(-1, -2)
    for module in experts:
        module.least_rows = 2

    def back() -> None:
        for weight in changed:
            weight.data = weight.data.contiguous()
        for module in experts:
            module.least_rows = 0
        for restore in undo:
            restore()
        for latent in latents:
            latent.halves = None

    return back


@dataclass(frozen=True)
class Product:
    """Linear layers of the same rows: x [..., in] -> each one's product [..., its out]."""

    parts: Tensor  # [C, in, sum of out / C]
    bias: Tensor | None
    sizes: tuple[int, ...]
    threads: int

    def __call__(self, x: Tensor) -> list[Tensor]:
        rows = x.reshape(-1, x.shape[-1])
        with threads(self.threads):
            got = torch.bmm(rows.expand(len(self.parts), *rows.shape), self.parts)
        out = got.transpose(0, 1).reshape(*x.shape[:-1], -1)
        out = out if self.bias is None else out + self.bias
        ends = accumulate(self.sizes)
        return [out[..., end - size : end] for end, size in zip(ends, self.sizes, strict=True)]

    def only(self, x: Tensor) -> Tensor:
        """The product of one layer alone."""
        return self(x)[0]

    def head(self, x: Tensor, tied: Tensor | None = None, product: object = None) -> Tensor:
        """The same, as `Head.forward` is called."""
        return self(x)[0]


Owner = Attention | MLP | Head | nn.Linear


def _products(model: nn.Module) -> Iterator[tuple[Owner, list[nn.Linear | Head]]]:
    """Modules that get a product, and the layers in it; not those that another engine, or TP, gave one."""
    joined = set[int]()
    for module in model.modules():
        if next(module.parameters(), torch.empty(0, device="meta")).device.type != "cpu":
            continue
        if isinstance(module, Attention):
            parts: list[nn.Linear | Head] = [module.q, module.k, module.v]
        elif isinstance(module, MLP) and module.gate is not None:
            parts = [module.gate, module.up]
        elif isinstance(module, nn.Linear) or (isinstance(module, Head) and module.weight is not None):
            parts = [module]
        else:
            continue
        if id(parts[0]) in joined or any("forward" in vars(part) for part in parts):
            continue
        joined |= {id(part) for part in parts} if len(parts) > 1 else set()
        if getattr(module, "joined", None) is None:
            yield module, parts


def _put(module: Owner, layers: list[nn.Linear | Head], number: int) -> Callable[[], None]:
    """Gives a module the product of its layers, which lose their weights; what gives them back."""
    weights = [layer.weight for layer in layers if layer.weight is not None]
    whole, sizes = torch.cat([weight.data for weight in weights]), tuple(len(weight) for weight in weights)
    count = next(c for c in PARTS if len(whole) % (c * WIDTH) == 0 or c == 1)
    biases = tuple(layer.bias for layer in layers if layer.bias is not None)
    product = Product(
        whole.view(count, len(whole) // count, -1).transpose(1, 2).contiguous(), torch.cat(biases) if biases else None,
        sizes, number,
    )  # fmt: skip
    if isinstance(module, Attention | MLP):
        module.joined = product
    else:
        module.forward = product.head if isinstance(module, Head) else product.only  # type: ignore[assignment, method-assign]
    for weight in weights:
        weight.data = weight.new_empty(0)

    def back() -> None:
        matrix = product.parts.transpose(1, 2).reshape(sum(sizes), -1)
        for weight, part in zip(weights, torch.split(matrix, list(sizes)), strict=True):
            weight.data = part.clone(memory_format=torch.contiguous_format)
        if isinstance(module, Attention | MLP):
            module.joined = None
        else:
            del module.forward

    return back


def even(model: Decoder) -> bool:
    """Whether two threads may share a loop over an even number of rows: each one's end is that of a vector."""
    widths = [module.units for module in model.modules() if isinstance(module, MLP)]
    return model.spec.moe is None and not any(width % TAIL for width in (model.spec.hidden_size, *widths))


def padding(model: Decoder) -> int:
    """Rows of padding that a forward ends with; none where no loop has a rest."""
    moe = model.spec.moe
    if even(model):
        return 0
    return -(-TAIL // min(TAIL, moe.num_experts if moe is not None else TAIL))  # a router's scores are narrow


def least_rows(model: Decoder) -> int:
    """The rows that a forward has at least."""
    return 2 if model.spec.mla is None else LEAST_OF_BATCHES


def multiplied(model: nn.Module) -> list[Tensor]:
    """The matrices that the model multiplies with, less those in products: a tied embedding is the last."""
    modules = [module for module in model.modules() if isinstance(module, nn.Linear | Stack | Head | Router)]
    weights = [module.weight for module in modules if module.weight is not None and module.weight.numel()]
    if isinstance(model, Decoder) and model.embed is not None and (model.head is None or model.head.weight is None):
        weights.append(model.embed.weight)
    return weights


@torch.inference_mode()
def agree(product: Callable[[Tensor], Tensor], weight: Tensor) -> bool:
    """Whether each row of a product with a matrix [out, in] has the same bits alone and among others."""
    x = torch.randn(MOST, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    whole = product(x)
    return all(torch.equal(product(x[MOST - rows :]), whole[MOST - rows :]) for rows in TRIED)


def agrees(model: nn.Module) -> bool:
    """Whether that is so for all products of the model, on this machine; False on a GPU, where nothing is tried."""
    tried = set[tuple[int, ...]]()
    for module in model.modules():
        forward = getattr(module, "joined", None) or getattr(vars(module).get("forward"), "__self__", None)
        if isinstance(forward, Product) and forward.parts.shape not in tried:
            tried.add(tuple(forward.parts.shape))
            if not agree(replace(forward, bias=None, sizes=(sum(forward.sizes),)).only, forward.parts):
                return False
    for weight in multiplied(model):
        matrix = weight[0] if weight.dim() == 3 else weight
        if matrix.device.type != "cpu":
            return False
        if matrix.shape not in tried and not agree(partial(F.linear, weight=matrix), matrix):
            return False
        tried.add(tuple(matrix.shape))
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
    """Computes with so many threads inside. A class: a generator's context costs twenty times the calls."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        if self.before != self.number:
            torch.set_num_threads(self.number)

    def __exit__(self, *_: object) -> None:
        if self.before != self.number:
            torch.set_num_threads(self.before)
