"""The order in which techniques are applied to a model; read it aloud.

    recompute -> compile -> [shard | cast] -> memory -> weights -> gradient sums

The model is built on the meta device: nothing is allocated before it is known which part this rank holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from scalewright.parallel.compile import apply_compile
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.recompute import apply_recompute
from scalewright.parallel.replicate import GradientBuckets
from scalewright.parallel.shard import ShardedGradients, apply_shard
from scalewright.parallel.weights import Weights, hold
from scalewright.spec.layout import Layout
from scalewright.spec.placement import Box, Placement
from scalewright.spec.tensors import TensorSpec

# Gives the part of a true tensor that a box describes, in fp32 on the CPU.
Source = Callable[[TensorSpec, Box], Tensor]


class GradientSync(Protocol):
    """How gradients become sums over ranks and micro-batches."""

    def begin(self, last: bool) -> None:
        """Before each micro-batch; `last` of the step or not."""

    def finish(self) -> None:
        """After the last backward: every gradient is the sum over all ranks."""

    def clear(self) -> None:
        """Before a step: gradients are zero."""


class LocalGradients:
    """One rank in fp32: autograd's own gradients are the sums."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def begin(self, last: bool) -> None:
        """Nothing to prepare."""

    def finish(self) -> None:
        """Nothing to wait for."""

    def clear(self) -> None:
        """Before a step: forgets the last one's gradients."""
        for weight in self.weights:
            weight.compute.grad = None


@dataclass(frozen=True)
class Parallel:
    """A model under its layout: the module to call, the weights that this rank holds, and their gradients."""

    model: nn.Module
    weights: Weights
    gradients: GradientSync


def parallelize(
    model: nn.Module,
    placements: tuple[Placement, ...],
    layout: Layout,
    mesh: Mesh,
    *,
    bf16: bool,
    compile_blocks: bool = False,
    random: bool = False,
    backend: str = "inductor",
) -> Parallel:
    """Applies a layout to a model in place. Weights are allocated, not filled: see `fill`.

    `random`: the blocks use random numbers.
    """
    blocks = find_blocks(model)
    apply_recompute(blocks, layout.recompute, random=random)
    if compile_blocks:
        apply_compile(blocks, backend)
    sharded = layout.zero_stage == 3 and mesh.size("fsdp") > 1
    if sharded:
        apply_shard(model, blocks, mesh, bf16=bf16)
    elif bf16:
        model.to(torch.bfloat16)
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device=mesh.device)
    else:
        model.to(mesh.device)
    weights = hold(model, placements, mesh)
    return Parallel(model, weights, _gradients(model, weights, mesh, sharded=sharded, bf16=bf16))


def _gradients(model: nn.Module, weights: Weights, mesh: Mesh, *, sharded: bool, bf16: bool) -> GradientSync:
    if sharded:
        return ShardedGradients(model, weights, every_micro_batch=True)
    if mesh.size("loss") > 1 or bf16:
        return GradientBuckets(weights, mesh)
    return LocalGradients(weights)


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a model: its longest run of sibling modules of one class, in order."""
    longest: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
            children = list(module.children())
            if len(children) > len(longest) and len({type(child) for child in children}) == 1:
                longest = children
    return [block for block in longest if any(True for _ in block.parameters())]


@torch.no_grad()
def fill(weights: Weights, source: Source) -> None:
    """Gives every weight its value, one tensor at a time, and publishes the compute copies."""
    for weight in weights:
        if all(weight.box[1]):
            weight.master.copy_(source(weight.placement.tensor, weight.box))
    weights.publish()
