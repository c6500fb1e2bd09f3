"""One rank's whole life: join the others, build (train/build.py), train (train/session.py), leave."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import timedelta
from typing import Any

import torch

from scalewright.launch.preflight.rule import Finding
from scalewright.launch.rank import RankContext
from scalewright.launch.stop import STOP_FILE, save_at
from scalewright.machine.load import CpuMark, others_busy, too_many_threads
from scalewright.machine.processor import read_processor
from scalewright.parallel.mesh import join_world, leave_world
from scalewright.spec.errors import Stopped, UserError
from scalewright.spec.run import RunSpec
from scalewright.train.build import build
from scalewright.train.hangs.patience import Patience
from scalewright.train.memory.history import keep_history
from scalewright.train.memory.out_of_memory import memory_explained
from scalewright.train.resolve import Resolved
from scalewright.train.session import Session
from scalewright.train.signals import StopRequest


def work(
    context: RankContext,
    resolved: Resolved,
    *,
    device: str,
    until: int | None = None,
    quiet: bool = False,
    busy: CpuMark | float | None = None,
    patience: Patience | None = None,
    findings: tuple[Finding, ...] = (),
    prepare: Callable[[Session], None] | None = None,
    stop: StopRequest | None = None,
) -> dict[str, Any]:
    """Trains as one rank; the answer has the keys of `train.run.Result`. Raises Stopped after a signal, not
    after a callback's "stop", on all ranks alike.

    `busy`: how busy others keep this machine (see `_thread_remark`). `patience`: the watchdog's.
    `findings`: by the look at this start. `prepare` is called with what was built, before it trains: parity
    attaches to it. `stop`: what hears signals already; a local worker is ended by one until it has joined.
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
    with stop.joins(tell=context.rank == 0) if stop is not None else nullcontext():
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
    keep_history(run.profile.memory, place)
    together = False
    try:
        with (
            memory_explained(run, resolved.seq_len, context.rank, place),
            _stop_request(run, context, stop) as stop,
            ExitStack() as kept,
        ):
            session = build(resolved, context, place, quiet, kept, patience, findings)
            if session.record is not None and device == "cpu":
                session.record.remark(_thread_remark(context, busy))
            if prepare is not None:
                prepare(session)
            answer = session.train(stop, until, started)
        together = True
        return answer
    except Stopped:  # which all ranks had agreed on
        together = True
        raise
    finally:
        leave_world(together=together)


def _stop_request(
    run: RunSpec, context: RankContext, stop: StopRequest | None
) -> AbstractContextManager[StopRequest]:
    """What may stop this rank; the clock and the file are rank 0's to look at."""
    first = context.rank == 0
    requested = stop or StopRequest(last=context.supervisor is not None)
    requested.watch(
        run.folder / STOP_FILE if first else None,
        save_at(run.launch) if first else None,
        context.starter if context.waited_for else None,
    )
    return requested if stop is None else nullcontext(stop)


def own_device(kind: str, context: RankContext) -> torch.device:
    """This rank's own device. Some starters show each rank one GPU (srun --gpus-per-task=1)."""
    if kind != "cuda":
        return torch.device(kind)
    count = torch.cuda.device_count()
    if context.local_rank < count:
        return torch.device(kind, context.local_rank)
    if count == 1:
        return torch.device(kind, 0)
    raise UserError(
        f"rank {context.rank} is number {context.local_rank} (from 0) of a node that shows it {count} GPUs",
        "device",
        f"start {count} ranks a node, or show each rank its own GPU",
    )


def _thread_remark(context: RankContext, busy: CpuMark | float | None) -> str | None:
    """A line where this run's threads don't fit into the cores that are idle; else None.

    `busy`: cores that others keep busy, or the mark since which that is counted. The number of threads isn't
    changed for it: sums of another number of threads differ in their last bits, and a resume on a quieter
    machine would no longer be the same run.
    """
    others = others_busy(busy, alike=context.local_world) if isinstance(busy, CpuMark) else busy
    return too_many_threads(read_processor(), torch.get_num_threads(), context.local_world, others)
