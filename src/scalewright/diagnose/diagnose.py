"""From paths to an answer: what they are decides who reads them.

trace            ranks.py, answer.py        flight_recorder   flight/        memory   memory/
nccl             nccl/                      log, run          logs/       operations   operations/
kernels          ncu/
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.diagnose.answer import answer as trace_answer
from scalewright.diagnose.compare.compare import compare, prediction, read_other
from scalewright.diagnose.flight.hang import flight_answer
from scalewright.diagnose.inputs import (
    FLIGHT,
    KERNELS,
    LOG,
    MEMORY,
    NCCL,
    OPERATIONS,
    READ,
    RUN,
    TIMELINE,
    TRACE,
    inputs,
)
from scalewright.diagnose.logs.answer import log_answer, run_answer
from scalewright.diagnose.logs.expected import Given
from scalewright.diagnose.memory.answer import memory_answer
from scalewright.diagnose.memory.timeline import timeline_answer
from scalewright.diagnose.nccl.answer import nccl_answer
from scalewright.diagnose.ncu.answer import ncu_answer
from scalewright.diagnose.operations.answer import operations_answer
from scalewright.diagnose.ranks import read_ranks
from scalewright.diagnose.timeline import Timeline, timeline
from scalewright.diagnose.traces.json_array import NotATrace
from scalewright.diagnose.what_if import what_if
from scalewright.spec.common.pickles import NotPlainData
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster


def diagnose(
    paths: Sequence[Path],
    given: Given | None = None,
    changes: Sequence[str] = (),
    against: Path | None = None,
) -> dict[str, Any]:
    """The answer, with the keys of its kind; raises UserError for paths that can't be read.

    `given` adds to a log of training what it doesn't state, to traces the cluster's links; `changes` are the
    what-ifs of a trace; `against` is what to compare with.
    """
    return drawn(paths, given, changes, against)[0]


def drawn(
    paths: Sequence[Path],
    given: Given | None = None,
    changes: Sequence[str] = (),
    against: Path | None = None,
) -> tuple[dict[str, Any], Drawing]:
    """The answer as above, and what pictures of it need beside."""
    answer, lanes = _diagnose(paths, given, changes)
    if against is None:
        return answer, Drawing(lanes)
    other = read_other(against, lambda path: _diagnose([path], None, ())[0])
    return answer | {"against": compare(answer, other, str(against))}, Drawing(lanes, prediction(other))


@dataclass(frozen=True)
class Drawing:
    """What each rank of a trace did when; the plan that it was compared with."""

    lanes: Callable[[], Timeline] | None
    plan: Mapping[str, Any] | None = None


def _diagnose(
    paths: Sequence[Path], given: Given | None, changes: Sequence[str]
) -> tuple[dict[str, Any], Callable[[], Timeline] | None]:
    """The answer; of traces also what draws them."""
    kind, files = inputs(paths)
    given = given or Given()
    if kind != LOG and given != Given(cluster=given.cluster if kind == TRACE else None):
        what = "model, layout, seq_len and from are for a log of training, cluster for that or for traces"
        raise UserError(what, f"{paths[0]} is none", "leave them out")
    if kind != TRACE and changes:
        raise UserError("--what-if replays a trace", f"{paths[0]} is none", "leave it out")
    try:
        if kind == TRACE:
            ranks = read_ranks(files, load_cluster(given.cluster) if given.cluster else None)
            changed = {"what_if": what_if(ranks, changes)} if changes else {}
            return trace_answer(ranks) | changed, lambda: timeline(ranks)
        return READERS[kind](files, given), None
    except (NotATrace, NotPlainData) as error:
        raise UserError(str(error), ", ".join(map(str, paths[:3])), f"give {READ}") from None
    except OSError as error:
        raise UserError(f"it can't be read: {error.strerror}", str(error.filename or paths[0])) from None


READERS: dict[str, Callable[[list[Path], Given], dict[str, Any]]] = {
    KERNELS: lambda files, _: ncu_answer(files),
    TIMELINE: lambda files, _: timeline_answer(files),
    OPERATIONS: lambda files, _: operations_answer(files),
    LOG: log_answer,
    RUN: lambda files, _: run_answer(files[0]),
    NCCL: lambda files, _: nccl_answer(files),
    FLIGHT: lambda files, _: flight_answer(files),
    MEMORY: lambda files, _: memory_answer(files),
}
