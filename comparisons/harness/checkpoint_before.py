"""How checkpoints were written until version 2 of the manifest: every box in JSON, all of it to every rank.

describe     a rank's boxes, each with its file and key           sent to all
merge        one manifest: `before + boxes`, tensor by tensor     quadratic in the ranks
write_file   all tensors of a file by safetensors, fsync, and the file read again for its CRC-32
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from scalewright.checkpoint.write import Chunk


@dataclass(frozen=True)
class StoredBox:
    """As the manifest had it."""

    file: str
    key: str
    offset: tuple[int, ...]
    size: tuple[int, ...]


@dataclass(frozen=True)
class StoredTensor:
    """As the manifest had it."""

    shape: tuple[int, ...]
    dtype: str
    boxes: tuple[StoredBox, ...]


def describe(batches: Iterable[tuple[str, Sequence[Chunk]]]) -> list[dict[str, Any]]:
    """What a rank sent of its files (name, chunks)."""
    parts = []
    for file, batch in batches:
        tensors = {}
        for chunk in batch:
            box = StoredBox(file, chunk.name.removeprefix("optimizer/"), *chunk.box)
            dtype = str(chunk.dtype).removeprefix("torch.")
            tensors[chunk.name] = asdict(StoredTensor(chunk.shape, dtype, (box,)))
        size = sum(chunk.bytes for chunk in batch)
        parts.append({"tensors": tensors, "files": {file: {"bytes": size, "checksum": "crc32:89abcdef"}}})
    return parts


def merge(written: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Tensors and files of the manifest, from what all ranks sent."""
    tensors: dict[str, StoredTensor] = {}
    files: dict[str, Any] = {}
    for part in written:
        files |= part["files"]
        for name, entry in part["tensors"].items():
            boxes = tuple(
                StoredBox(b["file"], b["key"], _sizes(b["offset"]), _sizes(b["size"])) for b in entry["boxes"]
            )
            tensor = StoredTensor(_sizes(entry["shape"]), entry["dtype"], boxes)
            before = tensors[name].boxes if name in tensors else ()
            tensors[name] = replace(tensor, boxes=before + tensor.boxes)
    return {"version": 1, "tensors": {name: asdict(tensor) for name, tensor in tensors.items()}, "files": files}


def _sizes(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def write_file(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Writes a file, and reads it again to count its checksum."""
    save_file(dict(tensors), path, metadata={"format": "pt"})
    with open(path, "rb") as saved:
        os.fsync(saved.fileno())
    value = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            value = zlib.crc32(piece, value)
    return f"crc32:{value:08x}"
