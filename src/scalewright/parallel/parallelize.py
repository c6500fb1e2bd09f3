"""The entry of parallel/: the order in which techniques are applied to a model.

    cut, tensor, context, expert -> recompute -> compile -> offload activations -> [shard | cast] -> memory
        -> weights -> gradient sums -> executor

The model is built on the meta device: nothing is allocated before this rank's part of it is cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from scalewright.model.decoder import Decoder
from scalewright.model.moe import MoE
from scalewright.parallel.blocks import blocks_of
from scalewright.parallel.buffers import Buffers
from scalewright.parallel.compile import apply_compile
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
from scalewright.parallel.shard import apply_shard
from scalewright.parallel.shard_gradients import ShardedGradients
from scalewright.parallel.stages import Stages, stages_of, tied_stages
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
    model: nn.Module,
    placements: tuple[Placement, ...],
    layout: Layout,
    mesh: Mesh,
    *,
    bf16: bool,
    compile_blocks: bool = False,
    random: bool = False,
    backend: str = "inductor",
    seq_len: int | None = None,
    memory: AbstractContextManager[Any] | None = None,
    compress: Compress = "none",
) -> Parallel:
    """Applies a layout to a model (or to a pipeline rank's `Stages`) in place; see `fill` for the values.

    `bf16`: computes in bf16, with fp32 masters; a layout whose precision is fp16 computes in that.
    `random`: the blocks use random numbers. `seq_len` prices a recomputation budget (null: the model's own).
    `memory` is entered where space is first allocated: a dry run's takes none.
    `compress`: how whole replicas send their gradients.
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
        spec = stage.spec if isinstance(stage, Decoder) else None
        kind = layout.recompute
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
        for number, stage in stages.items():
            apply_shard(stage, blocks[number], mesh, layout, half=half)
    elif half is not None:
        _cast(model, half)
    with memory or nullcontext():
        allocate(model, layout, mesh.device)
        weights = hold(model, placements, mesh)
        apply_offload(weights, layout, mesh.device)
        gradients = _gradients(stages, weights, layout, mesh, sharded=sharded, half=half, compress=compress)
        executor = _executor(model, layout, mesh, gradients, half)
        return Parallel(model, weights, Buffers(model, mesh), gradients, executor)


def _cast(model: nn.Module, half: torch.dtype) -> None:
    """Parameters in bf16 or fp16, and nothing else, in place: FSDP casts no buffers, so no layout does.

    A rotary table keeps its fp32 angles or its complex numbers.
    """
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(half)


def _gradients(
    stages: Mapping[int, nn.Module],
    weights: Weights,
    layout: Layout,
    mesh: Mesh,
    *,
    sharded: bool,
    half: torch.dtype | None,
    compress: Compress,
) -> GradientSync:
    if sharded:
        return ShardedGradients(stages, weights, layout)
    experts = any(isinstance(module, MoE) for stage in stages.values() for module in stage.modules())
    shared = max(mesh.size("gradient"), mesh.size("ehsdp") if experts else 1)
    if shared > 1 or half is not None:
        overlap, tied = layout.pp == 1, tied_stages(stages)
        return GradientBuckets(weights, mesh, overlap=overlap, tied=tied, compress=compress)
    return LocalGradients(weights)


def _executor(
    model: nn.Module, layout: Layout, mesh: Mesh, gradients: GradientSync, half: torch.dtype | None
) -> Executor:
    if not isinstance(model, Stages):
        return Plain(model, gradients)
    return Pipeline(model, layout, mesh, gradients, half or torch.float32)


def fill(weights: Weights, source: Source) -> None:
    """Sets every weight to its value, and publishes the compute copies."""
    weights.fill(source)
