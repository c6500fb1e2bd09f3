"""The door to training: resolve the run, find or start its ranks, and say how it ended.

    alone                     this process trains
    torchrun, srun, mpirun    this process is one rank of theirs
    layout.devices > 1        this process starts local workers and answers for them

This file imports no torch: the workers do, while the run is still being checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scalewright.launch.context import RankContext, find_context
from scalewright.launch.local import cores, prepare_workers, run_local
from scalewright.launch.settings import (
    keep_flight_records,
    make_deterministic,
    raise_file_limit,
    tracking_variables,
)
from scalewright.spec.errors import RunError, Stopped, UserError
from scalewright.spec.run import RunSpec, load_run
from scalewright.track.events import EventsFile
from scalewright.track.store import find_store
from scalewright.train.resolve import check_workers, device_kind, plain, resolve, unplain


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

    def dump(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def train(
    run: str | Path | dict[str, Any] | RunSpec,
    overrides: Sequence[str] = (),
    *,
    steps: int | None = None,
    simulate: bool = False,
    quiet: bool = False,
    on_start: Callable[[list[int]], None] | None = None,
) -> Result:
    """Trains what a run file (or a RunSpec, or plain data) describes, with `key=value` overrides.

    `steps` stops early, at that step of the run. `simulate` lets CPU processes stand in for more devices than
    this machine has. `on_start` is told the process ids of the local workers. Raises UserError for a mistake
    in the run, RunError when it failed, Stopped when a signal asked it to stop and it saved.
    """
    spec = read_run(run, [*overrides, "device=cpu"] if simulate else overrides)
    context, variables = find_context(), tracking_variables()
    world = spec.layout.devices
    local = context.alone and world > 1
    find_store(spec.track, variables)
    resolve(spec, read_data=False)  # what can't be is refused before a process starts
    if local:
        prepare_workers(PRELOAD)
    resolved = replace(resolve(spec), variables=variables)
    kind, count = device_kind(resolved.run)
    data = {**plain(resolved), "device": kind, "until": steps, "quiet": quiet}
    try:
        if local:
            check_workers(resolved.run, kind, count, simulate)
            threads = None if kind == "cpu" else max(1, cores() // world)
            answer = run_local(enter, (data,), world, preload=PRELOAD, threads=threads, on_start=on_start)
        else:
            _check_world(context, world)
            answer = enter(context, data)
    except (UserError, Stopped):
        raise
    except Exception as error:
        if context.rank == 0:
            _note_fault(resolved.run, error)
        raise
    return Result(**answer)


def _check_world(context: RankContext, world: int) -> None:
    if context.world != world:
        raise UserError(
            f"{context.starter} started {context.world} ranks but layout.devices is {world}",
            "layout",
            f"use layout.devices={context.world}, or start {world} ranks",
        )


def _note_fault(run: RunSpec, error: Exception) -> None:
    """Leaves the reason in events.jsonl, if the run got as far as having a folder."""
    if run.folder.is_dir():
        with suppress(OSError, RunError):
            events = EventsFile(run.folder / "events.jsonl")
            events.write("fault", message=f"{error}" or type(error).__name__)
            events.close()


# What the fork server imports once for all ranks. torch imports its compiler when the first module is built,
# which would cost every rank more than a second of its own.
PRELOAD = ("scalewright.train.worker", "torch._dynamo")


def enter(context: RankContext, data: dict[str, Any]) -> dict[str, Any]:
    """One rank's entry, in whatever process it lives."""
    from scalewright.train.worker import work

    resolved = unplain(data)
    if resolved.run.deterministic:
        make_deterministic()  # here, since the fork server's environment is older than the run
    keep_flight_records(resolved.run.folder / "hangs")
    raise_file_limit()
    return work(context, resolved, device=data["device"], until=data["until"], quiet=data["quiet"])


def read_run(run: str | Path | dict[str, Any] | RunSpec, overrides: Sequence[str]) -> RunSpec:
    """The run of a file, of plain data or of a RunSpec, with `key=value` overrides; raises UserError."""
    if isinstance(run, (str, Path)):
        return load_run(run, list(overrides))
    from scalewright.spec.run import apply_override

    data = run.dump() if isinstance(run, RunSpec) else deepcopy(run)  # the caller's own stays as it is
    for override in overrides:
        apply_override(data, override)
    return RunSpec.parse(data)
