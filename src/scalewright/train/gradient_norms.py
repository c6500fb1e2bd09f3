"""Norms of gradients, for clipping: as near for large tensors as for small ones.

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

PIECE = 65536  # numbers: 8192 in each running sum


def squared_norms(tensors: list[Tensor]) -> Tensor:
    """The squared norm of each tensor, fp32 [len(tensors)], where they lie."""
    if tensors[0].device.type != "cpu":
        return torch.stack(torch._foreach_norm(tensors)).square()
    pieces = [torch.split(t.reshape(-1), PIECE) if t.numel() > PIECE else (t,) for t in tensors]
    norms = torch.stack(torch._foreach_norm([piece for cut in pieces for piece in cut]))
    owners = torch.tensor([index for index, cut in enumerate(pieces) for _ in cut])
    squares = torch.zeros(len(pieces), dtype=torch.float64)
    return squares.index_add_(0, owners, norms.double().square()).float()
