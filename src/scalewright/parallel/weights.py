"""What this rank holds of every parameter, and where its gradient is: the optimizer's whole world.

                    alone, fp32      replicated           sharded (ZeRO-3)      bf16, not sharded
    compute         the parameter    the parameter        a DTensor of fp32     a bf16 copy
    master (fp32)   the same         the same             its local shard       a tensor of its own
    gradient        compute.grad     a view of a bucket   compute.grad, local   fp32 sums beside it

Norm, clipping and the update run on `master` and `gradient` alone, whatever the layout. bf16 means fp32
master weights, bf16 copies for compute, and gradients summed in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from scalewright.parallel.mesh import Mesh
from scalewright.spec.placement import Box, Placement, box, copies


@dataclass
class Weight:
    """One parameter as this rank holds it."""

    placement: Placement
    compute: nn.Parameter  # what the module multiplies with
    master: nn.Parameter  # the local fp32 numbers that the optimizer updates
    box: Box  # which part of the true tensor `master` is
    copies: int  # ranks that hold the same box
    main_gradient: Tensor | None = None  # fp32 sums, where compute.grad is not the place for them

    @property
    def name(self) -> str:
        """The canonical name."""
        return self.placement.tensor.name

    @property
    def trained(self) -> bool:
        """Whether the optimizer updates it: a user may freeze parameters."""
        return self.compute.requires_grad

    @property
    def gradient(self) -> Tensor | None:
        """The local fp32 gradient, or None before a backward has reached this parameter."""
        if self.main_gradient is not None:
            return self.main_gradient
        grad = self.compute.grad
        return grad.to_local() if isinstance(grad, DTensor) else grad


class Weights:
    """All parameters that this rank holds, in `tensors` order."""

    def __init__(self, items: list[Weight]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Weight]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def trained(self) -> list[Weight]:
        """Those that the optimizer updates."""
        return [weight for weight in self.items if weight.trained]

    @torch.no_grad()
    def publish(self) -> None:
        """Copies updated masters into the compute copies (bf16); nothing to do where they are the same."""
        pairs = [(w.compute, w.master) for w in self.items if _separate(w)]
        if pairs:
            torch._foreach_copy_([c for c, _ in pairs], [m for _, m in pairs])

    def take_gradients(self) -> list[Tensor]:
        """Puts every trained weight's gradient where the optimizer looks (`master.grad`) and returns them.

        A parameter that no backward reached counts as a zero gradient, as it does under a sharded layout.
        """
        found = []
        for weight in self.trained():
            gradient = weight.gradient
            if gradient is None:
                gradient = torch.zeros_like(weight.master)
            if weight.master.grad is not gradient:
                weight.master.grad = gradient
            found.append(gradient)
        return found


def _separate(weight: Weight) -> bool:
    compute = weight.compute
    return not isinstance(compute, DTensor) and compute is not weight.master


def hold(module: nn.Module, placements: tuple[Placement, ...], mesh: Mesh) -> Weights:
    """The weights of a module whose parameters have their final form (sharded or not), by canonical name.

    A parameter below fp32 gets a master of its own. Raises ValueError when a local shape is not its box.
    """
    parameters = dict(module.named_parameters())
    items = []
    for placement in placements:
        compute = parameters.pop(placement.tensor.name, None)
        if compute is None:
            continue  # another pipeline stage's
        local = compute.to_local() if isinstance(compute, DTensor) else compute
        where = box(placement, mesh.coords, mesh.grid.size_of)
        if tuple(local.shape) != where[1]:
            raise ValueError(
                f"{placement.tensor.name}: local shape {tuple(local.shape)} is not its box {where}"
            )
        if isinstance(compute, DTensor):
            master = nn.Parameter(local.detach(), requires_grad=compute.requires_grad)
        elif compute.dtype != torch.float32:
            master = nn.Parameter(
                torch.empty_like(local, dtype=torch.float32), requires_grad=compute.requires_grad
            )
        else:
            master = compute
        items.append(Weight(placement, compute, master, where, copies(placement, mesh.grid.size_of)))
    if parameters:
        raise ValueError(f"parameters without a placement: {', '.join(sorted(parameters)[:5])}")
    return Weights(items)
