"""From paths to an answer: what they are decides who reads them (READERS). They are known by their content:

    PATH... ──► files ──► kind     { or [   JSON: a trace, or a dump with entries
                                   SQLite   an export of Nsight Systems: traces
                                   0x80     a pickle: its keys decide
                                   [[1,     memory as PyTorch's profiler categorised it
                                   PAR1     parquet: a table of a pipeline's operations
                                   Kernel   a CSV of Nsight Compute
                                   steps    a log of training, also in JSON
                                   NCCL     a log with lines of NCCL's
                                   others   refused by name; in a folder left out

A folder that `train` wrote is a run; a text that is named itself and nothing above is a log, too. All files must be of
one kind: they are the ranks of one run. `example` and `example-log` come with the package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewright.diagnose.logs.given import Given, is_run_folder
from scalewright.diagnose.traces.json_array import NotATrace
from scalewright.diagnose.traces.unpack import beginning
from scalewright.spec.common.pickles import NotPlainData
from scalewright.spec.errors import UserError

if TYPE_CHECKING:
    from scalewright.diagnose.timeline import Timeline

TRACE, FLIGHT, MEMORY, NCCL, LOG, RUN = "trace", "flight_recorder", "memory", "nccl", "log", "run"
OPERATIONS, KERNELS, TIMELINE = "operations", "kernels", "memory timeline"
READ = (
    "a trace of PyTorch's profiler or Nsight Systems, a flight recorder's dumps, a memory snapshot, "
    "ncu --csv, a pipeline's operations (parquet), a log of training or of NCCL, or a run's folder"
)
EXAMPLE = Path(__file__).parent / "data" / "example"  # four ranks' traces, generated: one computes slowly
EXAMPLE_LOG = EXAMPLE.with_name("example.log.gz")  # of 128 H100, generated: slow, and it saves often
EXAMPLES = {"example": EXAMPLE, "example-log": EXAMPLE_LOG}
# Of JSON; a log may begin with `[rank0]: ` or with Python's `{'loss': `.
DOCUMENT = re.compile(rb"\{\s*(?:[\"}]|$)|\[\s*(?:[{\]]|$)")
EVENTS = re.compile(rb'"traceEvents"|"ph"\s*:\s*"')
MAGIC, PARQUET = b"SQLite format 3\x00", b"PAR1"
START = 1 << 16  # bytes in which a file shows what it is


def inputs(paths: Sequence[Path]) -> tuple[str, list[Path]]:
    """The kind and the files; raises UserError for one that is missing, unknown, or of another kind."""
    kinds: dict[Path, str] = {}
    for given in paths:
        path = given if given.exists() else EXAMPLES.get(str(given), given)
        if not path.exists():
            raise UserError("no such file", str(path), f"give {READ}")
        if is_run_folder(path):
            kinds[path] = RUN
            continue
        inside = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        known = {file: kind for file in inside if (kind := kind_of_file(file))}
        if not known and not path.is_dir() and _is_text(path):
            known = {path: LOG}
        if not known:
            where = "nothing in it can be read" if path.is_dir() else "it can't be read"
            raise UserError(where, str(path), f"give {READ}")
        kinds |= known
    if {LOG, NCCL} == set(kinds.values()):  # one job's: its trainer's lines and NCCL's
        kinds = dict.fromkeys(kinds, LOG)
    names = sorted(set(kinds.values()))
    if len(names) > 1:
        raise UserError(f"{' and '.join(names)} files together", ", ".join(map(str, paths)), "give one kind")
    return names[0], [*kinds]


def _is_text(path: Path) -> bool:
    from scalewright.diagnose.logs.lines import is_text

    return is_text(path)


def kind_of_file(path: Path) -> str:
    """The kind of a file by its first bytes; empty for one that nothing here reads."""
    start = beginning(path, START)
    if start.startswith(MAGIC):
        return TRACE
    if start.startswith(PARQUET):
        return OPERATIONS
    if start.startswith(b"\x80"):
        return FLIGHT if b"pg_config" in start or b"collective_seq_id" in start else MEMORY
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    document = DOCUMENT.match(text) is not None  # or lines of JSON: a trace of gigabytes isn't searched for them
    return TRACE if document and EVENTS.search(text) else _kind_of_text(path, start, text, document)


def _kind_of_text(path: Path, start: bytes, text: bytes, document: bool) -> str:
    """The kind of what isn't known by its first bytes; imported here is what a trace is read without."""
    from scalewright.diagnose.logs.log import is_trainer_state, is_training_log
    from scalewright.diagnose.memory.timeline import is_timeline
    from scalewright.diagnose.nccl.lines import is_nccl_log
    from scalewright.diagnose.ncu.table import is_ncu

    if is_ncu(start):
        return KERNELS
    if text[:1] in (b"{", b"[") and b'"collective_seq_id"' in text:
        return FLIGHT
    if text[:1] == b"{" and b'"segments"' in text and b'"traceEvents"' not in text:
        return MEMORY
    if is_timeline(text):
        return TIMELINE
    if is_trainer_state(text) or (is_training_log(path, START) if document else is_training_log(path)):
        return LOG
    if document:
        return TRACE
    return NCCL if is_nccl_log(path) else ""


def diagnose(
    paths: Sequence[Path], given: Given | None = None, changes: Sequence[str] = (), against: Path | None = None
) -> dict[str, Any]:
    """The answer, with the keys of its kind; raises UserError for paths that can't be read.

    `given` adds to a log of training what it doesn't state, to traces the cluster's links; `changes` are the what-ifs
    of a trace; `against` is what to compare with.
    """
    return drawn(paths, given, changes, against)[0]


def drawn(
    paths: Sequence[Path], given: Given | None = None, changes: Sequence[str] = (), against: Path | None = None
) -> tuple[dict[str, Any], Drawing]:
    """The answer as above, and what pictures of it need beside."""
    answer, lanes = _diagnose(paths, given, changes)
    if against is None:
        return answer, Drawing(lanes)
    from scalewright.diagnose.compare.compare import compare, prediction, read_other

    other = read_other(against, lambda path: _diagnose([path], None, ())[0])
    return answer | {"against": compare(answer, other, str(against))}, Drawing(lanes, prediction(other))


@dataclass(frozen=True)
class Drawing:
    """What each rank of a trace did when; the plan that it was compared with."""

    lanes: Callable[[], Timeline] | None
    plan: Mapping[str, Any] | None = None


def _diagnose(
    paths: Sequence[Path], given: Given | None, changes: Sequence[str]
) -> tuple[dict[str, object], Callable[[], Timeline] | None]:
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
            return _traces(files, given, changes)
        if kind == RUN:
            from scalewright.diagnose.run_folder import folder_answer

            return folder_answer(files, lambda traces: _traces(traces, given, ())[0], kind_of_file), None
        module, name = READERS[kind]
        read = getattr(import_module(f"scalewright.diagnose.{module}"), name)
        return read(*((files, given) if kind == LOG else (files,))), None
    except (NotATrace, NotPlainData) as error:
        raise UserError(str(error), ", ".join(map(str, paths[:3])), f"give {READ}") from None
    except OSError as error:
        raise UserError(f"it can't be read: {error.strerror}", str(error.filename or paths[0])) from None


def _traces(
    files: list[Path], given: Given, changes: Sequence[str]
) -> tuple[dict[str, object], Callable[[], Timeline]]:
    from scalewright.diagnose.answer import answer
    from scalewright.diagnose.ranks import read_ranks

    cluster = None
    if given.cluster:
        from scalewright.spec.hardware.cluster import load_cluster

        cluster = load_cluster(given.cluster)
    ranks = read_ranks(files, cluster)
    changed: dict[str, object] = {}
    if changes:
        from scalewright.diagnose.what_if import what_if

        changed = {"what_if": what_if(ranks, changes)}

    def lanes() -> Timeline:
        from scalewright.diagnose.timeline import timeline

        return timeline(ranks)

    return answer(ranks) | changed, lanes


READERS = {  # kind -> a module here, and its function; imported when it is needed
    KERNELS: ("ncu.answer", "ncu_answer"), TIMELINE: ("memory.timeline", "timeline_answer"),
    OPERATIONS: ("operations.answer", "operations_answer"), LOG: ("logs.answer", "log_answer"),
    NCCL: ("nccl.answer", "nccl_answer"), FLIGHT: ("flight.hang", "flight_answer"),
    MEMORY: ("memory.answer", "memory_answer"),
}  # fmt: skip
