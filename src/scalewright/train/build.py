"""Builds one rank, up to its first step.

the ranks     mesh ─► nodes compared ─► watchdog                                       _meet
the run       precision, compilation ─► network, optimizer, loss                      _on_devices, engine.py
the folder    held by rank 0 ─► newest checkpoint that verifies, data from there      find_origin
the weights   that checkpoint's, with all states, or first ones ─► Session            _take_up, _fill
the records   the run's folder, events, trackers: rank 0's                            write_folder, open_record
"""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import torch

from scalewright.checkpoint.format import step_folder
from scalewright.checkpoint.memory.tier import MemoryTier
from scalewright.checkpoint.read import set_aside
from scalewright.checkpoint.store.upload import Uploader
from scalewright.checkpoint.verify import Retention
from scalewright.data.check import BackgroundCheck, unchecked
from scalewright.data.dataset import Dataset, TokenDataset, open_data
from scalewright.data.mixture import LeftOut
from scalewright.launch.rank import RankContext
from scalewright.parallel.collectives import barrier, from_rank_zero
from scalewright.parallel.execute import Loss
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.spec.compress import LowRank
from scalewright.spec.errors import Finding, RunError, UserError
from scalewright.spec.grid import make_grid
from scalewright.spec.groups import used_axes
from scalewright.spec.layout import Layout
from scalewright.spec.memory import offloads_parameters
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import PythonRef, RunSpec
from scalewright.train.batches import DataPosition, go_to_place, in_vocabulary
from scalewright.train.compare_nodes import OURS, look_together
from scalewright.train.engine import Engine, build_own
from scalewright.train.guard.decide import Guard
from scalewright.train.hangs.board import EAGER
from scalewright.train.hangs.watchdog import Watchdog
from scalewright.train.initial import begin_remarks
from scalewright.train.learning_rate import find_horizon
from scalewright.train.loss import build_loss
from scalewright.train.metrics.record import Record
from scalewright.train.metrics.run_files import open_record, write_folder
from scalewright.train.network import first_weights, load_python
from scalewright.train.precision import choose_precision, earlier_peak, find_peak
from scalewright.train.regroup import Past, meet
from scalewright.train.resolve import Resolved
from scalewright.train.session import Session
from scalewright.train.start import Start
from scalewright.train.state.attempts import GaveUpError, Recovery, decide, find_recovery, note_silent_end
from scalewright.train.state.claim import claim_folder
from scalewright.train.state.live import LiveReader
from scalewright.train.state.resume import Origin, check_optimizer, find_origin


def build(
    start: Start, context: RankContext, device: torch.device, resources: ExitStack, past: Past | None = None
) -> Session:
    """Builds everything up to the first step; `resources` hold the run's folder, its watchdog and checks. `past`: the
    run goes on from what ranks have. Raises UserError where nodes don't fit each other, or the folder holds another
    run."""
    mesh, watch, findings = _meet(start, context, device, resources)
    met = time.time()
    if past is not None:
        past.met()
    live = meet(past, start.resolved.run, mesh) if past is not None and past.joins else None
    start.at("building the model")
    remarks: list[str] = []
    run = _on_devices(start.resolved.run, mesh, remarks, live)
    resolved = replace(start.resolved, run=run)
    engine, valid = _build_engine(run, mesh), None
    vocabulary, weight = resolved.vocabulary, run.train.mtp_weight
    loss = build_loss(run.loss, run.train.z_loss, load_python, mesh, vocabulary, check=True, mtp_weight=weight)
    if run.train.valid_every:
        valid = in_vocabulary(open_data(run.data, "valid", run.seed), resolved.vocabulary)
    if mesh.rank == 0:
        resources.enter_context(claim_folder(run))
    recovery = _look_back(run, context, mesh, met, live is not None)
    start.at("looking for a checkpoint, and opening the data")
    looked = time.perf_counter()
    memory = _open_memory(run, mesh, engine, resources)
    origin = find_origin(resolved, mesh, memory, live)
    peak, looked = None, time.perf_counter() - looked
    if mesh.rank == 0:  # measured while the others wait; that of an earlier call for a run that goes on
        precision = run.layout.precision
        peak = earlier_peak(run.folder, precision, mesh.world) if origin.reader is not None else None
        peak = peak or find_peak(run.cluster, precision, mesh.device)
    barrier(mesh)
    start.at("reading the checkpoint" if origin.reader is not None else "making the first weights")
    read = time.perf_counter()
    session, notes = _take_up(resolved, origin, mesh, engine, loss, valid, watch, start.until)
    session.memory = memory
    loaded = looked + time.perf_counter() - read if origin.reader is not None else 0.0
    session.line, session.owed, session.doing = context.line, live.owed if live is not None else None, session.done
    session.owes = 0 if session.owed is None else 1 + session.owed.row
    start.at("opening the run's records, and predicting its step")
    if peak is not None:
        remarks += begin_remarks(run, origin.dataset) if origin.reader is None else []
        session.recovery = recovery
        write_folder(session, origin.changes)
        notes += [f"set {name} aside" for name in set_aside(run.folder / "checkpoints", session.done)]
        times = {"began": start.began, "load_s": round(loaded, 3)}
        session.record = open_record(session, origin, peak, notes, times, quiet=start.quiet, tell=context.tell)
        _write_start(session, origin, remarks, findings, start.asked)
    _open_store(session)
    if recovery is not None:
        recovery.loaded = time.time()
    watch.begins(session.done, session.record)
    if session.saver is not None:
        resources.callback(session.saver.close)
    session.tell_memory()
    in_files = [data for data in (session.dataset, valid) if isinstance(data, TokenDataset)]
    if session.record is not None:
        session.record.remark(unchecked(store for data in in_files for store in data.stores))
    resources.enter_context(BackgroundCheck(in_files, context.local_rank, context.local_world))
    return session


def _meet(
    start: Start, context: RankContext, device: torch.device, resources: ExitStack
) -> tuple[Mesh, Watchdog, tuple[Finding, ...]]:
    """The ranks' process groups, their watchdog, and what is to be said of the nodes."""
    run, layout = start.resolved.run, start.resolved.run.layout
    spec, islands = run.model if isinstance(run.model, ModelSpec) else None, run.diloco is not None
    mesh = make_mesh(
        make_grid(layout, spec.kv_heads if spec else None, islands=islands),
        context.rank,
        device,
        axes=used_axes(layout, spec, islands=islands),
        host_sums=offloads_parameters(layout),
        timeout=timedelta(seconds=run.train.timeouts.start_s),
    )
    findings = look_together(run, context, mesh, start.findings)
    watchdog = Watchdog(
        context, mesh, run.folder, run.train.timeouts, start.patience or (EAGER if start.restarts else None)
    )
    return mesh, resources.enter_context(watchdog), findings


def _look_back(run: RunSpec, context: RankContext, mesh: Mesh, met: float, live: bool) -> Recovery | None:
    """The failure that this start comes after, on rank 0, which holds the folder; `met`: when the ranks had. Raises
    GaveUpError on all ranks of a run that its launcher starts again, and that fails alike each time. All call it."""
    recovery, words, stopped = None, "", False
    if mesh.rank == 0:
        if not (ours := context.starter in OURS):
            note_silent_end(run.folder)
        recovery = find_recovery(run.folder)
        if recovery is not None:
            recovery.met, recovery.in_process = met, live
        if not ours and (run.elastic is not None or run.launch.max_restarts):
            try:
                words = decide(run.folder)
            except GaveUpError as error:
                words, stopped = str(error), True
    words, stopped = from_rank_zero([words, stopped], mesh)
    if stopped:
        raise GaveUpError(words)
    return recovery


def _build_engine(run: RunSpec, mesh: Mesh) -> Engine:
    """The engine that `run.engine` names. All ranks call it."""
    if run.engine == "scalewright":
        return build_own(run, mesh)
    from scalewright.train.deepspeed.build import build_deepspeed

    return build_deepspeed(run, mesh)


def _on_devices(run: RunSpec, mesh: Mesh, remarks: list[str], live: LiveReader | None = None) -> RunSpec:
    """The run with the device, and the precision and compilation that it chooses, or that it has had; torch is set to
    them."""
    requested = run.layout.precision if live is None else live.state["run"]["layout"]["precision"]
    scaled = run.engine == "scalewright" and not isinstance(run.train.compress, LowRank)
    chosen = choose_precision(requested, mesh.device, remarks, scaled) if mesh.rank == 0 else None
    precision = from_rank_zero(chosen, mesh)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    compiled = run.train.compile if run.train.compile != "auto" else mesh.device.type == "cuda"
    layout = run.layout.model_copy(update={"precision": precision})
    train = run.train.model_copy(update={"compile": compiled})
    return run.model_copy(update={"layout": layout, "train": train, "device": mesh.device.type})


def _take_up(
    resolved: Resolved,
    origin: Origin,
    mesh: Mesh,
    engine: Engine,
    loss: Loss,
    valid: Dataset | None,
    watch: Watchdog,
    until: int | None,
) -> tuple[Session, list[str]]:
    """The session from where the run stands, on to its end or to step `until`; and notes."""
    run, state = resolved.run, origin.state
    place, notes = _fill(run, origin, engine, mesh)
    guard = Guard(run.train.guard, mesh.device, fp16=run.layout.precision == "fp16")
    guard.load(engine.state.guard_state(state))
    run_id = origin.reader.manifest.run_id if origin.reader else uuid.uuid4().hex[:12]
    per_step = run.layout.global_batch * resolved.seq_len
    horizon = find_horizon(place, resolved.steps, resolved.tokens, per_step, state.get("schedule_unit"))
    if engine.state.islands is not None:
        engine.state.islands.last = horizon.total
    session = Session(
        resolved=resolved.with_steps(horizon.total),
        horizon=horizon,
        last=horizon.total if until is None else min(horizon.total, until),
        mesh=mesh,
        engine=engine,
        loss=loss,
        dataset=origin.dataset,
        valid=valid,
        run_id=from_rank_zero(run_id, mesh),
        resumed=place.step if origin.reader else None,
        place=place,
        done=place.step,
        guard=guard,
        left_out=list(state.get("left_out", [])),
        watch=watch,
        cut_short=bool(state.get("validation_cut_short")),
    )
    return session, notes


def _fill(run: RunSpec, origin: Origin, engine: Engine, mesh: Mesh) -> tuple[DataPosition, list[str]]:
    """First weights, or a checkpoint's with all that goes with them; where the run then stands, and notes."""
    reader, state, dataset = origin.reader, engine.state, origin.dataset
    place, notes = DataPosition(), list(origin.notes)
    if reader is None:
        words = dataset.vocab_size if dataset.tokenizer_path is not None else None
        first_weights(run, engine.network, mesh, words)
        if state.islands is not None:
            state.islands.begin(from_first=isinstance(run.model, PythonRef))
    else:
        check_optimizer(run, reader)
        place, more = state.restore(reader)
        notes += more
        if "data" not in origin.changes.broken:
            go_to_place(dataset, reader.state)
    left_out = LeftOut.of([*run.train.guard.leave_out, *origin.state.get("left_out", [])])
    return replace(place, left_out=left_out), notes


def _open_memory(run: RunSpec, mesh: Mesh, engine: Engine, resources: ExitStack) -> MemoryTier | None:
    """The steps in the nodes' memory, until `resources` are closed; None: none are kept. All ranks call it."""
    if not run.checkpoint.memory_every:
        return None
    limit_s, buddy = run.train.timeouts.start_s, run.checkpoint.memory_buddy
    memory = MemoryTier(mesh, run.folder, apart=engine.transparent, limit_s=limit_s, buddy=buddy)
    resources.callback(memory.close, clean=False)
    return memory


def _open_store(session: Session) -> None:
    """What puts the run's saves into its store, with the one that it goes on from. All ranks raise UserError where the
    place isn't the run's, or can't be written to; one that doesn't answer now may do so later."""
    run, mesh, record = session.run, session.mesh, session.record
    if run.checkpoint.store is None:
        return
    tell = record.event_from_thread if record is not None else None
    wanted = run.checkpoint
    kept = Retention(wanted.store_keep, wanted.keep_every, wanted.keep_best)
    uploader = Uploader(run.checkpoint.store, mesh.rank, mesh.world, kept, tell)
    refused = None
    if mesh.rank == 0:
        try:
            uploader.claim(session.run_id)
        except UserError as error:
            refused = [error.what, error.where, error.how]
        except RunError as error:
            uploader.say("fault", f"{error}; saves will be put there as soon as it does")
    if (refused := from_rank_zero(refused, mesh)) is not None:
        raise UserError(*refused)
    session.uploader = uploader
    if session.resumed is not None:
        uploader.go_back(session.done)
        if (folder := step_folder(run.folder / "checkpoints", session.done)).exists():
            uploader.offer(folder)


def _write_start(
    session: Session, origin: Origin, remarks: list[str], findings: tuple[Finding, ...], asked: Layout | None
) -> None:
    """What is to be noted of the start, into rank 0's record."""
    record, step, changes = session.record, session.done, origin.changes
    assert record is not None
    if asked is not None:
        now = session.run.layout
        split = f"dp {now.dp}, micro_batch {now.micro_batch}, accumulation {now.accumulation}"
        message = f"elastic: {now.devices} ranks in place of {asked.devices}: {split}"
        sizes = {key: getattr(now, key) for key in ("devices", "dp_replicate", "micro_batch", "accumulation")}
        record.event("world", message, step=step, asked=asked.devices, **sizes)
    for remark in remarks:
        record.remark(remark)
    for finding in findings:
        record.event("preflight", f"preflight: {finding.line}", rule=finding.rule, severity=finding.severity)
    if changes.values:
        record.event("changed", changes.line(step), step=step, changes=changes.values)
    if origin.reader is not None:
        _note_changed_islands(record, session.state.changed_islands(origin.state), step)


def _note_changed_islands(record: Record, change: tuple[int, int] | None, step: int) -> None:
    """An event where a run goes on with other islands than its checkpoint has."""
    if change is None:
        return
    saved, now = change
    words = {0: "no islands", 1: "1 island"}.get(saved, f"{saved} islands")
    begins = "each begins with its weights and optimizer states"
    if saved:
        begins = "it goes on from the outer weights, with island 0's optimizer states; what islands learned since "
        begins += "their last outer step is left out"
    message = f"the checkpoint has {words}, and the run {now or 'none'} now: {begins}"
    record.event("islands", message, step=step, saved=saved, now=now)
