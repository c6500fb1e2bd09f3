"""Builds one rank, up to its first step.

precision, mesh -> network -> optimizer -> newest checkpoint that verifies, or first weights
               -> data from the sample that is next -> the run's folder and records (rank 0)
"""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import torch

from scalewright.checkpoint.read import CheckpointReader, set_aside
from scalewright.data.check import BackgroundCheck, unchecked
from scalewright.data.dataset import TokenDataset, open_data
from scalewright.data.left_out import LeftOut, Range
from scalewright.launch.preflight.rule import Finding
from scalewright.launch.rank import RankContext
from scalewright.parallel.collectives import barrier, from_rank_zero
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.spec.grid import make_grid
from scalewright.spec.groups import used_axes
from scalewright.spec.memory import offloads_parameters
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import PythonRef, RunSpec
from scalewright.train.batches import Place, go_to_place, in_vocabulary
from scalewright.train.compare_nodes import look_together
from scalewright.train.engine import Engine, build_own
from scalewright.train.guard.decide import Guard
from scalewright.train.hangs.patience import Patience
from scalewright.train.hangs.watchdog import Watchdog
from scalewright.train.horizon import find_horizon
from scalewright.train.initial import begin_remarks
from scalewright.train.loss import build_loss
from scalewright.train.network import Network, first_weights, load_python
from scalewright.train.precision import Peak, choose_precision, earlier_peak, find_peak
from scalewright.train.record.record import Record
from scalewright.train.record.run_files import open_record, write_folder
from scalewright.train.resolve import Resolved
from scalewright.train.session import Session
from scalewright.train.state.claim import claim_folder
from scalewright.train.state.resume import check_optimizer, find_resume, open_again
from scalewright.train.state.run_state import RunState


def build(
    resolved: Resolved,
    context: RankContext,
    device: torch.device,
    quiet: bool,
    resources: ExitStack,
    patience: Patience | None = None,
    findings: tuple[Finding, ...] = (),
) -> Session:
    """Builds everything up to the first step; `resources` hold the run's folder and watch.

    `findings`: what is to be said of the start; raises UserError where nodes don't fit each other.
    """
    model = resolved.model
    layout, spec = resolved.run.layout, model if isinstance(model, ModelSpec) else None
    mesh = make_mesh(
        make_grid(layout, spec.kv_heads if spec else None, islands=resolved.run.diloco is not None),
        context.rank,
        device,
        axes=used_axes(layout, spec, islands=resolved.run.diloco is not None),
        host_sums=offloads_parameters(layout),
        timeout=timedelta(seconds=resolved.run.train.timeouts.start_s),
    )
    findings = look_together(resolved.run, context, mesh, findings)
    watchdog = Watchdog(context, mesh, resolved.run.folder, resolved.run.train.timeouts, patience)
    watch = resources.enter_context(watchdog)
    remarks: list[str] = []
    run = _on_devices(resolved.run, mesh, remarks)
    engine = _build_engine(run, mesh)
    network, state = engine.network, engine.state
    vocabulary = model.vocab_size if isinstance(model, ModelSpec) else None
    loss = build_loss(
        run.loss,
        run.train.z_loss,
        load_python,
        mesh,
        vocabulary,
        check=True,
        mtp_weight=run.train.mtp_weight,
    )
    valid = (
        in_vocabulary(open_data(run.data, "valid", run.seed), vocabulary) if run.train.valid_every else None
    )
    if mesh.rank == 0:
        resources.enter_context(claim_folder(run))
    barrier(mesh)
    reader, notes = find_resume(run, mesh)
    dataset, changes = open_again(resolved, run, reader, vocabulary)
    peak = _peak(run, mesh, again=reader is not None) if mesh.rank == 0 else None
    barrier(mesh)
    words = dataset.vocab_size if dataset.tokenizer_path is not None else None
    begin, old = _begin(run, reader, network, state, mesh, words)
    if reader is None:
        remarks += begin_remarks(run, dataset) if mesh.rank == 0 else []
    left_out: list[Range] = list(reader.state.get("left_out", [])) if reader else []
    begin = replace(begin, left_out=LeftOut.of([*run.train.guard.leave_out, *left_out]))
    if reader is not None and "data" not in changes.broken:
        go_to_place(dataset, reader.state)
    guard = Guard(run.train.guard, device, fp16=run.layout.precision == "fp16")
    guard.load(state.guard_state(reader.state) if reader else {})
    run_id = from_rank_zero(reader.manifest.run_id if reader else uuid.uuid4().hex[:12], mesh)
    per_step = run.layout.global_batch * resolved.seq_len
    unit = reader.state.get("schedule_unit") if reader else None
    horizon = find_horizon(begin, resolved.steps, resolved.tokens, per_step, unit)
    if state.islands is not None:
        state.islands.last = horizon.total
    run = run.replace(train={**run.train.dump(), "steps": horizon.total})
    resolved = replace(resolved, run=run, steps=horizon.total)
    record = None
    if mesh.rank == 0 and peak is not None:
        write_folder(run, dataset, begin.step if reader else None, changes, engine.files)
        notes += old + [f"set {name} aside" for name in set_aside(run.folder / "checkpoints", begin.step)]
        came_from = str(reader.folder) if reader else None
        record = open_record(
            resolved, run, peak, network, begin, run_id, came_from, notes, quiet=quiet, tell=context.tell
        )
        for remark in remarks:
            record.remark(remark)
        for finding in findings:
            record.event(
                "preflight", f"preflight: {finding.line}", rule=finding.rule, severity=finding.severity
            )
        if changes.values:
            record.event("changed", changes.line(begin.step), step=begin.step, changes=changes.values)
    if reader is not None and record is not None:
        _note_changed_islands(record, state.changed_islands(reader.state), begin.step)
    watch.begins(begin.step, record)
    in_files = [data for data in (dataset, valid) if isinstance(data, TokenDataset)]
    if record is not None:
        record.remark(unchecked(store for data in in_files for store in data.stores))
    resources.enter_context(BackgroundCheck(in_files, context.local_rank, context.local_world))
    return Session(
        run=run,
        horizon=horizon,
        tokens=resolved.tokens,
        seq_len=resolved.seq_len,
        mesh=mesh,
        engine=engine,
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
        cut_short=bool(reader and reader.state.get("validation_cut_short")),
    )


def _build_engine(run: RunSpec, mesh: Mesh) -> Engine:
    """The engine that `run.engine` names. All ranks call it."""
    if run.engine == "scalewright":
        return build_own(run, mesh)
    from scalewright.train.deepspeed.build import build_deepspeed

    return build_deepspeed(run, mesh)


def _on_devices(run: RunSpec, mesh: Mesh, remarks: list[str]) -> RunSpec:
    """The run with the device, and the precision and compilation that it chooses; torch is set to them."""
    requested = run.layout.precision
    precision = from_rank_zero(
        choose_precision(requested, mesh.device, remarks) if mesh.rank == 0 else None, mesh
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
    words: int | None,
) -> tuple[Place, list[str]]:
    """First weights (for data of so many `words`), or a checkpoint's with all that goes with them.

    Returns where the run then stands, and notes.
    """
    if reader is None:
        first_weights(run, network, mesh, words)
        if state.islands is not None:
            state.islands.begin(from_first=isinstance(run.model, PythonRef))
        return Place(), []
    check_optimizer(run, reader)
    return state.restore(reader)


def _note_changed_islands(record: Record, change: tuple[int, int] | None, step: int) -> None:
    """An event where a run goes on with other islands than its checkpoint has."""
    if change is None:
        return
    saved, now = change
    words = {0: "no islands", 1: "1 island"}
    message = f"the checkpoint has {words.get(saved, f'{saved} islands')}, and the run {now or 'none'} now: "
    if saved:
        message += (
            "it goes on from the outer weights, with island 0's optimizer states; what islands learned since "
            "their last outer step is left out"
        )
    else:
        message += "each begins with its weights and optimizer states"
    record.event("islands", message, step=step, saved=saved, now=now)
