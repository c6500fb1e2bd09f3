"""ZeRO 1, 2 and 3, alone or replicated (HSDP), by torch's FSDP2 (Rajbhandari et al. 2020, Zhao et al. 2023).

At rest every rank holds 1/n of each tensor's rows (cut as torch.chunk cuts), of its gradient, and of the
optimizer's state. A step of n micro-batches gathers the parameters and reduces the gradients:

             parameters gathered                     gradients reduce-scattered    numbers sent (of Psi)
    ZeRO-1   once a step                             after the last micro-batch    2 Psi
    ZeRO-2   once a step                             after each micro-batch        (1 + n) Psi
    ZeRO-3   for each forward and each backward      after each micro-batch        3 n Psi
    HSDP     as its ZeRO stage, among its shards     as its stage; after the last micro-batch, an all-reduce
                                                     of the rank's own part over the replicas

Units, each gathered and reduced at once: every block; its experts apart, over `efsdp`; the last norm and the head,
where they share no weight with an embedding in their stage and no prediction module uses them; the root, which is the
rest. Head and root are gathered once for forward and backward together; in a pipeline, where some micro-batch is always
between the two, once a step. `parallel/shard_gradients.py` sets the flags of every backward. What is prefetched is
FSDP2's choice, but in a pipeline's backward, whose order it can't see (`_prefetch_backward`).

Every module sums: nothing divides by the number of ranks, since the loss is already divided by the tokens of
the whole global batch. In bf16 (and fp16) copies for compute are gathered in that, gradients summed in fp32.

FSDP's own collectives, timed: its defaults are replaced by the same ones with marks around them.

    before a block         all-gather        dp_shard
    after its backward     reduce-scatter    dp_shard
                           all-reduce        dp_replicate: from the reduce-scatter's end to FSDP's next hook

On a CPU, where each of them holds the host up. On a GPU FSDP runs them on streams of their own, and is left
as it is (parallel/timers.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from scalewright.model.decoder import Decoder
from scalewright.model.moe import MoE
from scalewright.parallel.mesh import Mesh, ensure_world
from scalewright.parallel.recompute import outside_recomputation
from scalewright.parallel.timers import Timers
from scalewright.spec.layout import Layout
from scalewright.spec.memory import offloads_parameters


def apply_shard(
    model: nn.Module, blocks: Iterable[nn.Module], mesh: Mesh, layout: Layout, *, half: torch.dtype | None
) -> None:
    """Shards every block, the head, then the rest, over the mesh's `fsdp` axis, in place.

    Under ZeRO-3 a block's gathered tensors are freed after its forward; those of head and root stay for the backward.
    With parameters offloaded, the shards lie in host memory, and travel to the device to be gathered.
    """
    # torch warns for every model that ends in a linear layer; no operator of ours that autograd records works
    # in place on its output.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view", category=UserWarning)
    summed = torch.float32 if half is not None else None
    precision = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=summed, cast_forward_inputs=False)
    offload = OffloadPolicy()
    if offloads_parameters(layout):
        offload = CPUOffloadPolicy(pin_memory=mesh.device.type == "cuda")
    shard = partial(fully_shard, mp_policy=precision, offload_policy=offload)
    blocks, free = list(blocks), layout.zero_stage == 3
    head = head_modules(model)
    if experts := _expert_units(model):
        expert_mesh = _device_mesh(mesh, "efsdp")
        for stacked in experts:
            shard(stacked, mesh=expert_mesh, reshard_after_forward=free)
            outside_recomputation(stacked)
    device_mesh = _device_mesh(mesh, "fsdp")
    for block in blocks:
        shard(block, mesh=device_mesh, reshard_after_forward=free)
    if head:
        shard(head, mesh=device_mesh, reshard_after_forward=False)
    shard(model, mesh=device_mesh, reshard_after_forward=False)
    if layout.pp > 1:
        _prefetch_backward(model, blocks)
    # Ranks whose own module leaves other parameters unused must still reduce the same ones. In ZeRO-1 (FSDP's
    # zeros would be bf16 beside sums in fp32, which it refuses to send together), and before torch 2.12,
    # `accumulate_now` of parallel/shard_gradients.py adds those zeros.
    for sharded in sharded_modules(model):
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
        if reduces_unused(layout):
            sharded.set_reduce_scatter_unused_params(True)
        time_shards(sharded, mesh)


def head_modules(stage: nn.Module) -> list[nn.Module]:
    """The last norm and the head of a stage that begins with an embedding of its own; otherwise none.

    By themselves they are gathered and reduced beside the blocks. A stage without an embedding has no root but them, a
    tied head needs the embedding's unit, and one that prediction modules use again is done only when the root is.
    """
    if not isinstance(stage, Decoder) or stage.embed is None or stage.mtp:
        return []
    if stage.head is None or stage.head.weight is None:
        return []
    return [module for module in (stage.norm, stage.head) if module is not None]


def sharded_modules(stage: nn.Module) -> list[FSDPModule]:
    """A module of each of FSDP's units, the root first."""
    modules = [module for module in stage.modules() if isinstance(module, FSDPModule)]
    return list({id(module._get_fsdp_state()): module for module in modules}.values())


def reduces_unused(layout: Layout) -> bool:
    """Whether FSDP reduces zeros for parameters that a backward left out (torch 2.12, not in ZeRO-1)."""
    return layout.zero_stage != 1 and hasattr(FSDPModule, "set_reduce_scatter_unused_params")


def _prefetch_backward(stage: nn.Module, blocks: list[nn.Module]) -> None:
    """Each unit's backward gathers the one before it ahead of time, and the lowest none. A block's experts are a unit
    that comes before the rest of it. By itself FSDP goes back through the forwards of all micro-batches since the step
    began. In a pipeline the forward before the lowest unit's is another micro-batch's highest block: gathered for
    nothing, at the step's end too."""
    units = [unit for block in blocks for unit in (*_expert_units(block), block)]
    below = [*units[:1], *units[:-1]]  # the lowest names itself, since an empty list would be no choice
    for module, target in zip(units, below, strict=True):
        _fsdp(module).set_modules_to_backward_prefetch([_fsdp(target)])
    # The root's backward follows those of prediction modules, which run after its forward.
    predictions = len(stage.mtp) if isinstance(stage, Decoder) else 0
    above = blocks[: len(blocks) - predictions] or [stage]  # none: the embedding or the head alone
    _fsdp(stage).set_modules_to_backward_prefetch([_fsdp(above[-1])])


def _expert_units(block: nn.Module) -> list[nn.Module]:
    return [module.experts for module in block.modules() if isinstance(module, MoE)]


def _fsdp(module: nn.Module) -> FSDPModule:
    assert isinstance(module, FSDPModule)
    return module


def _device_mesh(mesh: Mesh, axis: str) -> DeviceMesh:
    """The mesh to shard over an axis: (fsdp), or (dp_replicate, fsdp) where shards are replicated."""
    shards, replicas = mesh.group(axis) or _alone(mesh), mesh.replicas
    if replicas is None:
        return DeviceMesh.from_group(shards, mesh.device.type, mesh_dim_names=(axis,))
    both = next(ranks for ranks in mesh.grid.groups({"fsdp": "hsdp", "efsdp": "ehsdp"}[axis]) if mesh.rank in ranks)
    ranks = torch.tensor(both, dtype=torch.int).view(mesh.size("dp_replicate"), -1)
    names = ("dp_replicate", axis)
    return DeviceMesh.from_group([replicas, shards], mesh.device.type, mesh=ranks, mesh_dim_names=names)


def _alone(mesh: Mesh) -> dist.ProcessGroup:
    """A group of this rank alone, whose parameters are to be offloaded."""
    ensure_world(mesh)
    alone: dist.ProcessGroup = dist.new_group([mesh.rank], use_local_synchronization=True)
    return alone


# torch promises `set_custom_all_gather` and `set_custom_reduce_scatter`, but not the path of its own ones.


def time_shards(module: FSDPModule, mesh: Mesh) -> None:
    """Makes the timers of the mesh mark FSDP's collectives for this module."""
    if mesh.device.type != "cpu":
        return
    reduce_scatter = _ReduceScatter(mesh.timers)
    module.set_custom_all_gather(_AllGather(mesh.timers))
    module.set_custom_reduce_scatter(reduce_scatter)
    if mesh.replicas is not None:
        module.set_all_reduce_hook(reduce_scatter.reduced)


class _AllGather(DefaultAllGather):
    def __init__(self, timers: Timers) -> None:
        self.timers = timers

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        with self.timers.comm("dp_shard"):
            return super().__call__(*arguments, **keywords)


class _ReduceScatter(DefaultReduceScatter):
    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        self.ended: Any = None

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        with self.timers.comm("dp_shard"):
            output = super().__call__(*arguments, **keywords)
        self.ended = self.timers.mark() if self.timers.on else None
        return output

    def reduced(self, gradient: torch.Tensor) -> None:
        """The hook that FSDP calls after its all-reduce over the replicas."""
        if self.ended is not None:
            self.timers.add("comm_dp_replicate", self.ended, self.timers.mark())
            self.ended = None
