"""What lies in a run's place in a store, and whether every byte of it is sound: `checkpoint ls` and `verify` of a URL.

The small files of each checkpoint are fetched; of the others names and sizes are compared, and with `every_byte` their
checksums, over ranges that are not kept.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scalewright.checkpoint.format import COMMIT, StoredFile, read_manifest
from scalewright.checkpoint.pieces import pieces_of
from scalewright.checkpoint.store.bring import TENSORS, Place, find_place, forget, is_committed
from scalewright.spec.common.urls import parse_url
from scalewright.spec.errors import UserError
from scalewright.storage.mirror import fetch
from scalewright.storage.objects import AT_ONCE, PART_BYTES, Entry, Store


@dataclass(frozen=True)
class There:
    """A checkpoint in a store."""

    url: str
    folder: Path  # a copy of its small files
    bytes: int
    saved: str  # when its COMMIT, or its newest object, was put
    problems: list[str] | None  # of its large files; None: not looked at


def look_into(
    source: str | Path, at: Callable[[str], None] = lambda text: None, *, every_byte: bool = False
) -> list[There]:
    """The checkpoints at a URL, newest first; raises UserError where there is none."""
    place = find_place(url := parse_url(source))
    if not (steps := place.steps()):
        place = Place(place.store, "", place.step)
        steps = place.steps()
    if not steps:
        raise UserError("no checkpoint there", str(url), "give the place of a run, or set checkpoint.store")
    there = []
    if place.step is None:
        forget(place, steps)
    for step, entries in steps.items():
        at(f"reading {place.store.url}, {step}")
        fetch(place.store, [entry for entry in entries if not entry.name.endswith(TENSORS)], place.mirror)
        folder, problems = place.folder(step), None
        if every_byte:
            problems = _problems(place.store, folder, entries) if is_committed(step, entries) else []
        whole = [entry for entry in entries if entry.name.endswith(f"/{COMMIT}")] or entries
        size, saved = sum(entry.bytes for entry in entries), max(entry.saved for entry in whole)
        there.append(There(str(place.store.url / place.under.strip("/") / step), folder, size, saved, problems))
    return there


def _problems(store: Store, folder: Path, entries: list[Entry]) -> list[str]:
    """The problems of a checkpoint's large files."""
    by_name = {entry.name.split("/")[-1]: entry for entry in entries}
    try:
        files = read_manifest(folder).files
    except UserError:  # which a look at the small files names
        return []
    large = {name: expected for name, expected in files.items() if name.endswith(TENSORS)}
    return [text for name, expected in large.items() if (text := _problem(store, by_name, name, expected))]


def _problem(store: Store, by_name: Mapping[str, Entry], name: str, expected: StoredFile) -> str | None:
    if (entry := by_name.get(name)) is None:
        return f"{name} is missing"
    if entry.bytes != expected.bytes:
        return f"{name} has {entry.bytes} bytes instead of {expected.bytes}"
    with ThreadPoolExecutor(AT_ONCE) as pool:

        def part(start: int, end: int) -> bytes:
            return store.get_range(entry.name, start, min(PART_BYTES, end - start))

        for first, last, checksum in pieces_of(expected):
            value, starts = 0, range(first, last, PART_BYTES)
            for at in range(0, len(starts), AT_ONCE):  # so many in memory, in order
                for piece in pool.map(partial(part, end=last), starts[at : at + AT_ONCE]):
                    value = zlib.crc32(piece, value)
            if f"{value:08x}" != checksum:
                return f"{name} is damaged in bytes {first:,} to {last:,} (its checksum differs)"
    return None if pieces_of(expected) else f"{name} has no checksum that is known"
