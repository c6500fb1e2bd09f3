"""Trains a run: resolves it, finds or starts its ranks, and returns how it ended.

    alone                     this process trains
    torchrun, srun, mpirun    this process is one rank of theirs
    layout.devices > 1        this process starts local workers, and waits for them; so it does for DeepSpeed
    a process a node          the same, on every node: its workers are ranks of the bigger world
    elastic, max_restarts     local workers that die are started again, also of a layout of one device (elastic.py)

This file imports no torch: the workers do, while the run is still being checked. Callbacks of the caller get the rows
as they are written, and may stop the run: `sw.train("run.yaml", on_step=lambda row: "stop" if row["loss"] < 2 else
None)`. Rank 0's record calls them; local workers send their rows through a pipe, and this process calls them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scalewright.launch import settings
from scalewright.launch.begin import prepare_workers
from scalewright.launch.local import is_worker, run_local
from scalewright.launch.preflight.rules import look_here
from scalewright.launch.rank import RankContext, find_context, is_restarted
from scalewright.launch.rendezvous import with_address
from scalewright.machine.load import fair_threads, mark, others_busy
from scalewright.machine.processor import read_processor
from scalewright.spec.common.began import begun
from scalewright.spec.common.heartbeat import Heartbeat
from scalewright.spec.elastic import check_in_process
from scalewright.spec.errors import Stopped, UserError
from scalewright.spec.memory import is_sharded
from scalewright.spec.run import PythonRef, RunSpec
from scalewright.track.store import find_store
from scalewright.train.callbacks import Callback, Callbacks
from scalewright.train.elastic import LocalRanks, Lost, OnRow, at_most, for_launcher
from scalewright.train.replicas import Replicas
from scalewright.train.resolve import (
    Overrides,
    Resolved,
    check_workers,
    device_kind,
    may_have_gpu,
    read_run,
    resolve,
    with_data,
)
from scalewright.train.signals import StopRequest
from scalewright.train.start import Start
from scalewright.train.state.attempts import GaveUpError, note_failure
from scalewright.train.state.changes import keep_choices
from scalewright.train.state.claim import InUseError, check_folder, check_free


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    out_dir: str
    step: int
    loss: float | None  # of the last step
    valid_loss: float | None
    bits_per_byte: float | None
    tokens_per_s: float | None
    resumed_from: int | None  # the step of the checkpoint that this call continued from
    seconds: float
    predicted_step_time_s: float | None = None  # null: not predicted (events.jsonl has why)
    measured_step_time_s: float | None = None  # the median, without this call's first steps

    def dump(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


# Called before any rank starts, with the kind of device (cpu, cuda, mps); raises UserError for a run that
# needs more memory than is free. `scalewright.api.train` passes that of `dry_run/fits_here.py`.
MemoryCheck = Callable[[Resolved, str, RankContext], None]
CHECKING = "checking the run, its data and this machine"


def train(
    run: str | Path | dict[str, object] | RunSpec,
    overrides: Overrides = (),
    *,
    steps: int | None = None,
    simulate: bool = False,
    quiet: bool = False,
    force: bool = False,
    check_memory: MemoryCheck | None = None,
    on_start: Callable[[list[int]], None] | None = None,
    on_step: Callback | None = None,
    on_valid: Callback | None = None,
    on_event: Callback | None = None,
) -> Result:
    """Trains a run. Arguments and errors are those of `scalewright.api.train`, but for `check_memory`. Without it the
    run is not compared with the memory that is free."""
    with StopRequest(alone=True) as stop, Heartbeat(CHECKING, enabled=not quiet) as heart:
        started, wall, began = time.perf_counter(), time.time(), begun()
        callbacks = Callbacks(on_step, on_valid, on_event)
        asked = read_run(run, overrides, *(["device=cpu"] if simulate else []))
        context, variables = with_address(find_context()), settings.tracking_variables()
        spec = keep_choices(_on_this_world(asked, context, simulate))
        if context.rank:
            heart.now("")
        world = spec.layout.devices
        nodes = context.world if context.whole_node and world % context.world == 0 else 1
        here = world // nodes
        # DeepSpeed's engine lives once in a process, and changes its globals; ranks that may die need one that stays.
        restarts = context.alone and (spec.elastic is not None or spec.launch.max_restarts > 0) and not is_restarted()
        apart = here > 1 or spec.engine == "deepspeed" or restarts
        local = apart and (context.alone or nodes > 1)
        if local:
            check_caller(spec)
        if context.alone:  # else rank 0 checks, once it can reach all ranks
            check_free(spec)
        busy = mark()
        find_store(spec.track, variables)
        resolved = resolve(spec, read_data=False)  # what can't be is refused before a process starts
        if local:
            prepare_workers(preload := _preload(spec))
        resolved = replace(with_data(resolved), variables=variables)
        check_folder(resolved.run, force)
        kind, count = device_kind(resolved.run)
        try:
            if local:
                check_workers(resolved.run, kind, count, simulate, nodes)
            else:
                _check_world(context, world)
            file = Path(run) if isinstance(run, str | Path) else None
            findings = look_here(resolved.run, context, kind, file)
            if check_memory is not None:
                check_memory(resolved, kind, replace(context, local_world=here) if nodes > 1 else context)
            other = asked.layout if world != asked.layout.devices else None
            start = Start(resolved, kind, steps, quiet, busy, findings, restarts, other, began=began)
            if local:
                # counted here, since the fork server works for the run, too
                start = replace(start, busy=others_busy(busy))

                def on_begin(workers: list[int]) -> None:
                    heart.now("")  # the first one tells what it is at
                    if on_start is not None:
                        on_start(workers)

                def run_ranks(
                    start: Start, on_row: OnRow | None, devices: Sequence[int] = (), keeper: Replicas | None = None
                ) -> dict[str, Any]:
                    heart.now("starting the ranks")
                    ranks = start.resolved.run.layout.devices // nodes
                    threads = context.threads if kind == "cpu" else None
                    ended: dict[str, Any] = run_local(
                        enter,
                        (start,),
                        ranks,
                        preload=preload,
                        threads=threads or fair_threads(read_processor(), ranks, 0.0),
                        on_start=on_begin,
                        on_row=on_row,
                        import_main=False,
                        node=context if nodes > 1 else None,
                        devices=devices,
                        keeper=keeper,
                    )
                    return ended

                if restarts:

                    def begin(
                        fitted: RunSpec, devices: Sequence[int], on_row: OnRow, attempt: int, lost: Lost
                    ) -> dict[str, Any]:
                        again = _start_again(start, asked, fitted, wall) if attempt else start
                        in_process = asked.elastic is not None and asked.elastic.in_process
                        return run_ranks(
                            again, on_row, devices, Replicas(again, lost, ranks.say) if in_process else None
                        )

                    ranks = LocalRanks(asked, begin, callbacks, quiet, world)
                    ended = ranks.until_the_end()
                else:
                    ended = run_ranks(start, callbacks if callbacks else None)
            else:
                heart.now("")
                ended = enter(replace(context, tell=callbacks) if callbacks else context, start, stop)
        except Stopped:
            if not (local and callbacks.stopped):  # local workers get a callback's wish as a signal
                raise
            ended = callbacks.result(str(resolved.run.folder), time.perf_counter() - started)
        except InUseError:
            raise
        except Exception as error:
            # A mistake that a check found is no event of a run; one that the run met, as damaged data, is.
            if context.rank == 0 and (not isinstance(error, UserError) or _has_begun(resolved.run, wall)):
                note_failure(resolved.run.folder, error)
            if isinstance(error, GaveUpError | UserError):
                settings.no_more_starts()
            raise
    return Result(**ended)


def _on_this_world(asked: RunSpec, context: RankContext, simulate: bool) -> RunSpec:
    """The run on the ranks that were started, or the devices that are here, where `elastic` allows for others than
    those of its layout. Raises UserError."""
    if asked.elastic is None:
        return asked
    islands, overlap = asked.diloco is not None, asked.diloco.overlap if asked.diloco is not None else 0
    engine, store = asked.engine, asked.checkpoint.store is not None
    check_in_process(asked.elastic, asked.layout, islands=islands, overlap=overlap, engine=engine, store=store)
    if asked.elastic.in_process and not context.alone:
        problem = f"the starter of these ranks ({context.starter}) ends all of them when one dies"
        how = "start them on one machine with `scalewright train`, or leave it out: elastic: true goes on by a restart"
        raise UserError(problem, "elastic.in_process", how)
    if not context.alone:
        per_node = asked.layout.devices // (asked.launch.nodes or context.world) if context.whole_node else 1
        return for_launcher(asked, context, asked.launch.per_node or max(1, per_node) if context.whole_node else 1)
    if asked.device == "cpu" or simulate:
        return asked
    _, count = device_kind(asked)
    return (at_most(asked, count) or asked) if asked.layout.devices > count else asked


def _start_again(start: Start, asked: RunSpec, fitted: RunSpec, wall: float) -> Start:
    """What an attempt's ranks are started with; a run that has begun isn't begun anew."""
    run = keep_choices(fitted)
    if run.resume == "never" and _has_begun(run, wall):
        run = run.model_copy(update={"resume": "auto"})
    resolved = replace(with_data(resolve(run, read_data=False)), variables=start.resolved.variables)
    other = asked.layout if run.layout.devices != asked.layout.devices else None
    return replace(start, resolved=resolved, asked=other, began=time.time())


def _check_world(context: RankContext, world: int) -> None:
    if context.world != world and context.whole_node:
        problem = f"{context.starter} started {context.world} processes, one a node, but layout.devices is {world}"
        how = f"use a multiple of {context.world}: every node starts its part of the ranks"
        raise UserError(problem, "layout", how)
    if context.world != world:
        how = f"use layout.devices={context.world}, start {world} ranks, or set elastic=true"
        raise UserError(f"{context.starter} started {context.world} ranks but layout.devices is {world}", "layout", how)


def _has_begun(run: RunSpec, since: float) -> bool:
    """Whether the run has written an event since that time, in seconds since 1970."""
    with suppress(OSError):
        return (run.folder / "events.jsonl").stat().st_mtime >= since
    return False


# Modules that the fork server imports once for all ranks: FSDP and torch's compiler would cost every rank two CPU
# seconds of its own. torch imports its compiler for FSDP's first tensor, and to recompute.
PRELOAD = ("scalewright.train.worker", "scalewright.parallel.shard_gradients", "torch._dynamo")


def _preload(run: RunSpec) -> tuple[str, ...]:
    """Those that a run may use."""
    compiles = run.train.compile is True or (run.train.compile == "auto" and run.device != "cpu" and may_have_gpu())
    has_own = isinstance(run.model, PythonRef) or isinstance(run.optimizer, PythonRef)
    uses = is_sharded(run.layout) or run.layout.recompute != "none" or compiles or has_own
    return PRELOAD if uses else PRELOAD[:1]


def enter(context: RankContext, start: Start, stop: StopRequest | None = None) -> dict[str, Any]:
    """One rank's entry, in whatever process it lives; the arguments and the answer are those of `work`."""
    with Heartbeat("loading PyTorch", enabled=context.rank == 0 and not start.quiet):
        from scalewright.train.worker import work

    run, kind = start.resolved.run, start.device
    if run.deterministic:
        settings.make_deterministic()  # here, since the fork server's environment is older than the run
    if run.engine == "deepspeed":
        settings.describe_rank(context.rank, context.world, context.local_rank, kind)
    if kind == "cuda":
        settings.use_expandable_segments()  # before the first allocation
    if kind == "cpu":
        settings.keep_few_kernels()
    settings.keep_flight_records(run.folder / "hangs")
    settings.raise_file_limit()
    with Heartbeat("joining the other ranks", enabled=context.rank == 0 and not start.quiet) as heart:
        return work(context, replace(start, heart=heart), stop)


def check_caller(run: RunSpec) -> None:
    """Raises UserError where workers would have to import the script that starts them."""
    if is_worker():
        problem = "a worker has imported the script that started it, which would start workers of its own"
        how = 'put the call under `if __name__ == "__main__":`, or the parts into a module of their own'
        raise UserError(problem, "train", how)
    for key in ("model", "data", "loss", "optimizer"):
        part = getattr(run, key)
        if isinstance(part, PythonRef) and part.python.startswith("__main__:"):
            where = f"'{part.python}' lies in the script or notebook that starts the run"
            how = "move it to a module, such as parts.py in the working directory, or use layout.devices=1"
            raise UserError(f"{where}, and {run.layout.devices} workers don't import that", key, how)
