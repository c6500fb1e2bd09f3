"""The entry of parallel/: the order in which techniques are applied to a model.

    cut, tensor, context, expert -> recompute -> compile -> offload activations -> [shard | cast] -> memory
        -> weights -> gradient sums -> executor

The model is built on the meta device: nothing is allocated before this rank's part of it is cut.

The buffers of a user's module (running means, counters, tables): part of the model, though not trained.

    a step        rank 0 ──broadcast──► all      once, after the update: ranks enter a step with the same
    a save        rank 0 writes them whole       `buffer/<name>` in a checkpoint, in their own dtype
    a resume      every rank reads them

As in torch's DistributedDataParallel (broadcast_buffers), rank 0's are the model's: running means are those
of its share of the batch. Averages over ranks would suit running means, and spoil masks, counters and tables.
Non-persistent buffers are in no checkpoint and aren't exchanged, as torch has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalewright.model.decoder import Decoder
from scalewright.model.moe import MoE
from scalewright.parallel.context import apply_context
from scalewright.parallel.execute import Executor, GradientSync, Plain
from scalewright.parallel.expert import apply_expert
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.offload_activations import apply_offload_activations
from scalewright.parallel.offload_states import allocate, apply_offload
from scalewright.parallel.pipeline import Pipeline
from scalewright.parallel.power_sgd import PowerSGD
from scalewright.parallel.recompute import apply_recompute
from scalewright.parallel.replicate import GradientBuckets
from scalewright.parallel.stages import Stages, blocks_of, stages_of, tied_stages
from scalewright.parallel.tensor import apply_tensor, cut_parameters
from scalewright.parallel.weights import Source, Weights, hold
from scalewright.spec.compress import Compress
from scalewright.spec.layout import Layout
from scalewright.spec.memory import is_sharded, offloads_activations
from scalewright.spec.placement import Placement


class LocalGradients:
    """One rank in fp32: autograd's own gradients are the sums."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def begin(self, stage: int, last: bool) -> None:
        """Nothing to prepare."""

    def end(self, stage: int, last: bool) -> None:
        """Nothing to reduce."""

    def finish(self) -> None:
        """Nothing to wait for."""

    def clear(self) -> None:
        """Before a step: forgets the last one's gradients."""
        for weight in self.weights:
            weight.compute.grad = None


@dataclass(frozen=True)
class Parallel:
    """A model under its layout: the module, this rank's weights, their gradients, and the executor."""

    model: nn.Module
    weights: Weights
    buffers: Buffers
    gradients: GradientSync
    executor: Executor

    @property
    def compression(self) -> PowerSGD | None:
        """The state of compressed gradients that lasts from step to step."""
        return self.gradients.compression if isinstance(self.gradients, GradientBuckets) else None


def parallelize(
    model: nn.Module, placements: tuple[Placement, ...], layout: Layout, mesh: Mesh, *, bf16: bool,
    compile_blocks: bool = False, random: bool = False, backend: str = "inductor", seq_len: int | None = None,
    memory: AbstractContextManager[Any] | None = None, compress: Compress = "none",
) -> Parallel:  # fmt: skip
    """Applies a layout to a model (or to a pipeline rank's `Stages`) in place; see `fill` for the values.

    `bf16`: computes in bf16, with fp32 masters; a layout whose precision is fp16 computes in that. `random`: the blocks
    use random numbers. `seq_len` prices a recomputation budget (null: the model's own). `memory` is entered where space
    is first allocated: a dry run's takes none. `compress`: how whole replicas send their gradients.
    """
    stages = stages_of(model)
    if layout.tp * layout.cp * layout.ep * layout.etp > 1:
        for stage in stages.values():
            assert isinstance(stage, Decoder), "a user's own module takes data parallelism alone"
            cut_parameters(stage, placements, mesh)
            apply_tensor(stage, layout, mesh)
            apply_context(stage, layout, mesh)
            apply_expert(stage, layout, mesh)
    blocks = {number: blocks_of(stage) for number, stage in stages.items()}
    every_block = [block for of_stage in blocks.values() for block in of_stage]
    for number, stage in stages.items():
        spec, kind = stage.spec if isinstance(stage, Decoder) else None, layout.recompute
        apply_recompute(blocks[number], kind, random=random, model=spec, layout=layout, seq_len=seq_len)
    if compile_blocks:
        apply_compile(every_block, backend, forward_only=offloads_activations(layout))
        for stage in stages.values():
            if isinstance(stage, Decoder):
                stage.compiled = True
    apply_offload_activations(every_block, layout, mesh.device)
    sharded = is_sharded(layout)
    half = torch.float16 if layout.precision == "fp16" else torch.bfloat16 if bf16 else None
    if sharded:
        from scalewright.parallel.shard import apply_shard  # FSDP takes a CPU second to import

        for number, stage in stages.items():
            apply_shard(stage, blocks[number], mesh, layout, half=half)
    elif half is not None:
        for parameter in model.parameters():  # no buffers, as in FSDP: a rotary table keeps its fp32 angles
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(half)
    with memory or nullcontext():
        allocate(model, layout, mesh.device)
        weights = hold(model, placements, mesh)
        apply_offload(weights, layout, mesh.device)
        gradients = _gradients(stages, weights, layout, mesh, sharded=sharded, half=half, compress=compress)
        executor: Executor = Plain(model, gradients)
        if isinstance(model, Stages):
            executor = Pipeline(model, layout, mesh, gradients, half or torch.float32)
        return Parallel(model, weights, Buffers(model, mesh), gradients, executor)


def _gradients(
    stages: Mapping[int, nn.Module], weights: Weights, layout: Layout, mesh: Mesh, *, sharded: bool,
    half: torch.dtype | None, compress: Compress,
) -> GradientSync:  # fmt: skip
    if sharded:
        from scalewright.parallel.shard_gradients import ShardedGradients

        return ShardedGradients(stages, weights, layout)
    experts = any(isinstance(module, MoE) for stage in stages.values() for module in stage.modules())
    shared = max(mesh.size("gradient"), mesh.size("ehsdp") if experts else 1)
    if shared > 1 or half is not None:
        overlap, tied = layout.pp == 1, tied_stages(stages)
        return GradientBuckets(weights, mesh, overlap=overlap, tied=tied, compress=compress)
    return LocalGradients(weights)


def fill(weights: Weights, source: Source) -> None:
    """Sets every weight to its value, and publishes the compute copies."""
    weights.fill(source)


def apply_compile(blocks: Iterable[nn.Module], backend: str = "inductor", *, forward_only: bool = False) -> None:
    """Compiles every block's call, in place: blocks are alike, so the compiler works once for all of them.

    `forward_only`: later wrappers of the forward stay outside.
    """
    for block in blocks:
        if forward_only:
            block.forward = torch.compile(block.forward, backend=backend)
        else:
            block.compile(backend=backend)


class Buffers:
    """All persistent buffers of a module that every rank holds whole."""

    def __init__(self, model: nn.Module, mesh: Mesh) -> None:
        self.model = model
        self.mesh = mesh

    def named(self) -> dict[str, Tensor]:
        """The buffers by their names in `state_dict`, as they are now."""
        return {name: value for name, value in self._slots() if value is not None}

    def _slots(self) -> Iterator[tuple[str, Tensor | None]]:
        for prefix, module in self.model.named_modules():
            for key, value in module._buffers.items():
                if key not in module._non_persistent_buffers_set:
                    yield (f"{prefix}.{key}" if prefix else key), value

    @torch.no_grad()
    def share(self) -> None:
        """Copies rank 0's buffers to every rank, in one message; the host waits for nothing."""
        if (group := self.mesh.group(self.mesh.together)) is None:
            return
        tensors = sorted(self.named().values(), key=lambda t: -t.element_size())  # views stay aligned
        tensors = [tensor for tensor in tensors if tensor.numel()]
        if not tensors:
            return
        flat = torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])
        with self.mesh.timers.comm(self.mesh.together):
            dist.broadcast(flat, group=group, group_src=0)
        if dist.get_rank(group) == 0:
            return
        start = 0
        for tensor in tensors:
            size = tensor.numel() * tensor.element_size()
            tensor.copy_(flat[start : start + size].view(tensor.dtype).view(tensor.shape))
            start += size

    @torch.no_grad()
    def load(self, read: Callable[[str], Tensor | None]) -> list[str]:
        """Sets each buffer to `read(name)`, in its dtype and shape; returns the names without one."""
        missing = []
        devices = {tensor.device for tensor in self.model.parameters()} or {torch.device("cpu")}
        for name, value in list(self._slots()):
            if (stored := read(name)) is None:
                missing += [name] if value is not None else []
            elif value is not None and (value.shape, value.dtype) == (stored.shape, stored.dtype):
                value.copy_(stored)
            else:  # it grew since the module was made, or was made in the first forward
                prefix, _, key = name.rpartition(".")
                device = value.device if value is not None else next(iter(devices))
                self.model.get_submodule(prefix)._buffers[key] = stored.to(device)
        return missing
