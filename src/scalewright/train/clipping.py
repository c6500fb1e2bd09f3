"""Clipping by the norm of all ranks' gradients together, as near for large tensors as for small ones.

    |g|^2  = sum over ranks and tensors of share |part|^2    one all-reduce over all pipeline stages, shards and cuts,
                                                             with the step's report; what several hold counts once
    factor = min(1, clip_norm / (|g| + 1e-6))                as clip_grad_norm_ of torch; guard/decide.py has
                                                             it beside a spike's factor and the loss scale

On a CPU torch adds up a tensor's squares in eight running fp32 sums, and the larger these have grown, the
more of each further square is rounded away. One rank that holds a tensor whole then finds another norm, and
clips to other gradients, than two that hold half of it each:

    numbers of the tensor      1e6      4e6      8e6      64e6
    its norm is off by         9e-6     7e-5     2e-4     5e-3        (random normal ones, torch 2.13)
    in pieces of 65536         2e-7     1e-7     1e-7     2e-7

GPUs add in a tree, so that their norms are taken whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scalewright.parallel.collectives import all_sum
from scalewright.parallel.mesh import Mesh
from scalewright.train.columns import NORM

PIECE = 65536  # numbers: 8192 in each running sum


def squared_part(gradients: list[Tensor], shares: Tensor) -> Tensor:
    """This rank's part of the squared norm, a number on the device of `shares` [len(gradients)]. A tensor's share is 1
    over the ranks that hold the same part of it: of pipeline stages and shards 1."""
    squares = squared_norms(gradients).to(shares.device)  # offloaded ones lie elsewhere
    return (squares * shares).sum()


def sum_over_ranks(report: Tensor, mesh: Mesh) -> None:
    """Adds up a step's report [WIDTH + world] over all ranks that share a model, in place: its squared norm, too, whose
    root is left in its place."""
    all_sum(report, mesh, mesh.together)
    report[NORM] = report[NORM].sqrt()


def clipped(factor: Tensor, norm: Tensor, clip_norm: float) -> Tensor:
    """The factor of gradients of this norm, made smaller where they would exceed `clip_norm`; a number."""
    return torch.minimum(factor, clip_norm / (norm + 1e-6))


def scale(gradients: list[Tensor], factor: Tensor | float) -> None:
    """Multiplies gradients by the step's factor, in place."""
    torch._foreach_mul_(gradients, factor)


def squared_norms(tensors: list[Tensor]) -> Tensor:
    """The squared norm of each tensor, fp32 [len(tensors)], where they lie."""
    if tensors[0].device.type != "cpu":
        return torch.stack(torch._foreach_norm(tensors)).square()
    pieces = [torch.split(t.reshape(-1), PIECE) if t.numel() > PIECE else (t,) for t in tensors]
    norms = torch.stack(torch._foreach_norm([piece for cut in pieces for piece in cut]))
    owners = torch.tensor([index for index, cut in enumerate(pieces) for _ in cut])
    squares = torch.zeros(len(pieces), dtype=torch.float64)
    return squares.index_add_(0, owners, norms.double().square()).float()
