"""One rank's whole life.

    join the others ─► build.py ─► loop.py ─► (a spike: back to a checkpoint, loop.py) ─► records closed ─► leave

Where a layout cuts rows, two forwards of one micro-batch before the first step show whether tokens see other documents
of their row; masks of a cut row are made by parts, and such a fault would spoil what is learned and show in no curve:

    row       A A A B B B B C C      the loss of B and C, before A's tokens are changed and after
              x x x B B B B C C      the same number, if B and C don't see A
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch

from scalewright.data.batch import IGNORED, Batch
from scalewright.launch.rank import RankContext
from scalewright.launch.regroup import Line
from scalewright.launch.stop import STOP_FILE, save_at
from scalewright.machine.load import CpuMark, others_busy, too_many_threads
from scalewright.machine.processor import read_processor
from scalewright.parallel.collectives import all_sum, gather_json
from scalewright.parallel.execute import Loss
from scalewright.parallel.inputs import micro_batches, wanted_by
from scalewright.parallel.mesh import Mesh, join_world, leave_world
from scalewright.parallel.parallelize import Parallel
from scalewright.parallel.weights import release
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.errors import RunError, Stopped, UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import DataSpec, RunSpec
from scalewright.track.tracker import Status
from scalewright.train.build import build
from scalewright.train.callbacks import answer
from scalewright.train.columns import StopReason
from scalewright.train.guard.health import Rewind
from scalewright.train.hangs.process import is_broken
from scalewright.train.loop import garbage_at_steps, loop
from scalewright.train.memory.out_of_memory import memory_explained
from scalewright.train.memory.usage import keep_history
from scalewright.train.network import types_explained
from scalewright.train.regroup import Past, Regrouping
from scalewright.train.session import Session
from scalewright.train.signals import StopRequest
from scalewright.train.start import Start


def work(context: RankContext, start: Start, stop: StopRequest | None = None) -> dict[str, object]:
    """Trains as one rank; the answer has the keys of `train.run.Result`. Raises Stopped after a signal, not after a
    callback's "stop", on all ranks alike. `stop`: what hears signals already; a local worker is ended by one until it
    has joined."""
    started = time.perf_counter()
    run, device = start.resolved.run, own_device(start.device, context)
    if context.line is not None:
        return _live_on(context, context.line, start, device, started)
    _set_up(run, context, device)
    starter = context.starter if context.waited_for else None
    with stop.joins(tell=context.rank == 0, starter=starter) if stop is not None else nullcontext():
        if not context.alone:
            context = _join(context, run, device)
    together = False
    try:
        with (
            memory_explained(run, start.resolved.seq_len, context.rank, device),
            _stop_request(run, context, stop) as stop,
        ):
            ended = _life(context, start, device, stop, started)
        together = True
        return ended
    except Stopped:  # which all ranks had agreed on
        together = True
        raise
    finally:
        leave_world(together=together)


def _set_up(run: RunSpec, context: RankContext, device: torch.device) -> None:
    if context.threads:
        torch.set_num_threads(context.threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if run.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    keep_history(run.profile.memory, device)


def _join(context: RankContext, run: RunSpec, device: torch.device, limit_s: float = math.inf) -> RankContext:
    """Meets the others; the rank, with the name of the meeting."""
    timeout = timedelta(seconds=min(run.train.timeouts.start_s, limit_s))
    place = context.rank, context.world, context.rendezvous
    attempt = None if context.starter == "torchrun" else context.attempt
    name = join_world(*place, device, attempt=attempt, shared_store=context.shared_store, timeout=timeout)
    return replace(context, meeting=name)


def _life(
    context: RankContext, start: Start, device: torch.device, stop: StopRequest, started: float,
    past: Past | None = None,
) -> dict[str, object]:  # fmt: skip
    """Builds a session and trains; how the run ended. `past`: of a rank that outlives others."""
    session: Session | None = None
    try:
        with ExitStack() as resources:
            session = build(start, context, device, resources, past)
            start.at("")
            first = session.record is not None and device.type == "cpu" and (past is None or not past.joins)
            remark = _thread_remark(context, start.busy) if first else None
            if session.record is not None and remark is not None:
                session.record.event("load", remark)
            if start.prepare is not None:
                start.prepare(session)
            if past is not None:
                past.live = None
            return _train(session, stop, started)
    finally:
        if past is not None:
            past.ends(session)


MEET_S = 60.0  # that ranks which are there, and know it, may take to connect


def _live_on(context: RankContext, line: Line, start: Start, device: torch.device, started: float) -> dict[str, object]:
    """A rank that outlives others: one session after the other, each for those that are left, or are there again."""
    run, past = start.resolved.run, Past(line)
    _set_up(run, context, device)
    go = line.meet() if line.joins else None
    with memory_explained(run, start.resolved.seq_len, context.rank, device), _stop_request(run, context, None) as stop:
        while True:
            if go is not None:
                (start,) = go.arguments
                context = replace(context, rank=go.rank, world=go.world, local_rank=go.rank, local_world=go.world)
                context = replace(context, attempt=go.meeting)
                past = Past(line) if go.new else past
                _stop_request(start.resolved.run, context, stop)
            together = False
            past.begins(joins=go is not None)
            try:
                if not context.alone:
                    context = _join(context, run, device, MEET_S if go is not None else math.inf)
                ended = _life(context, start, device, stop, started, past)
                together = True
                return ended
            except Regrouping:
                together, error = True, None
            except Stopped:
                together = True
                raise
            except Exception as problem:
                behind = getattr(problem, "ranks", ())
                if not (line.lost or behind or (isinstance(problem, RuntimeError) and is_broken(problem))):
                    raise
                for rank in behind:
                    line.accuse(rank, str(problem))
                error = problem
            finally:
                if not together:
                    line.cut()
                leave_world(together=together, abort=True)
            if (go := line.meet()) is None:
                raise error or RunError("new ranks were to be met, and didn't come")
            error = None  # with what its frames hold
            gc.collect()


def _train(session: Session, stop: StopRequest, started: float) -> dict[str, object]:
    """Runs the loop and closes the records, whatever happens; how the run ended (rank 0's counts)."""
    run, record, total = session.run, session.record, session.horizon.total
    status: Status = "failed"
    cause = ""
    if record is not None:
        record.console.ends_at(session.last)
        if session.done >= session.last:
            at = f"this run is at step {session.done}, and its last is {session.last}"
            record.console.message(f"nothing to do: {at}")
    try:
        _probe(session)
        if run.checkpoint.every or run.checkpoint.at_end or run.checkpoint.memory_every:
            session.state.check_first()
        with garbage_at_steps():
            stopped = _stops_first(session, stop) or _loop_again(session, stop)
        with session.watch.phase("save"):
            session.settle_save()
        if stopped == "regroup":
            if record is not None:
                record.event(
                    "regroup", f"step {session.done}: ranks that are there again are taken in", step=session.done
                )
            raise Regrouping
        counts = session.counter.together()  # of a call that had enough steps
        if counts is not None and record is not None:
            record.event("measured", "", step=session.done, **counts)
        session.watch.ends()
        if not stopped:
            session.health.check_end(session.done)
        if session.uploader is not None:
            session.uploader.close()
        if session.memory is not None:
            session.memory.close(clean=session.save_problem is None)
        if record is not None:
            record.metrics.writer.look()
        status = "stopped" if stopped else "finished"
        cause = stop.cause or "another rank was asked" if stopped == "signal" else stopped or ""
    finally:
        if record is not None:
            record.close(status, session.done, time.perf_counter() - started, cause)
    if session.save_problem:
        raise RunError(session.save_problem)
    if stopped == "signal":
        stop.saved()
        where = f"stopped at step {session.done} of {total} and saved ({cause})"
        if session.done == session.place.step:
            where = f"stopped before step {session.done + 1} of {total} ({cause})"
        raise Stopped(f"{where}; the same command goes on from there")
    return _answer(session, time.perf_counter() - started)


def _probe(session: Session) -> None:
    """Looks for documents that see each other, where a layout makes the masks by parts."""
    data, model, layout = session.run.data, session.run.model, session.run.layout
    if layout.cp == 1 or not isinstance(model, ModelSpec) or (isinstance(data, DataSpec) and not data.masked):
        return
    loss, seq_len = session.plain_loss(), session.resolved.seq_len
    check_leaks(session.parallel, session.mesh, loss, layout.micro_batch, seq_len, model.vocab_size)


def _stops_first(session: Session, stop: StopRequest) -> StopReason | None:
    """A signal that came while this rank was built; else makes up the validation that a stop cut short. What else asks
    to stop waits for a step: a run whose every call comes to its time limit goes on."""
    if any(gather_json(stop.signalled, session.mesh)):
        return "signal"
    if session.cut_short:
        with session.watch.phase("validate"):
            session.validate(session.done, stop)
    return "signal" if session.cut_short else None


def _loop_again(session: Session, stop: StopRequest) -> StopReason | None:
    """Loops to the end, back to checkpoints where a spike asks for it; what stopped it, if anything."""
    while True:
        try:
            with types_explained(session.run, session.parallel.model):
                return loop(session, stop)
        except Rewind as rewind:
            session.go_back(rewind.target)


def _answer(session: Session, seconds: float) -> dict[str, object]:
    """How the run ended, also one that was finished before this call."""
    folder, record = str(session.run.folder), session.record
    if record is None:
        return answer(folder, session.done, {}, session.resumed, seconds)
    last: Mapping[str, Mapping[str, Any]] = record.last
    if "train" not in last:  # nothing was left to do
        last = {row["kind"]: row for row in read_jsonl(record.metrics.path)}
    return answer(folder, session.done, last, session.resumed, seconds) | record.expectation.outcome()


def _stop_request(run: RunSpec, context: RankContext, stop: StopRequest | None) -> AbstractContextManager[StopRequest]:
    """What may stop this rank; the clock and the file are rank 0's to look at."""
    first = context.rank == 0
    requested = stop or StopRequest(last=context.supervisor is not None)
    file, end = (run.folder / STOP_FILE, save_at(run.launch)) if first else (None, None)
    requested.watch(file, end, context.starter if context.waited_for else None)
    return requested if stop is None else nullcontext(stop)


def own_device(kind: str, context: RankContext) -> torch.device:
    """This rank's own device. Some starters show each rank one GPU (srun --gpus-per-task=1)."""
    if kind != "cuda":
        return torch.device(kind)
    count, number = torch.cuda.device_count(), context.local_rank if context.device is None else context.device
    if number < count or count == 1:
        return torch.device(kind, min(number, count - 1))
    problem = f"rank {context.rank} is number {number} (from 0) of a node that shows it {count} GPUs"
    raise UserError(problem, "device", f"start {count} ranks a node, or show each rank its own GPU")


def _thread_remark(context: RankContext, busy: CpuMark | float | None) -> str | None:
    """A line where this run's threads don't fit into the cores that are idle; else None. `busy`: cores that others keep
    busy, or the mark since which that is counted. The number of threads isn't changed for it: sums of another number of
    threads differ in their last bits, and a resume on a quieter machine would no longer be the same run."""
    others = others_busy(busy, alike=context.local_world) if isinstance(busy, CpuMark) else busy
    return too_many_threads(read_processor(), torch.get_num_threads(), context.local_world, others)


# What a sum of losses may differ by where a kernel adds in another order from call to call. Documents that
# see each other move it by 3e-4 in the tests' model: three hundred times that.
NOISE = 1e-6


def check_leaks(parallel: Parallel, mesh: Mesh, loss: Loss, micro_batch: int, seq_len: int, vocabulary: int) -> None:
    """Raises RunError where a document's tokens move the loss of others; all ranks call it."""
    change = leak(parallel, mesh, loss, _rows(micro_batch, seq_len, vocabulary), vocabulary)
    if not change <= NOISE:
        moved = f"other tokens there move the loss of the rest by {change:.1e}"
        how = "train with layout.cp=1, and please report this"
        raise RunError(f"with this layout tokens see other documents of their row: {moved}; {how}")


@torch.no_grad()
def leak(parallel: Parallel, mesh: Mesh, loss: Loss, rows: Batch, vocabulary: int) -> float:
    """By how much, relatively, the later documents' loss moves when each row's first has other tokens."""
    assert rows.documents is not None
    first = rows.documents == 0
    others = replace(rows, targets=np.where(first, IGNORED, rows.targets))
    changed = replace(others, tokens=np.where(first, (rows.tokens + 1) % vocabulary, rows.tokens))
    sums, wanted = [], wanted_by(parallel.model)
    for batch in (others, changed):
        (micro,) = micro_batches(batch, len(batch.tokens), mesh.device, wanted)
        sums.append(parallel.executor.total(micro, loss))
    release(parallel.model)
    before, after = all_sum(torch.stack(sums).double(), mesh, "world").tolist()
    change: float = abs(after - before) / abs(before)
    return change


def _rows(count: int, length: int, vocabulary: int) -> Batch:
    """Rows of three documents, of any tokens."""
    tokens = np.random.default_rng(0).integers(0, vocabulary, (count, length + 1))
    starts, index = np.array([0, length // 3, length * 3 // 4]), np.arange(length)
    documents = np.searchsorted(starts, index, side="right") - 1
    positions, documents_of_rows = (np.tile(row, (count, 1)) for row in (index - starts[documents], documents))
    return Batch(tokens[:, :-1], tokens[:, 1:], positions, documents_of_rows.astype(np.int32), np.arange(count))
