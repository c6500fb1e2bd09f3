"""Token files compared with their checksums and vocabulary: some blocks at the start, all of them behind it.

    opening      a split up to 32 MiB: every byte          a larger one: 64 blocks of a MiB at most
    meanwhile    a thread of each rank reads its share of the node's files once, a tenth of the time;
                 what it finds is raised where the next batch would have come

Files without checksums (.npy, Megatron's, bare numbers) have their ids checked alone.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from scalewright.data.metadata import AGAIN, BLOCK
from scalewright.data.tokens import TokenFile, TokenStore, Vocabulary
from scalewright.spec.errors import UserError

AT_OPENING = 32 << 20  # bytes; a smaller split is read whole whenever it is opened
_SAMPLED = 64  # blocks of a larger one
_SHARE = 0.1  # of one core, for the rest


def check_file(
    file: TokenFile, vocabulary: Vocabulary | None = None, blocks: Iterable[int] | None = None
) -> Iterator[int]:
    """Reads blocks of a file (default: all), yields their sizes; raises UserError with the damaged bytes."""
    size = file.count * file.dtype.itemsize
    digest = hashlib.sha256() if file.sha256 and blocks is None else None
    try:
        with open(file.path, "rb") as stream:
            for number in range(-(-size // BLOCK)) if blocks is None else blocks:
                first, length = number * BLOCK, min(BLOCK, size - number * BLOCK)
                stream.seek(file.start + first)
                data = stream.read(length)
                crc = file.blocks[8 * number : 8 * number + 8]
                if len(data) < length or (crc and f"{zlib.crc32(data):08x}" != crc):
                    raise _damaged(file, first, length)
                if vocabulary is not None:
                    vocabulary.check(np.frombuffer(data, file.dtype), partial(_place, file, first))
                if digest is not None:
                    digest.update(data)
                yield length
    except OSError as error:
        raise UserError(f"cannot read: {error.strerror}", str(file.path), "copy the file again") from None
    if digest is not None and digest.hexdigest() != file.sha256:
        raise _damaged(file, 0, size)


def check_files(files: Iterable[TokenFile], index: TokenFile, vocabulary: Vocabulary) -> Iterator[int]:
    """Reads the files of a split whole; yields sizes of blocks, and raises UserError."""
    for file in files:
        yield from check_file(file, vocabulary)
    yield from check_file(index)


def check_sample(files: Sequence[TokenFile], vocabulary: Vocabulary) -> Iterator[int]:
    """Reads some blocks of files, the last of them their index: of each the first, the last and a random one,
    where blocks have checksums, and 64 in all at most. Raises UserError."""
    chosen, dice = set[tuple[int, int]](), random.Random()
    for number, file in enumerate(files):
        if count := len(file.blocks) // 8:
            chosen |= {(number, 0), (number, count - 1), (number, dice.randrange(count))}
    for number, block in dice.sample(sorted(chosen), min(_SAMPLED, len(chosen))):
        yield from check_file(files[number], vocabulary if number < len(files) - 1 else None, [block])


def _place(file: TokenFile, first: int, token: int) -> tuple[TokenFile, int]:
    return file, first // file.dtype.itemsize + token


def _damaged(file: TokenFile, first: int, length: int) -> UserError:
    what = "the file is damaged: its checksum differs from the one in metadata.json"
    return UserError(what, f"{file.path}, bytes {file.start + first} to {file.start + first + length - 1}", AGAIN)


class Stores(Protocol):
    """Data that lie in token files."""

    stores: Sequence[TokenStore]
    damage: UserError | None  # raised in the place of the next batch


class BackgroundCheck:
    """A thread that reads what opening left out; ends with its block, and keeps no process alive."""

    def __init__(self, data: Sequence[Stores], rank: int, ranks: int) -> None:
        """`ranks` of one node share its files."""
        self._data = data
        files: list[tuple[TokenFile, Vocabulary | None]] = []
        for store in (store for stores in data for store in stores.stores if not store.checked):
            files += [(file, store.vocabulary) for file in store.files]
            files += [(store.index, None)] if store.index else []
        self._files = files[rank::ranks]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="scalewright-check", daemon=True)

    def __enter__(self) -> BackgroundCheck:
        if self._files:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._files:
            self._thread.join(timeout=1.0)  # a read may hang with its network disk

    def _work(self) -> None:
        try:
            for file, vocabulary in self._files:
                wall, busy = time.perf_counter(), time.thread_time()
                for _ in check_file(file, vocabulary):
                    wall, busy = time.perf_counter() - wall, time.thread_time() - busy
                    if self._stop.wait(max(busy * (1 / _SHARE - 1), wall)):  # a disk is left to others, too
                        return
                    wall, busy = time.perf_counter(), time.thread_time()
        except UserError as error:
            for stores in self._data:
                stores.damage = error


def unchecked(stores: Iterable[TokenStore]) -> str | None:
    """What can't be checked, in a line; None when nothing is left out."""
    bare = [store.files[0].path for store in stores if store.index is None]
    old = [file.path for store in stores if not store.checked for file in store.files[:1] if not file.blocks]
    if bare:
        more = f" and {len(bare) - 1} more" if len(bare) > 1 else ""
        return f"data: no checksums of {bare[0]}{more}: only ids are checked"
    if old:
        return f"data: {old[0].parent} has no checksums of blocks: damage is found when its files have been read"
    return None
