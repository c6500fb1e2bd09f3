"""ZeRO 1, 2 and 3, alone or replicated (HSDP), by torch's FSDP2 (Rajbhandari et al. 2020, Zhao et al. 2023).

At rest every rank holds 1/n of each tensor's rows (cut as torch.chunk cuts), of its gradient, and of the
optimizer's state. What a step does with the rest, for n micro-batches:

             parameters gathered                     gradients reduce-scattered    numbers sent (of Psi)
    ZeRO-1   once a step                             after the last micro-batch    2 Psi
    ZeRO-2   once a step                             after each micro-batch        (1 + n) Psi
    ZeRO-3   for each forward and each backward      after each micro-batch        3 n Psi
    HSDP     as its ZeRO stage, among its shards     as its stage; after the last micro-batch, an all-reduce
                                                     of the rank's own part over the replicas

A stage's root (embedding, last norm, head) is gathered once for forward and backward together; in a pipeline,
where some micro-batch is always between the two, once a step.

Every module sums: nothing divides by the number of ranks, since the loss is already divided by the tokens of
the whole global batch. In bf16 (and fp16) copies for compute are gathered in that, gradients summed in fp32.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from scalewright.model.decoder import Decoder
from scalewright.parallel.mesh import Mesh, backend_for
from scalewright.parallel.shard_timers import time_shards
from scalewright.parallel.stages import tied_stages
from scalewright.parallel.weights import Weights
from scalewright.spec.layout import Layout
from scalewright.spec.memory import offloads_parameters
from scalewright.spec.schedule import find_kind


class ShardedGradients:
    """When FSDP gathers, reduces and frees, in every stage of this rank.

    FSDP reduces on its own in a backward that runs whole, as it goes. It is kept quiet, and `end` reduces, in
    schedules that split the backward, where its own reduction would come after the input part, before there
    are gradients; and with a user's own module, whose ranks and micro-batches may each leave other parameters
    unused, in ZeRO-1 and before torch 2.12. A stage whose embedding another stage of this rank multiplies
    with (the tied head of a V) is reduced when both are done.
    """

    def __init__(self, stages: Mapping[int, nn.Module], weights: Weights, layout: Layout) -> None:
        self.weights = weights
        self.zero_stage = layout.zero_stage
        self.pipeline = layout.pp > 1
        self.split = self.pipeline and find_kind(layout.schedule).splits
        told = self.zero_stage != 1 and _can_reduce_unused(FSDPModule)
        self.own = not told and not all(isinstance(s, Decoder) for s in stages.values())
        self.modules = {number: _sharded(stage) for number, stage in stages.items()}
        self.roots = {number: modules[0] for number, modules in self.modules.items()}
        # A tied head on this rank: who multiplies with the embedding, and the module that holds it.
        self.tied = tied_stages(stages)
        self.lender: FSDPModule | None = None
        if self.tied:
            self.lender = self.roots[min(stages)]
            self.modules[min(stages)] = self.modules[min(stages)][1:]
            _set(self.lender, sync=False, all_reduce=False, reshard=False)
        self.done: set[int] = set()

    def clear(self) -> None:
        """Before a step: forgets the last one's gradients, and keeps FSDP quiet until it is asked."""
        for weight in self.weights:
            weight.compute.grad = weight.master.grad = None  # both ends: neither keeps the last step's alive
        self.done.clear()
        for number in self.modules:
            self._quiet(number)

    def begin(self, stage: int, last: bool) -> None:
        """Before a micro-batch; in a pipeline, before a backward (or its weight part) of a stage."""
        if self.split:
            if self.zero_stage == 3:
                self._gather(stage)
            return
        if self.own:
            return
        for module in self.modules[stage]:
            self._allow(module, stage, last)
        self.roots[stage].set_is_last_backward(last)

    def end(self, stage: int, last: bool) -> None:
        """After it: reduces what FSDP didn't by itself."""
        quiet = self.split or self.own
        if quiet and (last or self.zero_stage >= 2):
            if self.own:
                accumulate_now(self.modules[stage], fill=True)
            for module in self.modules[stage]:
                self._allow(module, stage, last)
            reduce_now(self.roots[stage], self.modules[stage], last=last)
        elif quiet:
            accumulate_now(self.modules[stage])
        self._quiet(stage)
        if self.lender is not None and stage in self.tied:
            self._end_tied(stage, last)

    def finish(self) -> None:
        """FSDP has let the current stream wait for its reductions at the end of each last backward."""

    def _gather(self, stage: int) -> None:
        """For a weight part: its norms read their weights again, and no hook gathers those in time.

        FSDP's own hooks run again in it where a norm ends a block (Gemma's), and must not free what was
        gathered: without these flags the gathers are no longer those of spec/traffic.py.
        """
        for module in self.modules[stage]:
            module.unshard()
            _set(module, sync=False, all_reduce=False, reshard=False)

    def _allow(self, module: FSDPModule, stage: int, last: bool) -> None:
        """Lets FSDP do what the ZeRO stage asks for in this micro-batch."""
        kept = self.zero_stage < 3 or (self.pipeline and module is self.roots[stage])
        sync = last or self.zero_stage >= 2
        _set(module, sync=sync, all_reduce=last, reshard=last or not kept)

    def _quiet(self, stage: int) -> None:
        """No reduction; parameters are freed after a backward only where the next forward gathers again."""
        for module in self.modules[stage]:
            kept = self.zero_stage < 3 or (self.pipeline and module is self.roots[stage])
            _set(module, sync=False, all_reduce=False, reshard=not kept)
        self.roots[stage].set_is_last_backward(False)

    def _end_tied(self, stage: int, last: bool) -> None:
        """Adds one end's part to the embedding's gradient, and reduces it when both ends have given all."""
        assert self.lender is not None
        if last:
            self.done.add(stage)
        if self.done != self.tied:
            accumulate_now([self.lender])
            return
        _set(self.lender, sync=True, all_reduce=True, reshard=True)
        reduce_now(self.lender, [self.lender], last=True)
        _set(self.lender, sync=False, all_reduce=False, reshard=False)


def _sharded(stage: nn.Module) -> list[FSDPModule]:
    """The modules that FSDP handles, the root first."""
    return [module for module in stage.modules() if isinstance(module, FSDPModule)]


def _set(module: FSDPModule, *, sync: bool, all_reduce: bool, reshard: bool) -> None:
    module.set_requires_gradient_sync(sync, recurse=False)
    module.set_requires_all_reduce(all_reduce, recurse=False)
    module.set_reshard_after_backward(reshard, recurse=False)


# -- the two places that use names which torch does not promise ------------------------------------------


def reduce_now(root: FSDPModule, modules: Iterable[FSDPModule], *, last: bool) -> None:
    """Reduces the gradients that lie in the modules' gathered parameters, as the end of a backward would.

    FSDP2 has no public call for it: its reduction hangs on a hook of the backward, which the weight part of a
    split one doesn't reach. torch's own pipeline runtime (`stage.perform_reduce_grad`) calls what is called
    here: `post_backward` of every parameter group, which does as the flags say, and then the callback with
    which a backward ends, which waits and (after the step's last) cleans up. Both have the same names in
    torch 2.11 and 2.13; `_groups` knows the two names of the groups.
    """
    root.set_is_last_backward(last)
    for module in modules:
        for group in _groups(module):
            group.post_backward()
    root._get_fsdp_state()._root_post_backward_final_callback()


def accumulate_now(modules: Iterable[FSDPModule], *, fill: bool = False) -> None:
    """Adds bf16 gradients of the gathered parameters to their fp32 sums, where FSDP isn't to reduce yet.

    `fill` gives a sum to parameters without one, so that every rank reduces the same.
    """
    for module in modules:
        for group in _groups(module):
            for parameter in group.fsdp_params:
                if not hasattr(parameter, "_unsharded_param"):
                    continue  # it has never been gathered
                parameter.accumulate_unsharded_grad_if_needed()
                parameter.to_accumulated_grad_if_needed()
                whole = parameter.unsharded_param
                without = parameter.unsharded_accumulated_grad is None and whole.grad is None
                if fill and without and whole.requires_grad:
                    parameter.unsharded_accumulated_grad = torch.zeros_like(whole, dtype=torch.float32)


def _groups(module: FSDPModule) -> list[Any]:
    """The parameter groups of one FSDP module."""
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    return list(groups)


# -- cutting ---------------------------------------------------------------------------------------------


def apply_shard(
    model: nn.Module, blocks: Iterable[nn.Module], mesh: Mesh, layout: Layout, *, half: torch.dtype | None
) -> None:
    """Shards every block, then what is left, over the mesh's `fsdp` axis, in place.

    Under ZeRO-3 a block's gathered tensors are freed after its forward; the root's stay for the backward.
    With parameters offloaded, the shards lie in host memory, and travel to the device to be gathered.
    """
    reshard = layout.zero_stage == 3
    # Said of every model that ends in a linear layer; nothing of ours works in place on its output.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view", category=UserWarning)
    policy = MixedPrecisionPolicy(
        param_dtype=half,
        reduce_dtype=torch.float32 if half is not None else None,
        cast_forward_inputs=False,
    )
    where = OffloadPolicy()
    if offloads_parameters(layout):
        where = CPUOffloadPolicy(pin_memory=mesh.device.type == "cuda")
    over = _device_mesh(mesh)
    blocks = list(blocks)
    for block in blocks:
        fully_shard(block, mesh=over, mp_policy=policy, reshard_after_forward=reshard, offload_policy=where)
    fully_shard(model, mesh=over, mp_policy=policy, reshard_after_forward=False, offload_policy=where)
    if layout.pp > 1:
        _prefetch_backward(model, blocks)
    # Ranks whose own module leaves other parameters unused must still reduce the same ones. In ZeRO-1 (FSDP's
    # zeros would be bf16 beside sums in fp32, which it refuses to send together), and where FSDP can't be
    # told, that is `accumulate_now`'s.
    for module in _sharded(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        if layout.zero_stage != 1 and _can_reduce_unused(module):
            module.set_reduce_scatter_unused_params(True)
        time_shards(module, mesh)


def _prefetch_backward(stage: nn.Module, blocks: list[nn.Module]) -> None:
    """Each block's backward gathers the one below it ahead of time, and the lowest none.

    By itself FSDP goes back through the forwards of all micro-batches since the step began. In a pipeline the
    forward before the lowest block's is another micro-batch's highest block: gathered for nothing, at the
    step's end too.
    """
    below = [*blocks[:1], *blocks]  # the lowest names itself, since an empty list would be no choice
    for module, target in zip([*blocks, stage], below, strict=True):
        _fsdp(module).set_modules_to_backward_prefetch([_fsdp(target)])


def _fsdp(module: nn.Module) -> FSDPModule:
    assert isinstance(module, FSDPModule)
    return module


def _can_reduce_unused(module: FSDPModule | type[FSDPModule]) -> bool:
    """Whether FSDP can be told to reduce zeros for parameters that a backward left out (torch 2.12)."""
    return hasattr(module, "set_reduce_scatter_unused_params")


def _device_mesh(mesh: Mesh) -> DeviceMesh:
    """What to shard over; a rank alone (whose parameters are to be offloaded) gets a group of itself."""
    if mesh.group("fsdp") is not None:
        return mesh.hsdp_mesh()
    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend_for(mesh.device), store=store, rank=0, world_size=1)
    alone = dist.new_group([mesh.rank], use_local_synchronization=True)
    replicas = mesh.group("dp_replicate")
    if replicas is None:
        return DeviceMesh.from_group(alone, mesh.device.type, mesh_dim_names=("fsdp",))
    ranks = torch.tensor(dist.get_process_group_ranks(replicas), dtype=torch.int).view(-1, 1)
    return DeviceMesh.from_group(
        [replicas, alone], mesh.device.type, mesh=ranks, mesh_dim_names=("dp_replicate", "fsdp")
    )
