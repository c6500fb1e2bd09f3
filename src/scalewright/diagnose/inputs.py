"""What the given paths are: a folder becomes the traces in it, and each file is judged by its content.

PATH...  ──► files ──► traces of ranks        a file that isn't one is refused by name, in a folder skipped
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scalewright.diagnose.traces.unpack import Unpacked
from scalewright.spec.errors import UserError

ENDINGS = (".json", ".json.gz", ".pt.trace.json", ".pt.trace.json.gz")
OPENINGS = (b"{", b"[")


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """The files of traces; raises UserError for a path that doesn't exist, isn't one, or a folder without any."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(some for some in path.rglob("*") if some.name.endswith(ENDINGS) and is_json(some))
            if not inside:
                raise UserError(
                    "no trace in it", str(path), f"a trace's name ends in {ENDINGS[0]} or {ENDINGS[1]}"
                )
            files += inside
        elif not path.exists():
            raise UserError(
                "no such file", str(path), "give a trace of PyTorch's profiler, or a folder of them"
            )
        elif not is_json(path):
            raise UserError("it isn't JSON", str(path), "give a trace of PyTorch's profiler")
        else:
            files.append(path)
    return list(dict.fromkeys(files))


def is_json(path: Path) -> bool:
    """Whether the file's content, unzipped, begins like a JSON object or list."""
    first = next(iter(Unpacked(path, chunk=4096)), b"")
    return first.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in OPENINGS
