"""What the given paths are, by their content: traces of ranks, recorders' dumps, memory snapshots, logs.

    PATH... ──► files ──► kind     { or [   JSON: a trace, or a dump with entries
                                   SQLite   an export of Nsight Systems: traces
                                   0x80     a pickle: its keys decide
                                   [[1,     memory as PyTorch's profiler categorised it
                                   PAR1     parquet: a table of a pipeline's operations
                                   Kernel   a CSV of Nsight Compute
                                   steps    a log of training, also in JSON
                                   NCCL     a log with lines of NCCL's
                                   others   refused by name; in a folder left out

A folder that `train` wrote is a run; a text that is named itself and nothing above is a log, too.
All files must be of one kind: they are the ranks of one run. `example` and `example-log` come with the
package.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from scalewright.diagnose.logs.answer import is_run_folder
from scalewright.diagnose.logs.documents import is_trainer_state
from scalewright.diagnose.logs.lines import is_text
from scalewright.diagnose.logs.log import is_training_log
from scalewright.diagnose.memory.timeline import is_timeline
from scalewright.diagnose.nccl.lines import is_nccl_log
from scalewright.diagnose.ncu.table import is_ncu
from scalewright.diagnose.operations.table import MAGIC as PARQUET
from scalewright.diagnose.traces.nsys import MAGIC
from scalewright.diagnose.traces.unpack import Unpacked
from scalewright.spec.errors import UserError

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
        if not known and not path.is_dir() and is_text(path):
            known = {path: LOG}
        if not known:
            where = "nothing in it can be read" if path.is_dir() else "it can't be read"
            raise UserError(where, str(path), f"give {READ}")
        kinds |= known
    names = sorted(set(kinds.values()))
    if len(names) > 1:
        raise UserError(f"{' and '.join(names)} files together", ", ".join(map(str, paths)), "give one kind")
    return names[0], [*kinds]


def kind_of_file(path: Path) -> str:
    """The kind of a file by its first bytes; empty for one that nothing here reads."""
    start = b""
    for piece in Unpacked(path, chunk=START):
        start += piece
        if len(start) >= START:
            break
    if start.startswith(MAGIC):
        return TRACE
    if start.startswith(PARQUET):
        return OPERATIONS
    if start.startswith(b"\x80"):
        return FLIGHT if b"pg_config" in start or b"collective_seq_id" in start else MEMORY
    if is_ncu(start):
        return KERNELS
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"{" and b'"collective_seq_id"' in text:
        return FLIGHT
    if text[:1] == b"{" and b'"segments"' in text and b'"traceEvents"' not in text:
        return MEMORY
    if is_timeline(text):
        return TIMELINE
    if is_trainer_state(text):
        return LOG
    if DOCUMENT.match(text):  # or lines of JSON: a trace of gigabytes isn't searched for them
        return LOG if is_training_log(path, START) else TRACE
    if is_training_log(path):
        return LOG
    return NCCL if is_nccl_log(path) else ""
