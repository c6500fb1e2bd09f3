"""A file of tensors, written and read with a checksum of every 64 MiB of it.

    file      |----- 64 MiB -----|----- 64 MiB -----|-- the rest --|
    checksum  crc32/67108864:      1f0c2a7e          99e0b1d4       00c3a51b

Pieces are independent: other threads count one while the next is written (zlib lets go of the interpreter), several
are compared at once, damage has a place, and whoever fetches a range of a file can be sure of it. Nothing is read a
second time to be counted. A file of one piece, and all of version 1, have `crc32:` and the checksum of the whole.
CRC-32 finds every change within 32 neighbouring bits, and any other with a probability of 1 - 2^-32.

The format is that of safetensors: the header's length in 8 bytes, a header in JSON, the tensors' bytes. Written here,
since its library wants all tensors of a file at once, and counts nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from scalewright.checkpoint.boxes import DTYPES
from scalewright.checkpoint.format import StoredFile
from scalewright.checkpoint.sums import PIECE, THREADS, sum_of, text_of, write_views

if TYPE_CHECKING:  # files are verified without torch
    import torch
    from torch import Tensor

READ = 4 << 20  # bytes at a time, of a file that is compared
LINE = 64  # bytes of a cache line, with which tensors begin: a sixth faster to copy than a multiple of 8

# A tensor of a file: its name, dtype and shape, and what makes it when its turn comes
Item = tuple[str, "torch.dtype", tuple[int, ...], Callable[[], "Tensor"]]


def lay_out(items: Iterable[Item]) -> tuple[bytes, list[tuple[Item, int]]]:
    """(a file's beginning, its items in order, each with its first byte). Raises ValueError for a dtype that the format
    lacks."""
    ordered = sorted(items, key=lambda item: -item[1].itemsize)  # each lies at a multiple of its numbers' width
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    starts, end = [], 0
    for name, dtype, shape, _ in ordered:
        if (kind := DTYPES.get(str(dtype).removeprefix("torch."))) is None:
            raise ValueError(f"tensor '{name}' is {dtype}, which a safetensors file can't hold")
        starts.append(end)
        end += prod(shape) * dtype.itemsize
        header[name] = {"dtype": kind[0], "shape": shape, "data_offsets": [starts[-1], end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % LINE)
    head = len(text).to_bytes(8, "little") + text
    return head, [(item, len(head) + start) for item, start in zip(ordered, starts, strict=True)]


def write_tensors(path: Path, items: Iterable[Item]) -> StoredFile:
    """Writes a safetensors file and flushes it to the disk. In memory are one tensor, and those of pieces that are
    being counted. Raises OSError, ValueError for a tensor that isn't what its item says."""
    head, ordered = lay_out(items)
    return StoredFile(*write_views(path, chain([memoryview(head)], (_bytes(*item) for item, _ in ordered))))


def _bytes(name: str, dtype: torch.dtype, shape: tuple[int, ...], get: Callable[[], Tensor]) -> memoryview:
    """The bytes of a tensor on the CPU: without a copy where it lies there in one run."""
    import torch

    tensor = get()
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise ValueError(f"tensor '{name}' is {tensor.dtype} {list(tensor.shape)} instead of {dtype} {list(shape)}")
    flat = tensor.detach().to("cpu").contiguous().flatten()
    return memoryview(flat.view(torch.uint8).numpy().data)


def describe_file(path: Path) -> StoredFile:
    """Size and checksum of a file as it lies there."""
    size = path.stat().st_size
    ranges = [(start, min(start + PIECE, size)) for start in range(0, size, PIECE)] or [(0, 0)]
    with ThreadPoolExecutor(THREADS) as pool:
        return StoredFile(size, text_of(list(pool.map(lambda piece: _read_sum(path, *piece), ranges))))


def first_damage(path: Path, expected: StoredFile) -> tuple[int, int] | None:
    """The first piece (start, end) of a file, of the expected size, that has another checksum. Raises OSError."""
    if not (pieces := pieces_of(expected)):
        return 0, expected.bytes
    with ThreadPoolExecutor(THREADS) as pool:
        sums = pool.map(lambda piece: f"{_read_sum(path, *piece[:2]):08x}" == piece[2], pieces)
        return next((piece[:2] for piece, same in zip(pieces, sums, strict=True) if not same), None)


def pieces_of(expected: StoredFile) -> list[tuple[int, int, str]]:
    """(start, end, CRC-32) of each piece that a manifest describes; empty where its text isn't one of checksums."""
    kind, _, sums = expected.checksum.partition(":")
    if kind == "crc32":
        return [(0, expected.bytes, sums)]
    size = int(kind[6:]) if kind.startswith("crc32/") and kind[6:].isdecimal() and len(kind) < 24 else 0
    if not size or len(sums) != 8 * -(-expected.bytes // size):
        return []
    return [
        (start, min(start + size, expected.bytes), sums[8 * number : 8 * number + 8])
        for number, start in enumerate(range(0, expected.bytes, size))
    ]


def _read_sum(path: Path, start: int, end: int) -> int:
    """CRC-32 of a part of a file."""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        return sum_of(_parts(file.read, end - start))


def _parts(read: Callable[[int], bytes], left: int) -> Iterator[bytes]:
    while left > 0 and (part := read(min(READ, left))):
        left -= len(part)
        yield part
