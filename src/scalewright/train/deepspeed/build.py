"""The engine of a run with `engine: deepspeed`: network -> DeepSpeed's engine -> weights, state, steps.

decoder or own module, on the device (ZeRO 3: in parts from the start)
  -> blocks recompute -> with its loss, or as a pipeline's layers -> deepspeed.initialize(JSON)
  -> first weights and checkpoints go in afterwards, in fp32
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

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
from scalewright.spec.placement import Placement, place, place_plain, stage_layers
from scalewright.spec.run import OptimizerSpec, RunSpec
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
    model, placements, source = _build_model(run, mesh, deepspeed, config)
    items = find_weights(model, placements, mesh)
    runner, module = _build_runner(run, model, deepspeed)
    groups = _groups(items, run.optimizer.weight_decay)
    runner.engine = initialize(deepspeed, module, groups, config, run.engine_options)
    record = run.optimizer.record
    counts = record.step_bytes > 0
    partitions = Partitions(deepspeed, runner.engine, stage, record.states, counts=counts)
    weights = DeepSpeedWeights(items, partitions)
    parallel = Parallel(model, weights, Buffers(model, mesh), _Reduced(), runner)
    if source is not None and not isinstance(run.model, ModelSpec):
        weights.fill(source)
        parallel.buffers.share()
    network = Network(parallel, source if isinstance(run.model, ModelSpec) else None)
    state = DeepSpeedState(run, network, mesh, weights)
    make_step = partial(_make_step, runner, parallel, mesh, stage)
    files = {"ds_config.json": json.dumps(config, indent=2) + "\n"}
    return Engine(network, state, make_step, transparent=False, files=files)


def _build_model(
    run: RunSpec, mesh: Mesh, deepspeed: Any, config: Config
) -> tuple[nn.Module, Sequence[Placement], Source]:
    """This rank's part of the model, on the device; and its first weights, as `init: random` has them."""
    spec, layout = run.model, run.layout
    placements: Sequence[Placement]
    if isinstance(spec, ModelSpec):
        in_parts = deepspeed.zero.Init(config_dict_or_path=config, enabled=layout.zero_stage == 3)
        with off_stdout(), in_parts, torch.device(mesh.device):
            model: nn.Module = cut_stages(spec, layout, mesh.index("pp"))
        placements = place(spec, layout)
        source: Source = lambda t, box: init_box(t, spec, run.seed, *box, device=torch.device("cpu"))  # noqa: E731
    else:
        model, values = build_own_module(run, mesh)
        placements = place_plain(describe(model), layout)
        source = lambda t, box: cut(values[t.name], box)  # noqa: E731
    for part in stages_of(model).values():
        random = not isinstance(spec, ModelSpec)
        apply_recompute(blocks_of(part), layout.recompute, random=random)
    return model, placements, source


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
    with off_stdout():
        return runner, build_stages(deepspeed, feed, layers, tied, runner.loss_of)


def _groups(weights: Sequence[Weight], weight_decay: float) -> list[dict[str, Any]]:
    """Parameters that are decayed, and those that are not."""
    trained = [weight for weight in weights if weight.trained]
    decayed = [weight.compute for weight in trained if is_decayed(weight)]
    plain = [weight.compute for weight in trained if not is_decayed(weight)]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _make_step(
    runner: Whole | Piped, parallel: Parallel, mesh: Mesh, stage: int, loss: Loss, guard: Guard
) -> Stepper:
    return DeepSpeedStep(runner, parallel, mesh, stage, loss, guard)
