"""The engine of a run with `engine: deepspeed`: network -> DeepSpeed's engine -> weights, state, steps.

    decoder or own module, on the device (ZeRO 3: in parts from the start)
      -> blocks recompute -> with its loss, or as a pipeline's layers -> deepspeed.initialize(JSON)

First weights and checkpoints go in afterwards, in fp32: DeepSpeed makes masters of what it has cast to bf16.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from scalewright.model.decoder import Decoder
from scalewright.model.init import init_box
from scalewright.parallel.blocks import blocks_of
from scalewright.parallel.buffers import Buffers
from scalewright.parallel.execute import Loss
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import Parallel
from scalewright.parallel.recompute import apply_recompute
from scalewright.parallel.stages import Stages, cut_stages, stages_of
from scalewright.parallel.weights import Source, Weight
from scalewright.spec.deepspeed import Config
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import Box, Placement, place, place_plain, stage_layers
from scalewright.spec.run import OptimizerSpec, RunSpec
from scalewright.spec.tensors import TensorSpec
from scalewright.train.deepspeed.check import check_precision
from scalewright.train.deepspeed.config import engine_config
from scalewright.train.deepspeed.initialize import initialize, load_deepspeed, off_stdout
from scalewright.train.deepspeed.runners import Piped, Whole, WithLoss
from scalewright.train.deepspeed.stages import Feed, build_stages
from scalewright.train.deepspeed.state import DeepSpeedState
from scalewright.train.deepspeed.step import DeepSpeedStep
from scalewright.train.deepspeed.weights import DeepSpeedWeights, Partitions, find_weights
from scalewright.train.engine import Engine, Stepper
from scalewright.train.guard.decide import Guard
from scalewright.train.network import Network, build_own_module, cut, describe
from scalewright.train.optimizer import is_decayed


class _Reduced:
    """DeepSpeed's own reduction of gradients, in the place of ours."""

    def clear(self) -> None: ...
    def begin(self, stage: int, last: bool) -> None: ...
    def end(self, stage: int, last: bool) -> None: ...
    def finish(self) -> None: ...


def build_deepspeed(run: RunSpec, mesh: Mesh) -> Engine:
    """A rank's engine. All ranks call it; raises UserError for what DeepSpeed refuses."""
    check_precision(run.layout)
    assert isinstance(run.optimizer, OptimizerSpec)
    config, deepspeed, stage = engine_config(run), load_deepspeed(mesh), run.layout.zero_stage
    if isinstance(run.model, ModelSpec):
        model, placements, source = _our_model(run.model, run, mesh, deepspeed, config)
    else:
        model, placements, source = _own_model(run, mesh)
    own = not isinstance(run.model, ModelSpec)
    for part in stages_of(model).values():
        apply_recompute(blocks_of(part), run.layout.recompute, random=own)
    items = find_weights(model, placements, mesh)
    runner, module = _build_runner(run, model, deepspeed)
    groups = _groups(items, run.optimizer.weight_decay)
    runner.engine = initialize(deepspeed, module, groups, config, run.engine_options)
    record = run.optimizer.record
    partitions = Partitions(deepspeed, runner.engine, stage, record.states, counts=record.step_bytes > 0)
    weights = DeepSpeedWeights(items, partitions)
    parallel = Parallel(model, weights, Buffers(model, mesh), _Reduced(), runner)
    if own:
        weights.fill(source)
        parallel.buffers.share()
    network = Network(parallel, None if own else source)
    state = DeepSpeedState(run, network, mesh, weights)
    make_step = partial(_make_step, runner, parallel, mesh, stage)
    files = {"ds_config.json": json.dumps(config, indent=2) + "\n"}
    return Engine(network, state, make_step, transparent=False, files=files)


def _our_model(
    spec: ModelSpec, run: RunSpec, mesh: Mesh, deepspeed: Any, config: Config
) -> tuple[nn.Module, Sequence[Placement], Source]:
    """This rank's part of the decoder, on the device; and its weights as `init: random` has them."""
    sharded = run.layout.zero_stage == 3
    in_parts = deepspeed.zero.Init(config_dict_or_path=config) if sharded else nullcontext()
    with off_stdout(), in_parts, torch.device(mesh.device):
        model = cut_stages(spec, run.layout, mesh.index("pp"))

    def source(tensor: TensorSpec, box: Box) -> Tensor:
        return init_box(tensor, spec, run.seed, *box, device=torch.device("cpu"))

    return model, place(spec, run.layout), source


def _own_model(run: RunSpec, mesh: Mesh) -> tuple[nn.Module, Sequence[Placement], Source]:
    """A user's module, and its own first values."""
    model, values = build_own_module(run, mesh)

    def source(tensor: TensorSpec, box: Box) -> Tensor:
        return cut(values[tensor.name], box)

    return model, place_plain(describe(model), run.layout), source


def _build_runner(run: RunSpec, model: nn.Module, deepspeed: Any) -> tuple[Whole | Piped, nn.Module]:
    """What runs micro-batches, its engine still to come; and the module for that."""
    layout = run.layout
    averaged = layout.dp * layout.accumulation
    if not isinstance(model, Stages):
        return Whole(None, averaged), WithLoss(model)
    (decoder,) = model.stages.values()
    assert isinstance(decoder, Decoder)
    feed = Feed(decoder)
    runner = Piped(feed, averaged, layout.micro_batch)
    tied, layers = decoder.spec.tie_word_embeddings, stage_layers(decoder.spec, layout)
    with off_stdout(), torch.no_grad():  # it broadcasts tied weights, which autograd would take note of
        return runner, build_stages(deepspeed, feed, layers, tied, runner.loss_of)


def _groups(weights: Sequence[Weight], weight_decay: float) -> list[dict[str, object]]:
    """Parameters that are decayed, and those that are not."""
    trained = [weight for weight in weights if weight.trained]
    decayed = [weight.compute for weight in trained if is_decayed(weight)]
    plain = [weight.compute for weight in trained if not is_decayed(weight)]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _make_step(runner: Whole | Piped, parallel: Parallel, mesh: Mesh, stage: int, loss: Loss, guard: Guard) -> Stepper:
    return DeepSpeedStep(runner, parallel, mesh, stage, loss, guard)
