"""A folder of this node, written to a place in a store: its named file last, so that what is there is all there.

Names that begin with a dot, and folders that are to be left out, don't go there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scalewright.spec.errors import UserError
from scalewright.storage.objects import Store


def publish(
    folder: Path, store: Store, last: str, tell: Callable[[int, int], None] | None = None,
    leave_out: tuple[str, ...] = (),
) -> int:  # fmt: skip
    """Writes all files below a folder under their names; the bytes written. Raises UserError or StoreError."""
    goes = (path for path in folder.rglob("*") if path.is_file() and _goes(path.relative_to(folder), leave_out))
    files = sorted(goes)
    files.sort(key=lambda path: path == folder / last)
    total, done = sum(path.stat().st_size for path in files), 0
    for path in files:
        with open(path, "rb") as file:
            store.put(path.relative_to(folder).as_posix(), file)
        done += path.stat().st_size
        if tell is not None:
            tell(done, total)
    return done


def check_empty(store: Store) -> None:
    """Raises UserError where a place in a store holds something: what is written there would be mixed with it."""
    if there := store.list():
        raise UserError(f"there are {len(there):,} objects already", str(store.url), "give a new place")


def _goes(path: Path, leave_out: tuple[str, ...]) -> bool:
    return path.parts[0] not in leave_out and not any(part.startswith(".") for part in path.parts)
