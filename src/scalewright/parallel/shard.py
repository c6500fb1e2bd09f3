"""Fully sharded data parallelism (ZeRO-3; Rajbhandari et al. 2020, Zhao et al. 2023) by torch's FSDP2.

    at rest      every rank holds 1/n of each tensor (rows, cut as torch.chunk cuts)
    forward      a block's tensors are gathered just before it runs, and freed after
    backward     gathered again; gradients are reduce-scattered, so that a rank keeps its own rows' sums

Every module sums: nothing divides by the number of ranks, since the loss is already divided by the tokens of
the whole global batch. With bf16, copies for compute are gathered in bf16 and gradients summed in fp32.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from scalewright.parallel.mesh import Mesh
from scalewright.parallel.weights import Weights
from scalewright.spec.layout import Layout


class ShardedGradients:
    """When FSDP reduces: after every micro-batch (gradients never stay whole), or after the last alone."""

    def __init__(self, stages: Mapping[int, nn.Module], weights: Weights, layout: Layout) -> None:
        self.modules = {
            number: [module for module in stage.modules() if isinstance(module, FSDPModule)]
            for number, stage in stages.items()
        }
        self.weights = weights
        self.every_micro_batch = (layout.zero_stage or 0) >= 2

    def begin(self, stage: int, last: bool) -> None:
        """Before a micro-batch."""
        sync = last or self.every_micro_batch
        for module in self.modules[stage]:
            module.set_requires_gradient_sync(sync, recurse=False)
            module.set_is_last_backward(last)

    def end(self, stage: int, last: bool) -> None:
        """FSDP reduces in the backward itself."""

    def finish(self) -> None:
        """FSDP waits for its reductions at the end of the backward itself."""

    def clear(self) -> None:
        """Before a step: forgets the last one's gradients."""
        for weight in self.weights:
            weight.compute.grad = None


def apply_shard(
    model: nn.Module, blocks: Iterable[nn.Module], mesh: Mesh, layout: Layout, *, bf16: bool
) -> None:
    """Shards every block, then what is left, over the mesh's `fsdp` axis, in place.

    Under ZeRO-3 a block's gathered tensors are freed after its forward; the root's stay for the backward.
    """
    reshard = layout.zero_stage == 3
    # Said of every model that ends in a linear layer; nothing of ours works in place on its output.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view", category=UserWarning)
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bf16 else None,
        reduce_dtype=torch.float32 if bf16 else None,
        cast_forward_inputs=False,
    )
    device_mesh = mesh.hsdp_mesh()
    for block in blocks:
        fully_shard(block, mesh=device_mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=device_mesh, mp_policy=policy, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
