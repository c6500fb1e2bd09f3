"""Files that a script reads by name or by pattern: beside it or of its own making, none outside.

source env.sh        cat conf/*.yaml        cd out
"""

from __future__ import annotations

import posixpath
from contextlib import suppress
from itertools import islice
from pathlib import Path

from scalewright.emit.bash.patterns import GLOB, matches
from scalewright.emit.bash.state import State
from scalewright.emit.bash.unknown import MARK, cleaned, known
from scalewright.spec.common.untrusted import read_bytes
from scalewright.spec.errors import UserError

BYTES, NAMES = 1 << 20, 10_000  # of a script; in a folder


def text_of(path: str, state: State, folder: Path | None) -> str | None:
    """The text of a file; None where it isn't known."""
    if state.path(path) in state.files:
        return state.files[state.path(path)]
    rest = MARK.split(path)[-1].lstrip("/") if not known(path) else state.path(path)
    with suppress(OSError, ValueError, UserError, RuntimeError):
        if rest and (place := _place(rest, folder)) is not None:
            return cleaned(read_bytes(place, BYTES).decode(errors="replace"))
    return None


def matched(pattern: str, state: State, folder: Path | None) -> list[str]:
    """The files that a pattern matches, as bash sorts them; only its last part may be one."""
    before, slash, last = pattern.rpartition("/")
    path = state.path(before + slash)
    names = {posixpath.basename(name) for name in state.files if posixpath.dirname(name) == path.removeprefix(".")}
    with suppress(OSError, ValueError, RuntimeError):
        if (place := _place(path, folder)) is not None:
            names |= {each.name for each in islice(place.iterdir(), NAMES)}
    shown = [name for name in sorted(names) if name.startswith(".") == last.startswith(".") and matches(name, last)]
    return [] if GLOB.search(before) else [f"{before}{slash}{name}" for name in shown]


def has_folder(path: str, state: State, folder: Path | None) -> bool:
    """Whether a folder is there, or the script made a file in it."""
    with suppress(OSError, ValueError, RuntimeError):
        if (place := _place(path, folder)) is not None and place.is_dir():
            return True
    return any(f"{name}/".startswith(f"{path}/") for name in (*state.files, *state.folders))


def _place(path: str, folder: Path | None) -> Path | None:
    """Where that is on this disk, within the script's folder."""
    place = (folder / path).resolve() if folder is not None else None
    return place if folder is not None and place is not None and place.is_relative_to(folder.resolve()) else None
