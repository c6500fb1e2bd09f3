"""The loop: read a batch, step, write numbers down, now and then validate and save. It knows no layout.

for step:  rate, seed -> step -> row            every `valid_every`: validate    every `every`: save
until the last step, or until a signal (any rank) or a callback (rank 0) asks to stop: then save
A signal is heard in every batch of a validation, which it cuts short, and after every save.

Python's garbage collector, left to itself, stops a rank now and then, by its own count of objects: at 256 ranks one of
them nearly always does, and the others wait. Here it runs on all ranks alike, before the first step, then every 50th;
saves that it waits for and validations collect everything. What lives before the first step (modules, weights) is
frozen: no later collection looks at it. torchtitan does the same (its `gc_freq`, 50).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from scalewright.launch.fork_server import is_forked
from scalewright.parallel.timers import Spans
from scalewright.train.batches import StepBatches
from scalewright.train.columns import OUTER, STOP, WRITTEN, StopReason, stop_reason, stop_request
from scalewright.train.hangs.slow import Pace
from scalewright.train.metrics.measured import Readback, Report
from scalewright.train.metrics.record import Clock
from scalewright.train.optimizer import set_rate
from scalewright.train.profile import Tracer
from scalewright.train.session import Session
from scalewright.train.signals import StopRequest
from scalewright.train.state.live import Owed

LOADS = 50  # rows of the experts' loads in a run: more would be more numbers than all others together


def loop(session: Session, stop: StopRequest) -> StopReason | None:
    """Trains to the last step of this call or a request to stop; returns what stopped it. That and `session.done` are
    equal on all ranks. Raises Rewind on all of them."""
    with closing(session.batches()) as batches:
        return _steps(session, batches, stop)


def _steps(session: Session, batches: StepBatches, stop: StopRequest) -> StopReason | None:
    """Steps until the run's last; what stopped it before."""
    run, mesh, record = session.run, session.mesh, session.record
    first, last, base = session.done + 1, session.last, session.base_rate
    readback, clock, timers = Readback(mesh.device), Clock(), mesh.timers
    pending: dict[int, tuple[float, Spans]] = {}  # rate and times of steps whose report is under way
    if record is not None:
        timers.start(mesh.device)
    pace = Pace(mesh, record)
    if session.owed is not None and (stopped := _make_up(session, batches, session.owed, stop, clock, pace)):
        return stop_reason(stopped, mesh.world)
    traced = [step for step in run.profile.steps if first <= step <= last]
    tracer = Tracer(traced, run.folder / "traces", mesh, session.parallel, lambda: _tracing(session, clock))
    numbered = zip(range(first, last + 1), timers.each("data", batches), strict=False)
    for step, (micros, counted) in tracer.follow(first, numbered):
        rate = session.horizon.rate(run.lr_schedule, base, step)
        set_rate(session.step.optimizer, base, rate)
        session.seed(step)
        session.health.given(step, micros, counted)
        pace.begins(step)
        callback = record is not None and record.stop_asked
        asked = stop_request(stop.asked, callback, mesh.world, session.comes_together(step))
        session.doing, session.began = step, time.perf_counter()
        with session.counter.step():
            report = session.step(micros, counted, asked, session.part_written)
        session.done, session.owes = step, 2
        pending[step] = rate, timers.take()
        pace.launched()
        stopped = _write(session, batches, readback.push(step, report), pending, clock, pace)
        _write_loads(session, step)
        session.watch.stepped(step)
        if stopped or _is_due(session, step):
            stopped = max(stopped, _write(session, batches, readback.flush(), pending, clock, pace))
        session.owes = 2 if pending else 1
        stopped = _after(session, step, stop, stopped)
        if stopped or _is_due(session, step):
            clock.restart()
            timers.take()
        session.owes = 2 if pending else 0
        if stopped and (step < last or session.cut_short):
            return stop_reason(stopped, mesh.world)
    return None


def _is_due(session: Session, step: int) -> bool:
    """Whether a validation or a save follows a step."""
    every = session.run.train.valid_every, session.run.checkpoint.every
    return step == session.last or any(number and step % number == 0 for number in every)


def _after(session: Session, step: int, stop: StopRequest, stopped: float) -> float:
    """All that follows a step whose numbers have been written; what stops the run."""
    run = session.run
    validate = run.train.valid_every and step % run.train.valid_every == 0
    save = run.checkpoint.every and step % run.checkpoint.every == 0
    session.copies.after(step, saves=bool(save))
    if validate:
        with session.watch.phase("validate"):
            cut_short = not session.validate(step, stop)
        stopped = stopped or float(cut_short or session.stops(stop))
    ends = stopped >= 1 or (step == session.last and run.checkpoint.at_end)
    if ends and not save:
        session.copies.after(step, saves=True)
    if save or ends:
        with session.watch.phase("save"):
            session.save(step, at_once=bool(ends))
        stopped = stopped or float(session.stops(stop))
    if stopped < 1 and step < session.last:
        session.keep_step(step)
    collect_garbage(step, everything=bool(validate or (save and session.saver is None)))
    return stopped


@contextmanager
def _tracing(session: Session, clock: Clock) -> Iterator[None]:
    """Around what a profiler does between two steps: starting, and writing its file."""
    with session.watch.phase("trace"), clock.stopped():
        yield


def _write(
    session: Session, batches: StepBatches, reports: list[Report], pending: dict[int, tuple[float, Spans]],
    clock: Clock, pace: Pace, owed: Owed | None = None,
) -> float:  # fmt: skip
    """Writes the rows that have arrived; the largest STOP among them. `owed`: it is that of an earlier session."""
    stopped = 0.0
    for step, report in reports:
        seconds = clock.lap() if owed is None else owed.seconds
        rate, spans = pending.pop(step)
        spec, parts = session.run.diloco, spans.breakdown(seconds)
        if session.record is not None:
            session.record.step(step, report, rate, seconds, owed.hash if owed else batches.hash_of(step), parts)
            if owed is None:
                session.recovered(step)
            if spec is not None and report[OUTER]:  # the fragments that moved, and how far apart the islands had come
                fragments = spec.applied(step, session.horizon.total)
                session.record.event("outer", step=step, fragments=fragments, outer_grad_norm=report[OUTER])
        pace.took(step, seconds, parts)
        session.health.take(step, report)
        session.follow_save(report[WRITTEN])
        stopped = max(stopped, report[STOP])
    return stopped


def _make_up(session: Session, batches: StepBatches, owed: Owed, stop: StopRequest, clock: Clock, pace: Pace) -> float:
    """What is still to be done after the step in which ranks were lost; what stops the run."""
    step, stopped = session.done, 0.0
    if owed.row and owed.report:
        asked = owed.report[STOP] if owed.report[STOP] >= 1 else 0.0  # who was to be met has been
        report = [*owed.report[:STOP], asked, *owed.report[STOP + 1 :]]
        rate = session.horizon.rate(session.run.lr_schedule, session.base_rate, step)
        stopped = _write(session, batches, [(step, report)], {step: (rate, Spans([]))}, clock, pace, owed)
    session.owed, session.owes = None, 1
    stopped = _after(session, step, stop, stopped)
    session.owes = 0
    return stopped if step < session.last or session.cut_short else 0.0


def _write_loads(session: Session, step: int) -> None:
    """At up to LOADS steps of a run, and its first: the tokens of every expert."""
    balance = session.step.balance
    if balance is not None and balance.layers and (step == 1 or step % -(-session.horizon.total // LOADS) == 0):
        loads = balance.gathered()
        if session.record is not None:
            session.record.experts(step, loads)


EVERY = 50


@contextmanager
def garbage_at_steps() -> Iterator[None]:
    """Collects and freezes once, then leaves collecting to `collect_garbage`; afterwards all is as before. Where
    something is frozen already, by a caller or of a worker's imports (launch/fork_server.py), it stays that alone: what
    is added to it couldn't be thawed apart."""
    enabled, frozen = gc.isenabled(), is_forked() or gc.get_freeze_count() > 0  # counting takes 0.02 s
    gc.disable()
    gc.collect()
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        if enabled:
            gc.enable()


def collect_garbage(step: int, *, everything: bool) -> None:
    """After a step; `everything`: the run has validated or saved, which takes its time anyway."""
    if everything:
        gc.collect()
    elif step % EVERY == 0:
        gc.collect(1)  # young objects: a full collection takes tenths of a second
