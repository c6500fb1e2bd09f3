"""A place in a store, fetched into a folder on this node: once, whatever was fetched before is left out.

    list ──► names checked, sizes against the free disk ──► what is new or changed (size, tag)
         ──► ranges of 16 MiB, eight at once, into .fetch-NAME ──► renamed ──► .mirror.json: name, size, tag

Ranks of a node share the folder: one holds its lock and fetches, the others wait and find it done. A fetch that is
killed begins anew with the file it was at. A file that the store no longer has goes here, too, so that a run's removed
checkpoints don't pile up. What else was fetched stays until the user removes the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from scalewright.launch.settings import cache_folder
from scalewright.spec.common.files import lock_folder, write_whole
from scalewright.spec.common.heartbeat import Heartbeat
from scalewright.spec.common.untrusted import inside, read_json
from scalewright.spec.common.urls import Url
from scalewright.spec.errors import UserError
from scalewright.storage.objects import AT_ONCE, PART_BYTES, Entry, Store

INDEX, PARTIAL = ".mirror.json", ".fetch"
Tell = Callable[[int, int], None]  # bytes fetched, of how many


def shown(heart: Heartbeat, url: str, verb: str = "fetching") -> Tell:
    """Shows how far it is."""

    def tell(done: int, total: int) -> None:
        heart.what = f"{verb} {url}, {done / 1e9:,.2f} of {total / 1e9:,.2f} GB"

    return tell


def mirror_folder(url: Url) -> Path:
    """Where the copy of a place lies in this node's cache."""
    digest = hashlib.sha256(str(url).encode()).hexdigest()[:12]
    return cache_folder() / "stores" / f"{url.name or url.bucket}-{digest}"


def fetch(store: Store, entries: Sequence[Entry], folder: Path, tell: Tell | None = None) -> list[str]:
    """Brings these objects of a store into a folder, under their names; those that were missing or had changed.

    `tell` hears of progress. Raises UserError for names that lead out of the folder, or a disk that is too small,
    StoreError when the store fails.
    """
    with _held(folder):
        index = _read_index(folder)
        wanted = [entry for entry in entries if not _is_there(folder, entry, index)]
        total = sum(entry.bytes for entry in wanted)
        if wanted:
            check_room(total, store, folder)
            done, lock = 0, threading.Lock()

            def advance(count: int) -> None:
                nonlocal done
                with lock:
                    done += count
                    if tell is not None:
                        tell(done, total)

            def one(entry: Entry) -> None:
                fetch_file(store, entry, _place(folder, entry.name), advance)
                with lock:
                    index[entry.name] = [entry.bytes, entry.tag]

            try:  # small ones at once, large ones one after the other, their ranges at once
                with ThreadPoolExecutor(AT_ONCE) as pool:
                    for _ in pool.map(one, (entry for entry in wanted if entry.bytes <= PART_BYTES)):
                        pass
                for entry in wanted:
                    if entry.bytes > PART_BYTES:
                        one(entry)
            finally:
                write_whole(folder / INDEX, json.dumps(index))
        return [entry.name for entry in wanted]


def check_room(total: int, store: Store, folder: Path) -> None:
    """Raises UserError where so many bytes don't fit on a folder's disk."""
    free = shutil.disk_usage(folder).free
    if total > free:
        problem = f"{total / 1e9:.1f} GB are to be fetched from {store.url}, and {free / 1e9:.1f} GB are free"
        raise UserError(problem, str(folder), "free some space, or set SCALEWRIGHT_CACHE to a larger disk")


def fetch_file(store: Store, entry: Entry, path: Path, advance: Callable[[int], None] = lambda count: None) -> None:
    """One object as a file: whole under its name, or not there."""
    partial = path.with_name(f"{PARTIAL}-{path.name}")
    try:
        with open(partial, "wb") as empty:
            empty.truncate(entry.bytes)

        def part(start: int) -> None:
            content = store.get_range(entry.name, start, min(PART_BYTES, entry.bytes - start))
            with open(partial, "r+b") as file:
                file.seek(start)
                file.write(content)
            advance(len(content))

        if entry.bytes <= PART_BYTES:
            part(0)
        else:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                for _ in pool.map(part, range(0, entry.bytes, PART_BYTES)):
                    pass
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror or error}", str(path), "free some space") from None
    finally:
        with suppress(OSError):
            partial.unlink()


def drop(folder: Path, keep: Callable[[str], bool]) -> None:
    """Removes what was fetched into a mirror and isn't to be kept, by name."""
    with _held(folder):
        index = _read_index(folder)
        for name in [name for name in index if not keep(name)]:
            with suppress(UserError, FileNotFoundError):
                inside(folder, name).unlink()
            del index[name]
        write_whole(folder / INDEX, json.dumps(index))


def _place(folder: Path, name: str) -> Path:
    """The path for an object's name; its folders are made, and no link among them leads out."""
    if name.startswith(".") or "/." in name:
        raise UserError(f"an object is called {name!r}", str(folder), "don't use this place: its names are hidden ones")
    path = inside(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    return inside(folder, name)


def is_there(folder: Path, entry: Entry) -> bool:
    """Whether an object was fetched into a mirror, as it is now."""
    return _is_there(folder, entry, _read_index(folder))


def _is_there(folder: Path, entry: Entry, index: dict[str, Any]) -> bool:
    path = _place(folder, entry.name)
    same = index.get(entry.name) == [entry.bytes, entry.tag]
    return same and path.is_file() and path.stat().st_size == entry.bytes


def _read_index(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):  # missing or damaged: all is fetched again
        index = read_json(folder / INDEX)
        return index if isinstance(index, dict) else {}
    return {}


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Waits for the folder's lock, which the kernel takes back when its holder dies."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", str(folder), "set SCALEWRIGHT_CACHE") from None
    while True:
        try:
            handle = lock_folder(folder)
            break
        except BlockingIOError:
            time.sleep(0.05)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)
