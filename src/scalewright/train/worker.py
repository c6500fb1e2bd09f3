"""One rank's whole life: join the others, build, resume, train, save, leave.

join -> precision, mesh -> network -> optimizer -> newest checkpoint that verifies, or first weights
     -> data from the sample that is next -> loop -> answer (rank 0's counts)
"""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch

from scalewright.checkpoint.format import committed
from scalewright.checkpoint.read import CheckpointReader, set_aside
from scalewright.data.dataset import Dataset, open_data
from scalewright.data.left_out import LeftOut, Range
from scalewright.evaluate.validate import validate
from scalewright.launch.context import RankContext
from scalewright.machine.load import CpuMark
from scalewright.parallel.collectives import barrier, from_rank_zero
from scalewright.parallel.execute import Loss
from scalewright.parallel.mesh import Mesh, axes_of, join_world, leave_world, make_mesh
from scalewright.spec.errors import RunError, Stopped, UserError
from scalewright.spec.grid import make_grid
from scalewright.spec.memory import offloads_parameters
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import RunSpec
from scalewright.track.metrics import read_metrics
from scalewright.track.tracker import Status
from scalewright.train.batches import Place, StepBatches, go_to_place, in_vocabulary, reading_place
from scalewright.train.changes import data_settings, run_settings
from scalewright.train.claim import claim_folder
from scalewright.train.columns import StopReason
from scalewright.train.device import own_device
from scalewright.train.guard import Guard
from scalewright.train.hangs.patience import Patience
from scalewright.train.hangs.watchdog import Watchdog
from scalewright.train.health import Health
from scalewright.train.horizon import Horizon, find_horizon
from scalewright.train.loop import Job, loop, seed_step
from scalewright.train.loss import DEFAULT_LOSS, build_loss
from scalewright.train.network import Network, build_network, first_weights, load_python, types_explained
from scalewright.train.optimizer import base_rate, build_optimizer
from scalewright.train.optimizer_state import check_first_states
from scalewright.train.out_of_memory import memory_explained
from scalewright.train.precision import Peak, choose_precision, earlier_peak, find_peak
from scalewright.train.record import Record
from scalewright.train.resolve import Resolved
from scalewright.train.resume import check_optimizer, find_resume, open_again
from scalewright.train.rewind import Rewind, Rewinder, Target
from scalewright.train.scribe import open_record, write_folder
from scalewright.train.signals import StopRequest
from scalewright.train.state import RunState
from scalewright.train.step import Step
from scalewright.train.threads import thread_remark


def work(
    context: RankContext,
    resolved: Resolved,
    *,
    device: str,
    until: int | None = None,
    quiet: bool = False,
    busy: CpuMark | float | None = None,
    patience: Patience | None = None,
) -> dict[str, Any]:
    """Trains as one rank; the answer has the keys of `train.run.Result`. Raises Stopped after a signal, not
    after a callback's "stop", on all ranks alike.

    `busy`: how busy others keep this machine (`train/threads.py`). `patience`: the watchdog's.
    """
    started = time.perf_counter()
    place = own_device(device, context)
    if context.threads:
        torch.set_num_threads(context.threads)
    if device == "cuda":
        torch.cuda.set_device(place)
    run = resolved.run
    if run.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    if not context.alone:
        join_world(
            context.rank,
            context.world,
            context.rendezvous,
            place,
            attempt=context.attempt,
            shared_store=context.shared_store,
            timeout=timedelta(seconds=run.train.timeouts.start_s),
        )
    together = False
    try:
        with (
            memory_explained(run, resolved.seq_len, context.rank, place),
            StopRequest(last=context.starter == "local") as stop,
            ExitStack() as kept,
        ):
            rank = _Rank.prepare(resolved, context, place, quiet, kept, patience)
            if rank.record is not None and device == "cpu":
                rank.record.remark(thread_remark(context, busy))
            answer = rank.train(stop, until, started)
        together = True
        return answer
    except Stopped:  # which all ranks had agreed on
        together = True
        raise
    finally:
        leave_world(together=together)


@dataclass
class _Rank:
    """What one rank has built, and the steps from there to an answer."""

    run: RunSpec
    horizon: Horizon
    tokens: float | None  # asked for
    seq_len: int
    mesh: Mesh
    network: Network
    state: RunState
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
    health: Health | None = None
    watch: Watchdog | None = None
    save_problem: str | None = None

    @classmethod
    def prepare(
        cls,
        resolved: Resolved,
        context: RankContext,
        device: torch.device,
        quiet: bool,
        kept: ExitStack | None = None,
        patience: Patience | None = None,
    ) -> _Rank:
        """Builds everything up to the first step; `kept` (None: nobody) holds the run's folder and watch."""
        model = resolved.model
        kv_heads = model.kv_heads if isinstance(model, ModelSpec) else None
        mesh = make_mesh(
            make_grid(resolved.run.layout, kv_heads),
            context.rank,
            device,
            axes=axes_of(model),
            host_sums=offloads_parameters(resolved.run.layout),
        )
        watch = None
        if kept is not None:
            given = Watchdog(context, mesh, resolved.run.folder, resolved.run.train.timeouts, patience)
            watch = kept.enter_context(given)
        remarks: list[str] = []
        run = _on_devices(resolved.run, mesh, remarks)
        network = build_network(run, mesh, bf16=run.layout.precision == "bf16")
        optimizer = build_optimizer(run.optimizer, network.parallel.weights, load_python)
        state = RunState(run, network, optimizer, mesh)
        vocabulary = model.vocab_size if isinstance(model, ModelSpec) else None
        loss = build_loss(run.loss, run.train.z_loss, load_python, mesh, vocabulary, check=True)
        valid = in_vocabulary(open_data(run.data, "valid", run.seed), vocabulary) if _validates(run) else None
        if mesh.rank == 0 and kept is not None:
            kept.enter_context(claim_folder(run))
        barrier(mesh)
        reader, notes = find_resume(run, mesh)
        dataset, changes = open_again(resolved, run, reader, vocabulary)
        peak = _peak(run, mesh, again=reader is not None) if mesh.rank == 0 else None
        barrier(mesh)
        begin, old = _begin(run, reader, network, state, mesh)
        left_out: list[Range] = list(reader.state.get("left_out", [])) if reader else []
        begin = replace(begin, left_out=LeftOut([*run.train.guard.leave_out, *left_out]))
        if reader is not None and "data" not in changes.broken:
            go_to_place(dataset, reader.state)
        guard = Guard(run.train.guard, device, fp16=run.layout.precision == "fp16")
        guard.load(reader.state.get("guard", {}) if reader else {})
        run_id = from_rank_zero(reader.manifest.run_id if reader else uuid.uuid4().hex[:12], mesh)
        per_step = run.layout.batch * resolved.seq_len
        unit = reader.state.get("schedule_unit") if reader else None
        horizon = find_horizon(begin, resolved.steps, resolved.tokens, per_step, unit)
        run = run.replace(train={**run.train.dump(), "steps": horizon.total})
        resolved = replace(resolved, run=run, steps=horizon.total)
        record = None
        if mesh.rank == 0 and peak is not None:
            write_folder(run, dataset, resumed=begin.step if reader else None, changes=changes)
            notes += old + [f"set {name} aside" for name in set_aside(run.folder / "checkpoints", begin.step)]
            came_from = str(reader.folder) if reader else None
            record = open_record(
                resolved, run, peak, network, begin, run_id, came_from, notes, quiet=quiet, tell=context.tell
            )
            for remark in remarks:
                record.remark(remark)
            if changes.values:
                record.event("changed", changes.line(begin.step), step=begin.step, changes=changes.values)
        if watch is not None:
            watch.begins(begin.step, record)
        return cls(
            run=run,
            horizon=horizon,
            tokens=resolved.tokens,
            seq_len=resolved.seq_len,
            mesh=mesh,
            network=network,
            state=state,
            loss=loss,
            dataset=dataset,
            valid=valid,
            record=record,
            run_id=run_id,
            resumed=begin.step if reader is not None else None,
            place=begin,
            done=begin.step,
            guard=guard,
            left_out=left_out,
            watch=watch,
        )

    def train(self, stop: StopRequest, until: int | None, started: float) -> dict[str, Any]:
        """Runs the loop and closes the records, whatever happens."""
        total = self.horizon.total
        last = min(total, until) if until is not None else total
        stopped: StopReason | None = None
        status: Status = "failed"
        if self.record is not None and self.done >= last:
            self.record.console.message(
                f"nothing to do: this run is at step {self.done}, and its last is {last}"
            )
        batches = self._batches(last)
        try:
            clip = getattr(self.run.optimizer, "clip_norm", 0.0)
            parallel = self.network.parallel
            step = Step(parallel, self.state.optimizer, self.loss, self.mesh, clip, guard=self.guard)
            seed = partial(seed_step, self.run.seed, rank=self.mesh.index("batch"), device=self.mesh.device)
            spec = self.run.train.guard
            rewinder = None
            if spec.spike == "rewind":
                root = self.run.folder / "checkpoints"
                rewinder = Rewinder(root, self.mesh, self.run.layout.batch, self.place)
            self.health = health = Health(
                step, self.record, spec.spike, spec.patience, seed, self._save_if_none, rewinder
            )
            if self.run.checkpoint.every or self.run.checkpoint.at_end:
                check_first_states(self.state.optimizer, self.state.check)
            base = base_rate(self.run.optimizer, self.state.optimizer)
            job = Job(
                run=self.run,
                step=step,
                batches=batches,
                record=self.record,
                health=health,
                save=self.save,
                validate=self.validate,
                first=self.done + 1,
                last=last,
                horizon=self.horizon,
                base_rate=base,
                watch=self.watch,
            )
            while True:
                try:
                    with types_explained(self.run, self.network.parallel.model):
                        self.done, stopped = loop(job, stop)
                    break
                except Rewind as rewind:
                    batches.close()
                    self._go_back(rewind.target, health)
                    batches = self._batches(last)
                    job = replace(job, batches=batches, first=self.done + 1)
            if self.watch is not None:
                self.watch.ends()
            if not stopped:
                health.check_end(self.done)
            status = "stopped" if stopped else "finished"
        finally:
            batches.close()
            if self.record is not None:
                self.record.close(status, self.done, time.perf_counter() - started)
        if self.save_problem:
            raise RunError(self.save_problem)
        if stopped == "signal":
            raise Stopped(
                f"stopped at step {self.done} of {total} and saved; the same command goes on from there"
            )
        return self._answer(time.perf_counter() - started)

    def _batches(self, last: int) -> StepBatches:
        model = self.network.parallel.model
        return StepBatches(self.dataset, self.run.layout, self.mesh, model, self.place, last)

    def _go_back(self, target: Target, health: Health) -> None:
        """Takes all that a checkpoint of this run holds; from there on the target's samples are left out."""
        reader = CheckpointReader(target.folder, verify_files=False)
        with nullcontext() if self.watch is None else self.watch.phase("resume"):
            place, _ = self.state.restore(reader)
            go_to_place(self.dataset, reader.state)
        self.guard.load(reader.state["guard"])
        self.left_out.append(target.samples)
        left_out = LeftOut([*self.run.train.guard.leave_out, *self.left_out])
        self.place, self.done = replace(place, left_out=left_out), place.step
        health.go_back(self.place)
        if self.record is not None:
            self.record.go_back(self.place)
        if self.watch is not None:
            self.watch.begins(self.done, self.record)

    def validate(self, step: int) -> None:
        """Measures the held-out loss and writes it down."""
        if self.valid is None:
            return
        parallel, layout = self.network.parallel, self.run.layout
        samples = self.run.train.valid_batches * layout.batch
        model = self.run.model
        vocabulary = model.vocab_size if isinstance(model, ModelSpec) else None
        loss = build_loss(DEFAULT_LOSS, 0.0, load_python, self.mesh, vocabulary)
        score = validate(
            parallel.model,
            self.valid,
            self.mesh,
            layout.micro_batch,
            samples,
            total=lambda micro: parallel.executor.total(micro, loss),
        )
        if self.record is not None:
            self.record.valid(step, score.loss, score.bits_per_byte)

    def save(self, step: int) -> None:
        """Saves a checkpoint. A save that fails is noted, and the run goes on: the next may succeed."""
        started = time.perf_counter()
        place = self.place.after(step, self.run.layout.batch, self.seq_len)
        try:
            more = {
                "run": run_settings(self.run, self.tokens),
                "data": data_settings(self.dataset, self.run, place.samples),
                **reading_place(self.dataset, place.samples),
                "guard": self.guard.state(),
                "left_out": self.left_out,
                "schedule_unit": self.horizon.unit,
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

    def _last_rows(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The newest training and validation rows, also of a run that was finished before this call."""
        if self.record is None:
            return {}, {}
        last = dict(self.record.last)
        if "train" not in last:  # nothing was left to do
            last.update((row["kind"], row) for row in read_metrics(self.record.metrics.path))
        return last.get("train", {}), last.get("valid", {})

    def _answer(self, seconds: float) -> dict[str, Any]:
        row, valid = self._last_rows()
        return {
            "out_dir": str(self.run.folder),
            "step": self.done,
            "loss": row.get("loss"),
            "valid_loss": valid.get("loss"),
            "bits_per_byte": valid.get("bits_per_byte"),
            "tokens_per_s": row.get("tokens_per_s"),
            "resumed_from": self.resumed,
            "seconds": seconds,
            **(self.record.expectation.outcome() if self.record is not None else {}),
        }


def _on_devices(run: RunSpec, mesh: Mesh, remarks: list[str]) -> RunSpec:
    """The run with the device, and the precision and compilation that it chooses; torch is set to them."""
    asked = run.layout.precision
    precision = from_rank_zero(
        choose_precision(asked, mesh.device, remarks) if mesh.rank == 0 else None, mesh
    )
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    compiled = run.train.compile if run.train.compile != "auto" else mesh.device.type == "cuda"
    return run.replace(
        layout={**run.layout.dump(), "precision": precision},
        train={**run.train.dump(), "compile": compiled},
        device=mesh.device.type,
    )


def _peak(run: RunSpec, mesh: Mesh, *, again: bool) -> Peak:
    """The device's peak, measured while the others wait; that of an earlier call for a run that goes on."""
    precision = run.layout.precision
    before = earlier_peak(run.folder, precision, mesh.world) if again else None
    return before or find_peak(run.cluster, precision, mesh.device)


def _begin(
    run: RunSpec,
    reader: CheckpointReader | None,
    network: Network,
    state: RunState,
    mesh: Mesh,
) -> tuple[Place, list[str]]:
    """First weights, or a checkpoint's with all that goes with them; where the run then stands, and notes."""
    if reader is None:
        first_weights(run, network, mesh)
        return Place(), []
    check_optimizer(run, reader)
    return state.restore(reader)


def _validates(run: RunSpec) -> bool:
    return run.train.valid_every > 0
