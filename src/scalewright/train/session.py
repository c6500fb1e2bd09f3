"""One rank between its first step and its answer: steps, validations, saves, rewinds, and the end.

loop -> (spike: back to a checkpoint, and again) -> records closed -> answer (rank 0's counts)
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from scalewright.checkpoint.format import committed
from scalewright.checkpoint.read import CheckpointReader, set_aside
from scalewright.data.dataset import Dataset
from scalewright.data.left_out import LeftOut, Range
from scalewright.evaluate.validate import validate
from scalewright.parallel.collectives import all_sum, from_rank_zero, gather_json
from scalewright.parallel.execute import Loss
from scalewright.parallel.mesh import Mesh
from scalewright.spec.errors import RunError, Stopped, UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import DataSpec, RunSpec
from scalewright.spec.text.jsonl import read_jsonl
from scalewright.track.tracker import Status
from scalewright.train.batches import Place, StepBatches, go_to_place, reading_place
from scalewright.train.columns import StopReason
from scalewright.train.engine import Engine
from scalewright.train.garbage import garbage_at_steps
from scalewright.train.guard.decide import Guard
from scalewright.train.guard.health import Health
from scalewright.train.guard.rewind import Rewind, Rewinder, Target
from scalewright.train.hangs.watchdog import Watchdog
from scalewright.train.horizon import Horizon
from scalewright.train.leak_probe import check_leaks
from scalewright.train.loop import Job, loop, seed_step
from scalewright.train.loss import DEFAULT_LOSS, build_loss
from scalewright.train.network import Network, load_python, types_explained
from scalewright.train.optimizer import base_rate
from scalewright.train.record.callbacks import answer
from scalewright.train.record.measured import Counter
from scalewright.train.record.readback import Readback
from scalewright.train.record.record import Record
from scalewright.train.signals import StopRequest
from scalewright.train.state.changes import data_settings, run_settings
from scalewright.train.state.run_state import RunState


@dataclass
class Session:
    """The objects of one rank (`train/build.py`), and the steps from there to an answer."""

    run: RunSpec
    horizon: Horizon
    tokens: float | None  # asked for
    seq_len: int
    mesh: Mesh
    engine: Engine
    loss: Loss
    dataset: Dataset
    valid: Dataset | None
    record: Record | None
    run_id: str
    resumed: int | None
    place: Place  # where this call begins
    done: int  # steps that the weights have behind them
    guard: Guard
    left_out: list[Range]  # by rewinds
    watch: Watchdog
    cut_short: bool = False  # a stop ended the validation of step `done`, which is made up
    health: Health | None = None
    batches: StepBatches | None = None  # of the loop that runs
    save_problem: str | None = None

    @property
    def network(self) -> Network:
        """The engine's."""
        return self.engine.network

    @property
    def state(self) -> RunState:
        """The engine's."""
        return self.engine.state

    def train(self, stop: StopRequest, until: int | None, started: float) -> dict[str, Any]:
        """Runs the loop and closes the records, whatever happens."""
        total = self.horizon.total
        last = min(total, until) if until is not None else total
        stopped: StopReason | None = None
        status: Status = "failed"
        cause = ""
        if self.record is not None:
            self.record.console.ends_at(last)
            self.state.copies = self.record.copies
            if self.done >= last:
                self.record.console.message(
                    f"nothing to do: this run is at step {self.done}, and its last is {last}"
                )
        try:
            self._probe()
            job = self._job(last)
            with garbage_at_steps():
                stopped = self._stops_first(stop) or self._run(job, stop)
            self._count(job)
            self.watch.ends()
            if not stopped:
                job.health.check_end(self.done)
            if self.record is not None:
                self.record.metrics.writer.look()
            status = "stopped" if stopped else "finished"
            cause = stop.cause or "another rank was asked" if stopped == "signal" else stopped or ""
        finally:
            if self.batches is not None:
                self.batches.close()
            if self.record is not None:
                self.record.close(status, self.done, time.perf_counter() - started, cause)
        if self.save_problem:
            raise RunError(self.save_problem)
        if stopped == "signal":
            stop.saved()
            where = f"stopped at step {self.done} of {total} and saved ({cause})"
            if self.done == self.place.step:
                where = f"stopped before step {self.done + 1} of {total} ({cause})"
            raise Stopped(f"{where}; the same command goes on from there")
        return self._answer(time.perf_counter() - started)

    def _job(self, last: int) -> Job:
        """All that the loop works with, up to the last step of this call."""
        parallel, spec = self.network.parallel, self.run.train.guard
        rewinder = None
        if spec.spike == "rewind":
            root = self.run.folder / "checkpoints"
            rewinder = Rewinder(root, self.mesh, self.run.layout.global_batch, self.place)
        self.health = Health(
            parallel,
            self.loss,
            self.mesh,
            self.record,
            spec.spike,
            spec.patience,
            seed=partial(seed_step, self.run.seed, rank=self.mesh.index("batch"), device=self.mesh.device),
            save=self._save_if_none,
            rewinder=rewinder,
            replays=self.engine.transparent,
        )
        if self.run.checkpoint.every or self.run.checkpoint.at_end:
            self.state.check_first()
        return Job(
            run=self.run,
            step=self.engine.make_step(self.loss, self.guard),
            batches=self._open(last),
            record=self.record,
            health=self.health,
            save=self.save,
            validate=self.validate,
            stops=self._stops,
            first=self.done + 1,
            last=last,
            horizon=self.horizon,
            base_rate=base_rate(self.run.optimizer, self.state.optimizer),
            watch=self.watch,
            counter=Counter(
                self.mesh,
                parallel,
                self.state.optimizer,
                self.state.islands,
                counts=self.engine.transparent,
            ),
        )

    def _stops(self, stop: StopRequest) -> bool:
        """Whether any rank was asked to stop; called by all, who wait for it."""
        return any(gather_json(stop.asked, self.mesh))

    def _stops_first(self, stop: StopRequest) -> StopReason | None:
        """A signal that came while this rank was built; else makes up the validation that a stop cut short.

        What else asks to stop waits for a step: a run whose every call comes to its time limit goes on.
        """
        if any(gather_json(stop.signalled, self.mesh)):
            return "signal"
        if self.cut_short:
            with self.watch.phase("validate"):
                self.validate(self.done, stop)
        return "signal" if self.cut_short else None

    def _probe(self) -> None:
        """Looks for documents that see each other, where a layout makes the masks by parts."""
        data, model = self.run.data, self.run.model
        if self.run.layout.cp == 1 or not isinstance(model, ModelSpec):
            return
        if isinstance(data, DataSpec) and not data.masked:
            return
        parallel, rows = self.network.parallel, self.run.layout.micro_batch
        check_leaks(parallel, self.mesh, self._plain_loss(), rows, self.seq_len, model.vocab_size)

    def _plain_loss(self) -> Loss:
        """Cross-entropy, whatever the run trains on."""
        model = self.run.model
        vocabulary = model.vocab_size if isinstance(model, ModelSpec) else None
        return build_loss(DEFAULT_LOSS, 0.0, load_python, self.mesh, vocabulary)

    def _count(self, job: Job) -> None:
        """Writes down what the ranks held and sent in a step of this call, if it had enough steps."""
        counts = job.counter.together()
        if counts is not None and self.record is not None:
            self.record.event("measured", step=self.done, **counts)

    def _open(self, last: int) -> StepBatches:
        """The batches from where the run stands, up to a step."""
        if self.batches is not None:
            self.batches.close()
        model = self.network.parallel.model
        self.batches = StepBatches(self.dataset, self.run.layout, self.mesh, model, self.place, last)
        return self.batches

    def _run(self, job: Job, stop: StopRequest) -> StopReason | None:
        """Loops to the end, back to checkpoints where a spike asks for it; what stopped it, if anything."""
        while True:
            try:
                with types_explained(self.run, self.network.parallel.model):
                    self.done, stopped = loop(job, stop)
                return stopped
            except Rewind as rewind:
                job.batches.close()  # its thread reads the data that are about to be set back
                self._go_back(rewind.target, job.health)
                job = replace(job, batches=self._open(job.last), first=self.done + 1)

    def _go_back(self, target: Target, health: Health) -> None:
        """Takes all that a checkpoint of this run holds; from there on the target's samples are left out."""
        reader = CheckpointReader(target.folder, verify_files=False)
        with self.watch.phase("resume"):
            if self.mesh.rank == 0:  # damaged saves, and those of steps that weren't finite
                set_aside(target.folder.parent, target.step)
            place, _ = self.state.restore(reader)
            go_to_place(self.dataset, reader.state)
        self.guard.load(reader.state["guard"])
        self.left_out.append(target.samples)
        left_out = LeftOut.of([*self.run.train.guard.leave_out, *self.left_out])
        self.place, self.done = replace(place, left_out=left_out), place.step
        health.go_back(self.place)
        if self.record is not None:
            self.record.go_back(self.place)
        self.watch.begins(self.done, self.record)

    def validate(self, step: int, stop: StopRequest) -> bool:
        """Measures the held-out loss and writes it down; false where a rank was asked to stop meanwhile.

        The ranks' sum of that is read as a step's report is: no host waits for its newest batch.
        """
        self.cut_short = False
        if self.valid is None:
            return True
        readback, device = Readback(self.mesh.device), self.mesh.device

        def stops() -> bool:
            asked = all_sum(torch.full((1,), float(stop.asked), device=device), self.mesh, "world")
            return any(count for _, (count,) in readback.push(step, asked))

        parallel, layout = self.network.parallel, self.run.layout
        samples = self.run.train.valid_batches * layout.global_batch
        loss = self._plain_loss()
        islands = self.state.islands
        with islands.outer_weights() if islands is not None else nullcontext():
            score = validate(
                parallel.model,
                self.valid,
                self.mesh,
                layout.micro_batch,
                samples,
                total=lambda micro: parallel.executor.total(micro, loss),
                stops=stops,
            )
        self.cut_short = score is None
        if score is not None and self.record is not None:
            self.record.valid(step, score.loss, score.bits_per_byte)
        return not self.cut_short

    def save(self, step: int) -> None:
        """Saves a checkpoint. A save that fails is noted, and the run goes on: the next may succeed."""
        started = time.perf_counter()
        place = self.place.after(step, self.run.layout.global_batch, self.seq_len)
        try:
            more = {
                "run": run_settings(self.run, self.tokens),
                "data": data_settings(self.dataset, self.run, place.samples),
                **reading_place(self.dataset, place.samples),
                "guard": self.guard.state(),
                "left_out": self.left_out,
                "schedule_unit": self.horizon.unit,
                "validation_cut_short": self.cut_short,
            }
            finite = self.health is None or not self.health.bad
            self.state.save(place, self.run_id, more, finite=finite)
            self.save_problem = None
        except (RunError, UserError) as error:
            # A UserError: states that can't be saved, in a run that was to save nothing but was stopped.
            self.save_problem = str(error)
            if self.record is not None:
                with suppress(RunError):  # the disk that refused the checkpoint may refuse a line, too
                    self.record.event("fault", f"step {step}: {error}", step=step)
            return
        if self.record is not None:
            self.record.saved(step, time.perf_counter() - started)

    def _save_if_none(self, step: int) -> None:
        """Saves a run that is about to stop and that has nothing to go on from."""
        root, wanted = self.run.folder / "checkpoints", self.run.checkpoint
        if (wanted.at_end or wanted.every) and not from_rank_zero(bool(committed(root)), self.mesh):
            self.save(step)

    def _answer(self, seconds: float) -> dict[str, Any]:
        """How the run ended, also one that was finished before this call."""
        last: Mapping[str, Mapping[str, Any]] = {}
        outcome: dict[str, float | None] = {}
        if self.record is not None:
            last, outcome = self.record.last, self.record.expectation.outcome()
            if "train" not in last:  # nothing was left to do
                last = {row["kind"]: row for row in read_jsonl(self.record.metrics.path)}
        return {**answer(str(self.run.folder), self.done, last, self.resumed, seconds), **outcome}
