"""What one rank trains with, from `train/build.py`, and where it stands; its validations, saves and rewinds.

build.py ──► Session ──► loop.py, a step at a time ──► worker.py: records closed, answer
"""

from __future__ import annotations

import hashlib
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from scalewright.checkpoint.asynchronous import AsyncSaver
from scalewright.checkpoint.format import committed, step_folder
from scalewright.checkpoint.memory.tier import MemoryTier
from scalewright.checkpoint.read import CheckpointReader, set_aside
from scalewright.checkpoint.store.upload import Uploader
from scalewright.data.dataset import Dataset
from scalewright.data.mixture import LeftOut, Range
from scalewright.evaluate.validate import validate
from scalewright.launch.regroup import Line
from scalewright.parallel.collectives import all_sum, from_rank_zero, gather_json
from scalewright.parallel.execute import Loss
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import Parallel
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.run import RunSpec
from scalewright.train.batches import DataPosition, StepBatches, go_to_place, reading_place
from scalewright.train.engine import Engine, Stepper
from scalewright.train.guard.copies import Copies
from scalewright.train.guard.decide import Guard
from scalewright.train.guard.health import Health, Rewinder, Target
from scalewright.train.hangs.watchdog import Watchdog
from scalewright.train.learning_rate import Horizon
from scalewright.train.loss import DEFAULT_LOSS, build_loss
from scalewright.train.metrics.measured import Counter, Readback
from scalewright.train.metrics.record import Record
from scalewright.train.network import load_python
from scalewright.train.optimizer import base_rate
from scalewright.train.resolve import Resolved
from scalewright.train.signals import StopRequest
from scalewright.train.state.attempts import Recovery
from scalewright.train.state.changes import data_settings, run_settings
from scalewright.train.state.live import Owed
from scalewright.train.state.run_state import RunState
from scalewright.train.step import Step

LAG_S = 0.1  # that a save may wait for the one before it, unsaid
GIVE_UP = 2  # asynchronous saves that fail in a row; the run then waits for one


@dataclass
class Session:
    """The objects of one rank; the loop and all that surrounds it take this one."""

    resolved: Resolved
    horizon: Horizon  # of the whole run, which the learning rate is laid over
    last: int  # step of this call
    mesh: Mesh
    engine: Engine
    loss: Loss
    dataset: Dataset
    valid: Dataset | None
    run_id: str
    resumed: int | None  # the step of the checkpoint that this call continues from
    place: DataPosition  # where its batches begin: at the start, a resume, or the newest rewind
    done: int  # steps that the weights have behind them
    guard: Guard
    left_out: list[Range]  # by rewinds
    watch: Watchdog
    record: Record | None = None  # rank 0's
    cut_short: bool = False  # a stop ended the validation of step `done`, which is made up
    doing: int = 0  # the step that was begun last
    began: float = 0.0  # when, by perf_counter
    owes: int = 0  # after step `done`: 2 its row, and what comes then; 1 that alone
    owed: Owed | None = None  # of a step of the session before this one, in which ranks were lost
    line: Line | None = None  # where ranks that are left go on in their processes
    measured: tuple[int, float] | None = None  # the newest held-out loss, and its step
    save_problem: str | None = None
    memory: MemoryTier | None = None  # the newest steps in the nodes' memory; None: they aren't kept
    memory_goes_on: bool = True
    recovery: Recovery | None = None  # rank 0's, until the first step after a failure is done
    _begun: dict[int, tuple[float, float]] = field(default_factory=dict)  # saves under way: since when, their stall
    _to_offer: list[int] = field(default_factory=list)  # finished ones that may go to the store
    uploader: Uploader | None = None  # with checkpoint.store

    @property
    def run(self) -> RunSpec:
        """The run, with what its devices and its checkpoint settled."""
        return self.resolved.run

    @property
    def parallel(self) -> Parallel:
        """The model under its layout."""
        return self.engine.network.parallel

    @property
    def state(self) -> RunState:
        """What outlives the process."""
        return self.engine.state

    @cached_property
    def step(self) -> Stepper:
        """One optimizer step at a time. From the first access on routers' choices are counted."""
        step = self.engine.make_step(self.loss, self.guard)
        if isinstance(step, Step):
            step.survives = self.line is not None
            if step.islands is not None:
                step.islands.survives = step.survives
        if isinstance(step, Step) and (self.saver or self.memory):
            step.before_update = self._copied
        return step

    @cached_property
    def saver(self) -> AsyncSaver | None:
        """Saves while the run trains on; None: the run waits for its saves."""
        if not (self.run.checkpoint.async_ and self.run.checkpoint.every):
            return None
        return AsyncSaver(self.mesh, apart=self.engine.transparent, limit_s=self.run.train.timeouts.start_s)

    @cached_property
    def base_rate(self) -> float:
        """The highest learning rate, as it was before the first step set another."""
        return base_rate(self.run.optimizer, self.state.optimizer)

    @cached_property
    def health(self) -> Health:
        """The reaction to bad numbers."""
        guard, rewinder = self.run.train.guard, None
        if guard.spike == "rewind":
            root = self.run.folder / "checkpoints"
            rewinder = Rewinder(root, self.mesh, self.run.layout.global_batch, self.place, self.settle_save)
        followed = self.parallel, self.loss, self.mesh, self.record, guard.spike, guard.patience
        again = self.step.again if isinstance(self.step, Step) and self.state.islands is None else None
        replays = self.engine.transparent
        return Health(*followed, self.seed, self._save_if_none, rewinder, replays=replays, again=again)

    @cached_property
    def copies(self) -> Copies:
        """The comparison of what several ranks hold alike; of another engine's nothing is."""
        state, guard = self.state, self.run.train.guard
        every = guard.check_copies if self.engine.transparent else 0
        return Copies(
            self.parallel.weights, state.optimizer, self.mesh, every, guard.corruption, state.islands, self.record
        )

    @cached_property
    def counter(self) -> Counter:
        """Counts what a step holds and sends."""
        state, counts = self.state, self.engine.transparent
        return Counter(self.mesh, self.parallel, state.optimizer, state.islands, counts=counts)

    def recovered(self, step: int) -> None:
        """Writes what coming back after a failure took, once a step is done again."""
        if self.recovery is not None and self.record is not None:
            fields, self.recovery = self.recovery.fields(self.mesh.world), None
            parts = {"found": "detect_s", "ranks met": "rendezvous_s", "loaded": "load_s", "step": "first_step_s"}
            split = ", ".join(f"{name} {fields[key]:.1f}" for name, key in parts.items() if key in fields)
            known = "" if "detect_s" in fields else " was known"
            message = f"back {fields['seconds']:.1f} s after the failure{known} ({split})"
            self.record.event("restart", message, step=step, **fields)

    def seed(self, step: int) -> None:
        """Seeds torch for one step of this rank."""
        seed_step(self.run.seed, step, self.mesh.index("batch"), self.mesh.device)

    def batches(self) -> StepBatches:
        """The batches from where the run stands, up to the call's last step; to be closed."""
        return StepBatches(self.dataset, self.run.layout, self.mesh, self.parallel.model, self.place, self.last)

    def plain_loss(self) -> Loss:
        """Cross-entropy, whatever the run trains on."""
        return build_loss(DEFAULT_LOSS, 0.0, load_python, self.mesh, self.resolved.vocabulary)

    def comes_together(self, step: int) -> bool:
        """Whether this rank is to meet new ones after a step; with islands, after an outer one."""
        spec = self.run.diloco
        outer = spec is None or bool(spec.applied(step, self.horizon.total))
        return self.line is not None and self.line.asked and outer

    def stops(self, stop: StopRequest) -> bool:
        """Whether any rank was asked to stop; called by all, who wait for it."""
        return any(gather_json(stop.asked, self.mesh))

    def go_back(self, target: Target) -> None:
        """Takes all that a checkpoint of this run holds; from there on the target's samples are left out."""
        self.settle_save()
        if self.memory is not None:
            self.memory.forget()
        reader = CheckpointReader(target.folder, verify_files=False)
        with self.watch.phase("resume"):
            if self.mesh.rank == 0:  # damaged saves, and those of steps that weren't finite
                set_aside(target.folder.parent, target.step)
            place, _ = self.state.restore(reader)
            go_to_place(self.dataset, reader.state)
        if self.uploader is not None:
            self.uploader.go_back(target.step)
        self.guard.load(reader.state["guard"])
        self.left_out.append(target.samples)
        left_out = LeftOut.of([*self.run.train.guard.leave_out, *self.left_out])
        self.place, self.done = replace(place, left_out=left_out), place.step
        self.doing, self.owes = self.done, 0
        self.health.go_back(self.place)
        if self.record is not None:
            self.record.go_back(self.place)
        self.watch.begins(self.done, self.record)

    def validate(self, step: int, stop: StopRequest) -> bool:
        """Measures the held-out loss and writes it down; false where a rank was asked to stop meanwhile. The ranks' sum
        of that is read as a step's report is: no host waits for its newest batch."""
        self.cut_short = False
        if self.valid is None:
            return True
        readback, device, started = Readback(self.mesh.device), self.mesh.device, time.perf_counter()

        def stops() -> bool:
            asked = all_sum(torch.full((1,), float(stop.asked), device=device), self.mesh, "world")
            return any(count for _, (count,) in readback.push(step, asked))

        parallel, layout, islands, loss = self.parallel, self.run.layout, self.state.islands, self.plain_loss()

        def total(micro: Micro) -> Tensor:
            return parallel.executor.total(micro, loss)

        rows = layout.micro_batch, self.run.train.valid_batches * layout.global_batch
        with islands.outer_weights() if islands is not None else nullcontext():
            score = validate(parallel.model, self.valid, self.mesh, *rows, total, stops)
        self.cut_short = score is None
        self.measured = None if score is None else (step, score.loss)
        if score is not None and self.record is not None:
            self.record.valid(step, score.loss, score.bits_per_byte)
        if self.record is not None:
            self.record.event("evaluate", step=step, seconds=round(time.perf_counter() - started, 3))
        return not self.cut_short

    def save(self, step: int, *, at_once: bool = True) -> None:
        """Saves a checkpoint, or, unless it must be there `at_once`, begins to where saves are asynchronous. One that
        fails is noted, and the run goes on: the next may succeed."""
        started = time.perf_counter()
        self._lag(self.settle_save(), step)
        saver = None if at_once or self.saver is None or self.saver.failures >= GIVE_UP else self.saver
        try:
            why = self.state.save(*self.contents(step), finite=not self.health.bad, saver=saver)
        except (RunError, UserError) as error:  # UserError: states that can't be saved; only a stop made it save them
            self._failed(step, str(error))
            return
        seconds = time.perf_counter() - started
        if saver is not None and not why:
            self._begun[step] = started, seconds
            return
        self.save_problem = None
        if self.saver is not None:
            self.saver.failures = 0 if saver is None else self.saver.failures
        if why and self.record is not None:
            self.record.event("fault", f"step {step}: the run waited for its save: {why}", step=step)
        if self.record is not None:
            self.record.saved(step, seconds)
        self._offer(step, last=at_once)

    def contents(self, step: int) -> tuple[DataPosition, str, dict[str, object]]:
        """What `RunState.save` is given: place, id, and keys of state.json."""
        place = self.place.after(step, self.run.layout.global_batch, self.resolved.seq_len)
        more: dict[str, object] = {
            "run": run_settings(self.run, self.resolved.tokens),
            "data": data_settings(self.dataset, self.run, place.samples),
            **reading_place(self.dataset, place.samples),
            "guard": self.guard.state(),
            "left_out": self.left_out,
            "schedule_unit": self.horizon.unit,
            "validation_cut_short": self.cut_short,
            "valid_loss": self.measured[1] if self.measured and self.measured[0] == step else None,
        }
        return place, self.run_id, more

    def keep_step(self, step: int) -> None:
        """Keeps a step in memory, where it is one of those. Where there is no room, none from now on, which is said."""
        if self.memory is None or not self.memory_goes_on:
            return
        self.memory.follow()
        if step % self.run.checkpoint.memory_every:
            return
        try:
            why = self.state.save(*self.contents(step), finite=not self.health.bad, memory=self.memory)
        except UserError as error:
            why = str(error)
        if why:
            self.memory_goes_on = False
            lost = f"step {step}: no steps are kept in memory from now on: {why}"
            self.memory.news.append(("fault", lost, {"step": step}))
        self.tell_memory()

    def tell_memory(self) -> None:
        """Writes down what is new of the steps in memory; on rank 0."""
        news = self.memory.news if self.memory is not None else []
        if self.record is not None:
            for kind, message, fields in news:
                self.record.event(kind, message, **fields)
        news.clear()

    def _copied(self) -> None:
        """Before an update: the device waits for copies of what it will change."""
        if self.saver is not None:
            self.saver.snapshot.wait()
        if self.memory is not None:
            self.memory.wait()

    @property
    def part_written(self) -> float:
        """What this rank adds to a step's report about the save under way, without waiting: 1 once its part is written;
        rank 0 more than all ranks once it is committed."""
        if self.saver is None:
            return 0.0
        return float(self.saver.written) if self.saver.under_way else (self.mesh.world + 1.0) * self.saver.committed

    def follow_save(self, written: float) -> None:
        """With a step's report, the sum of `part_written`: ends the save under way when the parts of all ranks are
        there, and lets every rank go on from it when it is committed."""
        if self.saver is not None:
            if self.saver.under_way and written == self.mesh.world:
                self.saver.collect()
            elif not self.saver.under_way and written > self.mesh.world:
                self.settle_save()
            self._tell_saves()

    def settle_save(self) -> float:
        """Waits for the save under way, if there is one; the seconds that took. All ranks call it."""
        if self.saver is None or not self.saver.unsettled:
            return 0.0
        started = time.perf_counter()
        self.saver.settle()
        self._tell_saves()
        for step in self._to_offer:  # in turn on all ranks: rank 0 is told of a commit before the others
            self._offer(step)
        self._to_offer.clear()
        return time.perf_counter() - started

    def _tell_saves(self) -> None:
        for outcome in self.saver.news() if self.saver is not None else ():
            started, stall = self._begun.pop(outcome.step)
            if outcome.problem:
                self._failed(outcome.step, outcome.problem)
                continue
            self.save_problem = None
            self._to_offer.append(outcome.step)
            if self.record is not None:
                self.record.saved(outcome.step, stall, outcome.at - started)

    def _failed(self, step: int, problem: str) -> None:
        self.save_problem = problem
        if self.record is not None:
            with suppress(RunError):  # the disk that refused the checkpoint may refuse a line, too
                self.record.event("fault", f"step {step}: {problem}", step=step)

    def _lag(self, seconds: float, step: int) -> None:
        """Notes that a save had to wait for the one before."""
        if self.record is not None and seconds > LAG_S:
            message = f"step {step}: waited {seconds:.1f} s for the save before: writing takes longer than training"
            self.record.event("lags", message, step=step, seconds=round(seconds, 3))

    def _offer(self, step: int, *, last: bool = False) -> None:
        """Gives a saved checkpoint to the store, where it is one of those that go there; the `last` one is, as its
        machine may be gone soon. All ranks call it, and leave out the same ones."""
        uploader, every = self.uploader, self.run.checkpoint.store_every
        last = last or step == self.last
        if uploader is None or (every and step % every and not last):
            return
        if not last and any(gather_json(uploader.waiting, self.mesh)):
            uploader.left_out(step)
        else:
            uploader.offer(step_folder(self.run.folder / "checkpoints", step))

    def _save_if_none(self, step: int) -> None:
        """Saves a run that is about to stop and that has nothing to go on from."""
        self.settle_save()
        root, wanted = self.run.folder / "checkpoints", self.run.checkpoint
        if (wanted.at_end or wanted.every) and not from_rank_zero(bool(committed(root)), self.mesh):
            self.save(step)


def seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Seeds torch for one step of one data rank: dropout is a pure function of these three, so a resume needs no random
    state. Only generators that the step can use: `torch.manual_seed` asks all kinds of device, 100 times as long."""
    digest = hashlib.blake2b(f"{seed}/step/{step}/{rank}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little")
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)
    elif device.type == "mps":
        torch.mps.manual_seed(number)
