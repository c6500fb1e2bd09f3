"""This rank's part of every parameter, and where its gradient is: all that the optimizer works on.

                    alone, fp32      replicated           sharded (ZeRO 1-3)    bf16, not sharded
    compute         the parameter    the parameter        a DTensor of fp32     a bf16 copy
    master (fp32)   the same         the same             its local shard       a tensor of its own
    gradient        compute.grad     a view of a bucket   compute.grad, local   fp32 sums beside it

Norm, clipping and the update run on `master` and `gradient` alone, whatever the layout. Gradients that are partial
after the backward are summed over their axes before:

    tp     norms and biases under sequence parallelism, and routers: each rank saw its part of the tokens
    etp    biases of experts that several ranks hold: each rank added them to its part of the tokens
    kv     KV heads that several tp ranks hold: each rank saw its part of the query heads
    tie    an embedding on the first stage, and on the last: as a tied head, or for prediction modules

Small ones travel together, in one all-reduce an axis; large ones on their own, without a copy. All are local fp32
shards: tensors that are cut by then are summed in their pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from scalewright.parallel.collectives import all_sum
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.stages import stages_of
from scalewright.spec.placement import Box, Placement, box, copies, local_shape
from scalewright.spec.tensors import TensorSpec
from scalewright.spec.volumes import SUMMED_ALONE

# Returns the part of a true tensor that a box describes, in fp32, on any device.
Source = Callable[[TensorSpec, Box], Tensor]


def is_dtensor(tensor: Tensor) -> bool:
    """Whether it is a DTensor, whose class takes a CPU second to import: what isn't sharded goes without."""
    return hasattr(tensor, "to_local")


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; another tensor as it is."""
    return tensor.to_local() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]


@dataclass
class Weight:
    """One parameter as this rank holds it."""

    placement: Placement
    compute: nn.Parameter  # the module multiplies with it
    master: nn.Parameter  # the local fp32 numbers that the optimizer updates
    box: Box  # which part of the true tensor `master` is
    copies: int  # ranks that hold the same box
    stage: int = 0  # the pipeline stage whose backward reaches it last
    main_gradient: Tensor | None = None  # fp32 sums, where compute.grad is not the place for them

    @property
    def name(self) -> str:
        """The canonical name."""
        return self.placement.tensor.name

    def true(self, tensor: Tensor) -> Tensor:
        """The part of a tensor shaped like `master` that stands for something: the box, without padding."""
        if tuple(tensor.shape) == self.box[1]:
            return tensor
        return tensor[tuple(slice(size) for size in self.box[1])]

    @property
    def trained(self) -> bool:
        """Whether the optimizer updates it: a user may freeze parameters."""
        return self.compute.requires_grad

    @property
    def resident(self) -> Tensor:
        """This rank's part of `compute`, on the device."""
        return local_tensor(self.compute)

    @property
    def gradient(self) -> Tensor | None:
        """The local fp32 gradient, or None before a backward has reached this parameter."""
        if self.main_gradient is not None:
            return self.main_gradient
        grad = self.compute.grad
        return None if grad is None else local_tensor(grad)


class Host(Protocol):
    """Masters in host memory (`parallel/offload_states.py`)."""

    def fetch(self, gradients: list[Tensor]) -> None:
        """Copies finished gradients to the masters' `.grad`."""

    def publish(self) -> None:
        """Copies the masters into the compute copies."""


class Weights:
    """All parameters that this rank holds, in `tensors` order."""

    def __init__(self, items: list[Weight]) -> None:
        self.items = items
        self.host: Host | None = None  # where masters are, if not on the device

    def __iter__(self) -> Iterator[Weight]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def trained(self) -> list[Weight]:
        """Those that the optimizer updates."""
        return [weight for weight in self.items if weight.trained]

    @torch.no_grad()
    def fill(self, source: Source) -> None:
        """Sets every weight to its value, one tensor at a time, and publishes the compute copies."""
        for weight in self.items:
            if weight.box[1] != tuple(weight.master.shape):
                weight.master.zero_()  # padding stands for nothing, and stays nothing
            if all(weight.box[1]):
                weight.true(weight.master).copy_(source(weight.placement.tensor, weight.box))
        self.publish()

    @torch.no_grad()
    def publish(self) -> None:
        """Copies updated masters into the compute copies (bf16); nothing to do where they are the same."""
        if self.host is not None:
            self.host.publish()
            return
        copied = [w for w in self.items if not is_dtensor(w.compute) and w.compute is not w.master]
        if copied:
            torch._foreach_copy_([w.compute for w in copied], [w.master for w in copied])

    def take_gradients(self) -> list[Tensor]:
        """Puts every trained weight's gradient into `master.grad`, for the optimizer, and returns them.

        A parameter that no backward reached counts as a zero gradient, as it does under a sharded layout.
        """
        gradients = []
        for weight in self.trained():
            if (gradient := weight.gradient) is None:
                gradient = torch.zeros_like(weight.resident, dtype=torch.float32)
            if self.host is None and weight.master.grad is not gradient:
                weight.master.grad = gradient
            gradients.append(gradient)
        return gradients

    def hand_over(self, gradients: list[Tensor]) -> None:
        """Before the update: copies the final gradients to masters in host memory."""
        if self.host is not None:
            self.host.fetch(gradients)


def hold(model: nn.Module, placements: tuple[Placement, ...], mesh: Mesh) -> Weights:
    """The weights of all stages in a module whose parameters have their final form (sharded or not).

    A tied head apart from its embedding is found by its own name. A parameter below fp32 gets a master of its
    own. Raises ValueError when a local shape is not that of its placement, or when the mesh lacks an axis of
    it (one made without the model's KV heads).
    """
    parameters = {
        name: (stage, parameter)
        for stage, module in stages_of(model).items()
        for name, parameter in module.named_parameters()
    }
    items = []
    for placement in placements:
        tensor = placement.tensor
        name = tensor.name if tensor.name in parameters else tensor.tied_to
        if name not in parameters:
            continue  # another pipeline stage's
        stage, compute = parameters.pop(name)
        local = local_tensor(compute)
        sizes = mesh.grid.size_of
        expected = local_shape(placement, mesh.coords, sizes)
        if tuple(local.shape) != expected:
            raise ValueError(f"{tensor.name}: local shape {tuple(local.shape)} is not its placement's {expected}")
        if alone := [axis for axis in placement.grad_sum if mesh.size(axis) == 1]:
            why = f"its gradient is summed over '{alone[0]}', and the mesh has one rank of that"
            raise ValueError(f"{tensor.name}: {why}")
        master, part = _master(compute, local), box(placement, mesh.coords, sizes)
        items.append(Weight(placement, compute, master, part, copies(placement, mesh.grid.copying), stage))
    if parameters:
        raise ValueError(f"parameters without a placement: {', '.join(sorted(parameters)[:5])}")
    return Weights(items)


def _master(compute: nn.Parameter, local: Tensor) -> nn.Parameter:
    """The fp32 numbers that the optimizer updates: the local ones themselves where they are fp32."""
    if is_dtensor(compute):
        return nn.Parameter(local.detach(), requires_grad=compute.requires_grad)
    if compute.dtype != torch.float32:
        return nn.Parameter(torch.empty_like(local, dtype=torch.float32), requires_grad=compute.requires_grad)
    return compute


def release(model: nn.Module) -> None:
    """Frees what FSDP's forwards without a backward have gathered."""
    for module in model.modules():
        reshard: Callable[[], None] | None = getattr(module, "reshard", None)
        if reshard is not None:
            reshard()


AXES = ("tp", "kv", "etp", "tie")


@torch.no_grad()
def sum_partial(weights: Weights, gradients: Sequence[Tensor], mesh: Mesh, *, large: int = SUMMED_ALONE) -> None:
    """Completes the trained weights' gradients (in `weights.trained()` order), in place."""
    trained = weights.trained()
    for axis in AXES:
        partial = [g for weight, g in zip(trained, gradients, strict=True) if axis in weight.placement.grad_sum]
        if not partial or mesh.group(axis) is None:  # no group for `tie` where one end alone uses it
            continue
        small = []
        for gradient in partial:
            if gradient.nbytes >= large and gradient.is_contiguous():
                all_sum(gradient, mesh, axis)
            elif gradient.numel():
                small.append(gradient)
        if small:
            flat = all_sum(torch.cat([gradient.flatten() for gradient in small]), mesh, axis)
            parts = torch.split(flat, [gradient.numel() for gradient in small])
            torch._foreach_copy_(small, [part.view_as(g) for part, g in zip(parts, small, strict=True)])
