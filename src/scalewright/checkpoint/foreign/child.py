"""The confined process: `python -I -S -c ... FORMAT FOLDER MEMORY SECONDS` prints one JSON document.

    {"index": {...}, "confined": ["limits", "no_new_privs", "seccomp"]}    or    {"what": ..., "where": ...}

Everything that it needs is imported before it confines itself, and all of it is Python's own and these files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from scalewright.checkpoint.foreign import dcp, deepspeed, nanotron
from scalewright.checkpoint.foreign.confine import confine
from scalewright.checkpoint.foreign.index import Index
from scalewright.spec.errors import UserError

READERS: dict[str, Callable[[Path], Index]] = {"dcp": dcp.read, "deepspeed": deepspeed.read, "nanotron": nanotron.read}


def answer(kind: str, folder: Path) -> dict[str, object]:
    """The index of a folder, or what is wrong with it."""
    try:
        return {"index": READERS[kind](folder).dump()}
    except UserError as error:
        return {"what": error.what, "where": error.where, "how": error.how}
    except MemoryError:
        return {"what": "it takes more memory to read than any checkpoint of its size", "where": str(folder)}
    except Exception as error:  # a damaged file that no check foresaw ends here, in one line
        return {"what": f"it can't be read ({type(error).__name__})", "where": str(folder)}


def main(arguments: list[str]) -> None:
    """Confines itself, reads, answers."""
    kind, folder, memory, seconds = arguments
    holds = confine(int(memory), int(seconds))
    json.dump({**answer(kind, Path(folder)), "confined": holds}, sys.stdout)
    sys.stdout.flush()
