"""The engine of a run with `engine: deepspeed`: network -> DeepSpeed's engine -> weights, state, steps.

    network    decoder or own module, on the device (ZeRO 3: in parts from the start) -> blocks recompute
               -> with its loss, or as a pipeline's layers -> deepspeed.initialize(JSON)
    step       micro-batches -> DeepSpeed: reduce, norm, clip, update (runners.py)
               loss, tokens, memory, stop -> one all-reduce of ours (train/columns.py)
    norm       before clipping, DeepSpeed's; under ZeRO 0, which keeps none, of the reduced gradients. One that
               isn't finite: no update, by either; the guard counts such steps as ever
    save       weights and moments, whole and one by one, to every rank's boxes -> the same files as ever
    restore    each tensor of a checkpoint, whichever engine and layout wrote it -> DeepSpeed's partitions

First weights and checkpoints go in afterwards, in fp32: DeepSpeed makes masters of what it has cast to bf16. `convert`,
`generate`, `evaluate` and the other engine read what a DeepSpeed run saved; DeepSpeed's own folder of partitions isn't
written, since nothing here would read it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from scalewright.checkpoint.format import OPTIMIZER
from scalewright.checkpoint.read import CheckpointReader
from scalewright.model.decoder import Decoder
from scalewright.model.init import init_box
from scalewright.parallel.collectives import all_sum
from scalewright.parallel.execute import Loss
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import Buffers, Parallel, fill
from scalewright.parallel.recompute import apply_recompute
from scalewright.parallel.stages import Stages, blocks_of, cut_stages, stages_of
from scalewright.parallel.weights import Source, Weight
from scalewright.spec.deepspeed import Config
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import Box, Placement, place, place_plain, stage_layers
from scalewright.spec.run import OptimizerSpec, RunSpec
from scalewright.spec.tensors import TensorSpec
from scalewright.train.batches import DataPosition
from scalewright.train.clipping import squared_norms
from scalewright.train.columns import AUX, LOSS, MEMORY, NORM, STOP, TOKENS, WIDTH, WRITTEN
from scalewright.train.deepspeed.check import check_precision
from scalewright.train.deepspeed.initialize import engine_config, initialize, load_deepspeed, off_stdout
from scalewright.train.deepspeed.runners import Feed, Piped, Whole, WithLoss, build_stages, watch_updates
from scalewright.train.deepspeed.weights import STEP, DeepSpeedWeights, Partitions, find_weights, own_part, whole
from scalewright.train.engine import Engine
from scalewright.train.guard.decide import Guard
from scalewright.train.memory.usage import memory_gib
from scalewright.train.network import Network, build_own_module, checkpoint_source, cut, describe
from scalewright.train.optimizer import is_decayed
from scalewright.train.state.group_state import decode, encode
from scalewright.train.state.optimizer_state import Named, Numbers
from scalewright.train.state.run_state import RunState


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
    custom = not isinstance(run.model, ModelSpec)
    model, placements, source = _own_model(run, mesh) if custom else _our_model(run, mesh, deepspeed, config)
    for part in stages_of(model).values():
        apply_recompute(blocks_of(part), run.layout.recompute, random=custom)
    items = find_weights(model, placements, mesh)
    runner, module = _build_runner(run, model, deepspeed)
    groups = _groups(items, run.optimizer.weight_decay)
    runner.engine = initialize(deepspeed, module, groups, config, run.engine_options)
    record = run.optimizer.record
    partitions = Partitions(deepspeed, runner.engine, stage, record.states, counts=record.step_bytes > 0)
    weights = DeepSpeedWeights(items, partitions)
    parallel = Parallel(model, weights, Buffers(model, mesh), _Reduced(), runner)
    if custom:
        weights.fill(source)
        parallel.buffers.share()
    network = Network(parallel, None if custom else source)
    state = DeepSpeedState(run, network, mesh, weights)
    make_step = partial(DeepSpeedStep, runner, parallel, mesh, stage)
    files = {"ds_config.json": json.dumps(config, indent=2) + "\n"}
    return Engine(network, state, make_step, transparent=False, files=files)


def _our_model(
    run: RunSpec, mesh: Mesh, deepspeed: Any, config: Config
) -> tuple[nn.Module, Sequence[Placement], Source]:
    """This rank's part of the decoder, on the device; and its weights as `init: random` has them."""
    spec = run.model
    assert isinstance(spec, ModelSpec)
    in_parts = deepspeed.zero.Init(config_dict_or_path=config) if run.layout.zero_stage == 3 else nullcontext()
    with off_stdout(), in_parts, torch.device(mesh.device):
        model = cut_stages(spec, run.layout, mesh.index("pp"))

    def source(tensor: TensorSpec, box: Box) -> Tensor:
        return init_box(tensor, spec, run.seed, *box, device=torch.device("cpu"))

    return model, place(spec, run.layout), source


def _own_model(run: RunSpec, mesh: Mesh) -> tuple[nn.Module, Sequence[Placement], Source]:
    """A user's module, and its own first values."""
    model, values = build_own_module(run, mesh)
    return model, place_plain(describe(model), run.layout), lambda tensor, box: cut(values[tensor.name], box)


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
    groups: dict[bool, list[object]] = {True: [], False: []}
    for weight in weights:
        if weight.trained:
            groups[is_decayed(weight)].append(weight.compute)
    return [{"params": group, "weight_decay": weight_decay * decay} for decay, group in groups.items() if group]


class DeepSpeedState(RunState):
    """A rank's part of it."""

    def __init__(self, run: RunSpec, network: Network, mesh: Mesh, weights: DeepSpeedWeights) -> None:
        super().__init__(run, network, weights.partitions.optimizer, mesh)
        self.held, self.partitions = weights, weights.partitions

    def check(self) -> None:
        """Nothing to find: the optimizers that DeepSpeed is given are torch's."""

    def check_first(self) -> None:
        """Nothing to find."""

    def save(self, place: DataPosition, run_id: str, more: dict[str, object], **keys: Any) -> str:
        """Writes a checkpoint, as RunState does."""
        self.held.collect()
        try:
            return super().save(place, run_id, more, **keys)
        finally:
            self.held.release()

    def read_states(self) -> tuple[Named, Numbers]:
        """This rank's boxes of all moments, and Adam's step; nothing before the first update."""
        tensors: Named = {}
        numbers: Numbers = {}
        if not self.partitions.updated:
            return tensors, numbers
        self.partitions.link_states()
        for weight in self.held.trained():
            for kind in self.partitions.kinds:
                moment = own_part(self.partitions.get_state(weight, kind), weight)
                tensors.setdefault(weight.name, {})[kind] = moment
            if self.partitions.counts:
                numbers.setdefault(STEP, {})[weight.name] = encode(torch.tensor(self.partitions.step()))
        return tensors, numbers

    @torch.no_grad()
    def restore(self, reader: CheckpointReader) -> tuple[DataPosition, list[str]]:
        """Brings everything back, as RunState does; raises UserError for steps that differ by weight."""
        fill(self.weights, checkpoint_source(reader))
        notes = self._restore_buffers(reader)
        state = reader.state
        steps = {float(decode(value)) for value in state.get("optimizer", {}).get(STEP, {}).values()}
        if len(steps) > 1 or state.get("optimizer_ranks"):
            problem = "weights were updated different numbers of times, and DeepSpeed counts once for many"
            raise UserError(problem, str(reader.folder), "resume with engine: scalewright")
        if reader.optimizer_states():
            self.partitions.make_states(steps.pop() if steps else 0.0)
        for weight in self.held.trained():
            for kind in self.partitions.kinds:
                name = f"{OPTIMIZER}{kind}/{weight.name}"
                if reader.has(name):
                    moment = reader.read(name, whole(weight), weight.placement.tensor.shape)
                    self.partitions.set_state(weight, kind, moment.to(weight.compute.device))
        return DataPosition(int(state["step"]), int(state["samples"]), int(state["tokens"])), notes


class DeepSpeedStep:
    """Runs steps; what it is called with and returns is that of `train/step.py`."""

    balance = None  # of experts, which run in this tool's own engine

    def __init__(
        self, runner: Whole | Piped, parallel: Parallel, mesh: Mesh, stage: int, loss: Loss, guard: Guard
    ) -> None:
        """`stage`: of ZeRO."""
        self.runner, self.parallel, self.mesh, self.loss, self.guard = runner, parallel, mesh, loss, guard
        self.engine: Any = runner.engine
        self.optimizer: torch.optim.Optimizer = self.engine.basic_optimizer
        self._norm = torch.zeros((), device=mesh.device)
        if stage == 0:
            watch_updates(self.engine, self._look)
        self._stage = stage

    def __call__(self, micros: Sequence[Micro], counted: Tensor, stop: float = 0, written: float = 0.0) -> Tensor:
        """Trains on this rank's micro-batches; [WIDTH + world], as `train/columns.py` has it."""
        mesh = self.mesh
        report = torch.zeros(WIDTH + mesh.world, device=mesh.device)
        tokens = all_sum(counted.to(torch.int64, copy=True), mesh, "loss")
        divisor = tokens.clamp(min=1).to(torch.float32)
        with off_stdout():
            with mesh.timers.phase("compute"):
                report[LOSS : AUX + 1] = self.runner.train(micros, self.loss, divisor)
            with mesh.timers.phase("optimizer"):
                self.runner.update()
        self.parallel.buffers.share()
        report[STOP], report[WRITTEN] = stop, written
        report[MEMORY + mesh.rank] = memory_gib(mesh.device)
        local = self.guard.note_local(report)
        all_sum(report, mesh, mesh.together)
        report[NORM] = self._norm if self._stage == 0 else float(self.engine.get_global_grad_norm())
        self.guard.judge(report, local, 0.0)
        exact = report.double()
        exact[TOKENS] = tokens
        return exact

    @torch.no_grad()
    def _look(self) -> bool:
        """Takes the norm of the reduced gradients; whether it is finite."""
        parts = [
            (1.0 / w.copies, w.compute.grad) for w in self.parallel.weights.trained() if w.compute.grad is not None
        ]
        shares = torch.tensor([share for share, _ in parts], device=self.mesh.device)
        total = (squared_norms([gradient for _, gradient in parts]) * shares).sum()
        self._norm = all_sum(total, self.mesh, "world").sqrt()
        return bool(torch.isfinite(self._norm))
