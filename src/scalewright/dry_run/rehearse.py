"""Plays one rank of a world that isn't there: its real program, on fake tensors, watched.

    fake process group    every collective returns at once, and is counted
    fake tensors          shapes, dtypes and life times, no memory
    the rest              what `train` runs: `build_network`, the executor, `Step`, the optimizer

A few micro-batches are run, and the rest of the step follows from them. Without a pipeline they are the first, a middle
one and the last. A pipeline's step is cut into pieces, one an action (`ActionRecorder`), and put together from them
(replay.py), also for ranks that hold the same elsewhere in the pipeline:

    begin()   what comes first | F0 | F1 | B0 | ... | arrived()   what comes last   end()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from scalewright.data.batch import IGNORED
from scalewright.dry_run.live_bytes import KINDS, plain
from scalewright.dry_run.no_numbers import gpu_forms, use_stand_ins
from scalewright.dry_run.replay import Key, Piece, RankStep, Script, replay, shorten, sorts
from scalewright.dry_run.watch import Tally, Watch
from scalewright.model.torch_private import FakeTensorMode, complete_fakes, fake_store
from scalewright.parallel.execute import GradientSync, Plain, Recorder
from scalewright.parallel.inputs import Micro, document_arguments, wanted_by
from scalewright.parallel.mesh import Mesh, leave_world, make_mesh
from scalewright.parallel.offload_states import HostMasters, is_host, mark_host
from scalewright.parallel.parallelize import Parallel
from scalewright.parallel.pipeline import Pipeline
from scalewright.parallel.shard_gradients import kept_gradients
from scalewright.spec.grid import Grid
from scalewright.spec.groups import ISLANDS, USED
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import DataSpec, RunSpec
from scalewright.spec.schedule import Action, Schedule, layout_schedule
from scalewright.train.balance import Balance
from scalewright.train.diloco import AXIS
from scalewright.train.engine import build_islands
from scalewright.train.loss import build_loss
from scalewright.train.network import build_network, load_python, types_explained
from scalewright.train.optimizer import build_optimizer
from scalewright.train.step import Step

CPU = torch.device("cpu")
Waiting = Callable[[], Iterable[Tensor]]  # gradients that FSDP keeps from one micro-batch to the next
Played = Callable[[int], RankStep]  # A rank's step, by the rank's place in the pipeline.


@contextmanager
def fake_world(grid: Grid, rank: int) -> Iterator[Mesh]:
    """A process group whose other ranks don't exist, and one rank's mesh in it."""
    complete_fakes()
    dist.init_process_group("fake", store=fake_store(), rank=rank, world_size=grid.world)
    try:
        yield make_mesh(grid, rank, CPU, axes=(*USED, *ISLANDS) if grid.islands else USED, share=False, only_own=True)
    finally:
        leave_world()


def rehearse(run: RunSpec, grid: Grid, rank: int, seq_len: int, *, bf16: bool, on_gpu: bool) -> Played:
    """One rank's step. `run` is resolved; a user's own module is run with real numbers.

    `on_gpu`: operators keep what CUDA's kernels keep (no_numbers.py), not what a CPU's do.
    """
    fake: AbstractContextManager[Any] = nullcontext()
    forms: AbstractContextManager[Any] = nullcontext()
    if isinstance(run.model, ModelSpec):
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        forms = gpu_forms() if on_gpu else nullcontext()
        use_stand_ins()
    with fake_world(grid, rank) as mesh:
        network = build_network(run, mesh, bf16=bf16, memory=fake)
        with fake:
            _settle(network.parallel)
        with fake, forms, Watch(mesh) as watch:
            player = Player(run, network.parallel, mesh, seq_len, watch)
            player.warm_up()
            with types_explained(run, network.parallel.model):
                played = player.play()
            return player.with_outer_steps(played)


def _gather_once(parallel: Parallel) -> None:
    """Makes the space that FSDP gathers into, as a first step does."""
    for module in parallel.model.modules():
        if isinstance(module, FSDPModule):
            module.unshard()
            module.reshard()


def _settle(parallel: Parallel) -> None:
    """Lets FSDP pad its shards, before there is an optimizer, and the weights follow.

    It does so in a first step, to shards that aren't padded yet. Fake tensors have no addresses by which it
    could detect that they are.
    """
    before = {id(weight): is_host(weight.master) for weight in parallel.weights}
    _gather_once(parallel)
    if parallel.weights.host is not None:  # masters are apart from the shards, which stay on the device
        parallel.weights.host = HostMasters(parallel.weights, CPU)
        return
    for weight in parallel.weights:
        if isinstance(weight.compute, DTensor):
            local = weight.compute.to_local().detach()
            if before[id(weight)]:
                mark_host(local)
            weight.master = nn.Parameter(local, requires_grad=weight.compute.requires_grad)


class Player:
    """A rank's program, built, and what it is fed."""

    def __init__(self, run: RunSpec, parallel: Parallel, mesh: Mesh, seq_len: int, watch: Watch) -> None:
        self.run, self.mesh, self.seq_len, self.watch = run, mesh, seq_len, watch
        optimizer = build_optimizer(
            run.optimizer, parallel.weights, load_python, mesh, half=run.layout.precision == "bf16"
        )
        vocabulary = run.model.vocab_size if isinstance(run.model, ModelSpec) else None
        loss = build_loss(run.loss, run.train.z_loss, load_python, mesh, vocabulary, mtp_weight=run.train.mtp_weight)
        clip = getattr(run.optimizer, "clip_norm", 0.0)
        balance = Balance.of(run.train.balance, mesh, parallel.model)
        # there are no numbers to look at
        self.step = Step(parallel, optimizer, loss, mesh, clip, look=False, balance=balance)
        watch.register(parallel.weights, optimizer)
        executor = parallel.executor
        assert isinstance(executor, Plain | Pipeline)
        marked = _Marked if isinstance(executor, Pipeline) else _Tallied
        executor.gradients = self.gradients = marked(executor.gradients, watch, self.waiting)
        if parallel.compression is not None:
            parallel.compression.steps = parallel.compression.spec.start_after  # a step that is compressed
            watch.keeps(parallel.compression.tensors())
        self.islands = build_islands(run, parallel, mesh)
        for state in self.islands.tensors() if self.islands is not None else ():
            watch.live.tag(state, "optimizer")

    def warm_up(self) -> None:
        """Makes what a first step makes once: the optimizer's states, and the space FSDP gathers into."""
        _gather_once(self.step.parallel)
        trained = self.step.parallel.weights.trained()
        for weight in trained:
            weight.master.grad = torch.zeros_like(weight.master)
        self.step.optimizer.step()
        self.step.optimizer.zero_grad(set_to_none=True)

    def play(self) -> Played:
        """A step."""
        if self.islands is not None:
            self.islands.hold_under_way()
        layout, executor = self.run.layout, self.step.parallel.executor
        if isinstance(executor, Pipeline):
            plan = layout_schedule(layout)
            script = self._write(executor, shorten(plan, self.mesh.index("pp")))
            return lambda pp: replay(script, plan, pp)
        step = self._run_some(layout.accumulation)
        return lambda pp: step

    def _run_some(self, micros: int) -> RankStep:
        """A step without a pipeline: its first micro-batch, a middle one, and its last.

        ZeRO 0 and 3 do the same for the first as for those in the middle, so that two are enough.
        """
        assert isinstance(self.gradients, _Tallied)
        run = 3 if self.run.layout.zero_stage in (1, 2) else 2
        step = self.run_step(min(run, micros))
        if micros <= run:
            return step
        flops, sent = between(*self.gradients.tallies[-2:])  # of a micro-batch in the middle
        traffic, more = dict(step.traffic), micros - run
        for key, (count, size) in sent.items():
            traffic[key] = (traffic[key][0] + more * count, traffic[key][1] + more * size)
        return RankStep(step.flops + more * flops, traffic, step.most, step.at_peak)

    def with_outer_steps(self, played: Played) -> Played:
        """Steps as they are, and what joins islands: outer steps of all fragments, one after another."""
        if self.islands is None:
            return played
        islands = self.islands
        islands.under_way, islands.step, islands.last = [], 0, 1
        self.watch.updating = True
        outer = self._watched(islands.after_step)
        outer = replace(outer, traffic={key: sent for key, sent in outer.traffic.items() if key[0] == AXIS})
        return lambda pp: _with_outer(played(pp), outer)

    def run_step(self, micros: int) -> RankStep:
        """A step of some micro-batches, from end to end."""

        def run() -> None:
            micro_batches = self.micros()
            self.step(micro_batches[:micros], torch.zeros(()))

        return self._watched(run)

    def _watched(self, run: Callable[[], object]) -> RankStep:
        self.watch.clear()
        window = self.watch.live.open()
        run()
        self.watch.live.close(window)
        return RankStep(*self.watch.tally(), plain(window.most), plain(window.at_peak))

    def _write(self, pipeline: Pipeline, part: Schedule) -> Script:
        micro_batches = self.micros()
        recorder = ActionRecorder(self.watch, part, self.mesh.index("pp"))
        pipeline.follow(part)
        pipeline.recorder = recorder
        self.watch.clear()
        recorder.begin()
        self.step(micro_batches[: part.micro_batches], torch.zeros(()))
        return recorder.end()

    def waiting(self) -> Iterator[Tensor]:
        """Gradients that the next micro-batch's are added to, where FSDP holds them."""
        modules = self.step.parallel.model.modules()
        return kept_gradients(module for module in modules if isinstance(module, FSDPModule))

    def micros(self) -> list[Micro]:
        """All micro-batches of a step; they are there from its beginning."""
        return [self.micro() for _ in range(self.run.layout.accumulation)]

    def micro(self) -> Micro:
        """A micro-batch of zeros; rows hold several documents where the data may have them."""
        rows, wanted = self.run.layout.micro_batch, wanted_by(self.step.parallel.model, trains=True)
        length = self.seq_len if wanted.cut is None else self.seq_len // wanted.cut.ranks
        arguments: dict[str, Tensor] = {}
        if wanted.cut is not None:
            arguments["positions"] = torch.zeros((1, length), dtype=torch.int64)
        data = self.run.data
        if isinstance(data, DataSpec) and data.masked:
            for name, field in document_arguments(wanted.arguments).items():
                whole = field == "documents"  # of whole rows, for any cut
                shape, dtype = (rows, self.seq_len if whole else length), torch.int32 if whole else torch.int64
                arguments[name] = torch.zeros(shape, dtype=dtype)
        tokens = torch.zeros((rows, length), dtype=torch.int64)
        targets = torch.full((rows, length), IGNORED)
        if wanted.ahead:
            arguments["ahead"] = torch.zeros((wanted.ahead, rows, length), dtype=torch.int64)
            targets = torch.full((1 + wanted.ahead, rows, length), IGNORED)
        return Micro(tokens, targets, arguments)


def _with_outer(step: RankStep, outer: RankStep) -> RankStep:
    highest = outer.at_peak if outer.peak > step.peak else step.at_peak
    of_both = {kind: max(size, outer.most[kind]) for kind, size in step.most.items()}
    return RankStep(step.flops, step.traffic, of_both, highest, outer.traffic)


class _Marked:
    """Gradients as they are; what is made while they are reduced is no forward's activation."""

    def __init__(self, gradients: GradientSync, watch: Watch, waiting: Waiting) -> None:
        self.gradients, self.watch, self.waiting = gradients, watch, waiting
        self.clear, self.begin, self.finish = gradients.clear, gradients.begin, gradients.finish

    def end(self, stage: int, last: bool) -> None:
        """After a micro-batch's backward, or its weight part."""
        self.watch.updating = True
        self.gradients.end(stage, last)
        self.watch.updating = False
        self.watch.kept(self.waiting())


class _Tallied:
    """Gradients as they are, and what the watch had counted when each micro-batch began."""

    def __init__(self, gradients: GradientSync, watch: Watch, waiting: Waiting) -> None:
        self.gradients, self.watch, self.waiting = gradients, watch, waiting
        self.clear, self.finish = gradients.clear, gradients.finish
        self.tallies: list[Tally] = []

    def begin(self, stage: int, last: bool) -> None:
        """Before a micro-batch."""
        self.tallies.append(self.watch.tally())
        self.gradients.begin(stage, last)

    def end(self, stage: int, last: bool) -> None:
        """After one."""
        self.gradients.end(stage, last)
        self.watch.kept(self.waiting())


class ActionRecorder(Recorder):
    """A pipeline's recorder: makes a piece of what was counted between an action's begin and its end."""

    def __init__(self, watch: Watch, plan: Schedule, rank: int) -> None:
        self.watch = watch
        self._sorts = sorts(plan, rank)
        self._pieces: dict[Key, Piece] = {}
        self._before: Piece | None = None
        self._alive = watch.live.snapshot()

    def begin(self) -> None:
        """A piece begins here."""
        self._start = dict(self.watch.live.now)
        self._tally = self.watch.tally()
        self._window = self.watch.live.open()

    def arrived(self) -> None:
        """All messages have: what comes last begins."""
        self.begin()

    def before(self, action: Action) -> None:
        """An action begins; what came before the first is a piece, too."""
        if self._before is None:
            self._before = self._close()
        self.begin()

    def after(self, action: Action) -> None:
        """An action has ended."""
        self._pieces[next(self._sorts)] = self._close()

    def end(self) -> Script:
        """The step has ended."""
        assert self._before is not None
        return Script(self._alive, self._before, self._pieces, self._close())

    def _close(self) -> Piece:
        window = self.watch.live.close(self._window)
        flops, sent = between(self._tally, self.watch.tally())
        then = (self.watch.live.now, window.most, window.at_peak)
        change, most, peak = (plain({kind: x[kind] - self._start[kind] for kind in KINDS}) for x in then)
        return Piece(flops, sent, change, most, peak)


def between(before: Tally, after: Tally) -> Tally:
    """What was counted between two tallies."""
    sent = {}
    for key, (count, size) in after[1].items():
        count_before, size_before = before[1].get(key, (0, 0))
        if count > count_before:
            sent[key] = (count - count_before, size - size_before)
    return after[0] - before[0], sent
