"""The loop: read a batch, step, write numbers down, now and then validate and save. It knows no layout.

for step:  rate, seed -> step -> row            every `valid_every`: validate    every `every`: save
until the last step, or until a signal (any rank) or a callback (rank 0) asks to stop: then save
A signal is heard in every batch of a validation, which it cuts short, and after every save.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from scalewright.parallel.timers import Spans
from scalewright.spec.run import RunSpec
from scalewright.train.batches import StepBatches
from scalewright.train.columns import OUTER, STOP, StopReason, stop_reason, stop_request
from scalewright.train.engine import Stepper
from scalewright.train.garbage import collect_garbage
from scalewright.train.guard.health import Health
from scalewright.train.hangs.watchdog import Watchdog
from scalewright.train.horizon import Horizon
from scalewright.train.optimizer import set_rate
from scalewright.train.profile import Tracer
from scalewright.train.record.measured import Counter
from scalewright.train.record.readback import Readback
from scalewright.train.record.record import Clock, Record
from scalewright.train.signals import StopRequest

LOADS = 50  # rows of the experts' loads in a run: more would be more numbers than all others together


@dataclass
class Job:
    """All that a rank's loop works with."""

    run: RunSpec
    step: Stepper
    batches: StepBatches
    record: Record | None  # rank 0's
    health: Health
    save: Callable[[int], None]
    validate: Callable[[int, StopRequest], bool]  # false: cut short, which the checkpoint then records
    stops: Callable[[StopRequest], bool]  # whether any rank was asked to stop; called by all
    first: int  # the next step, from 1
    last: int  # the last step of this call
    horizon: Horizon  # of the whole run, which the learning rate is laid over
    base_rate: float
    watch: Watchdog
    counter: Counter


def loop(job: Job, stop: StopRequest) -> tuple[int, StopReason | None]:
    """Trains to the last step or a request to stop; returns the last step done, and what stopped it.

    Both are equal on all ranks.
    """
    world = job.step.mesh.world
    readback, clock, timers = Readback(job.step.mesh.device), Clock(), job.step.mesh.timers
    rates: dict[int, float] = {}
    spans: dict[int, Spans] = {}
    step = job.first - 1
    if job.record is not None:
        timers.start(job.step.mesh.device)
    batches = timers.each("data", job.batches)
    traced = [step for step in job.run.profile.steps if job.first <= step <= job.last]
    tracer = Tracer(traced, job.run.folder / "traces", job.step.mesh, job.step.parallel)
    numbered = zip(range(job.first, job.last + 1), batches, strict=False)
    for step, (micros, counted) in tracer.follow(job.first, numbered):
        rates[step] = job.horizon.rate(job.run.lr_schedule, job.base_rate, step)
        set_rate(job.step.optimizer, job.base_rate, rates[step])
        seed_step(job.run.seed, step, job.step.mesh.index("batch"), job.step.mesh.device)
        job.health.given(step, micros, counted)
        called = job.record is not None and job.record.stop_asked
        asked = stop_request(stop.asked, called, world)
        with job.counter.step():
            report = job.step(micros, counted, asked)
        spans[step] = timers.take()
        cut_short = False
        stopped = _write(job, readback.push(step, report), rates, spans, clock)
        _write_loads(job, step)
        job.watch.stepped(step)
        validate = job.run.train.valid_every and step % job.run.train.valid_every == 0
        save = job.run.checkpoint.every and step % job.run.checkpoint.every == 0
        if validate or save or stopped or step == job.last:
            stopped = max(stopped, _write(job, readback.flush(), rates, spans, clock))
            if validate:
                with job.watch.phase("validate"):
                    cut_short = not job.validate(step, stop)
                stopped = stopped or float(cut_short or job.stops(stop))
            ends = stopped or (step == job.last and job.run.checkpoint.at_end)
            if save or ends:
                with job.watch.phase("save"):
                    job.save(step)
                stopped = stopped or float(job.stops(stop))
            clock.restart()
            timers.take()
        collect_garbage(step, everything=bool(validate or save))
        if stopped and (step < job.last or cut_short):
            return step, stop_reason(stopped, world)
    return step, None


def _write(
    job: Job,
    reports: list[tuple[int, list[float]]],
    rates: dict[int, float],
    spans: dict[int, Spans],
    clock: Clock,
) -> float:
    """Writes the rows that have arrived; the largest STOP among them."""
    stopped = 0.0
    for step, report in reports:
        seconds = clock.lap()
        rate, parts = rates.pop(step), spans.pop(step).breakdown(seconds)
        if job.record is not None:
            job.record.step(step, report, rate, seconds, job.batches.hash_of(step), parts)
        _write_outer(job, step, report)
        job.health.take(step, report)
        stopped = max(stopped, report[STOP])
    return stopped


def _write_outer(job: Job, step: int, report: list[float]) -> None:
    """The fragments that an outer step moved, and how far apart the islands had come."""
    spec = job.run.diloco
    if job.record is None or spec is None or not report[OUTER]:
        return
    fragments = spec.applied(step, job.horizon.total)
    job.record.event("outer", step=step, fragments=fragments, outer_grad_norm=report[OUTER])


def _write_loads(job: Job, step: int) -> None:
    """At up to LOADS steps of a run, and its first: the tokens of every expert."""
    balance = job.step.balance
    if balance is None or not balance.layers:
        return
    if step == 1 or step % -(-job.horizon.total // LOADS) == 0:
        loads = balance.gathered()
        if job.record is not None:
            job.record.experts(step, loads)


def seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Seeds torch for one step of one data rank: dropout is a pure function of these three, so a resume
    needs no random state.

    Only the generators that the step can use: `torch.manual_seed` asks every kind of device of torch,
    which takes a hundred times as long.
    """
    digest = hashlib.blake2b(f"{seed}/step/{step}/{rank}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little")
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)
    elif device.type == "mps":
        torch.mps.manual_seed(number)
