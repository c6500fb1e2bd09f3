"""Another trainer's tensors, box by box: asks the confined reader where they lie, checks that, reads bytes.

    child.py --JSON--> every piece: in a file of the folder, within its bytes, no element twice, none missing
                       read(name, offsets, sizes) copies the rows that are asked for out of each piece

This process opens the files for their numbers alone; no pickle and no zip is read here.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import scalewright
from scalewright.checkpoint.boxes import are_disjoint
from scalewright.checkpoint.foreign.index import ITEM_BYTES, Shape, contiguous
from scalewright.spec.common.untrusted import inside, parse_json
from scalewright.spec.errors import RunError, UserError

START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from scalewright.checkpoint.foreign.child import main; "
LEAST_MEMORY, MEMORY_PER_BYTE = 2 << 30, 60  # of the reader, by the bytes of what it parses
LEAST_SECONDS, BYTES_PER_SECOND = 60, 200_000  # Python reads some 2 million opcodes a second
ANSWER_BYTES = 1 << 30


@dataclass(frozen=True)
class Piece:
    """A box of a tensor, and where it lies."""

    offsets: Shape
    sizes: Shape
    file: str
    start: int
    strides: Shape

    @property
    def in_rows(self) -> bool:
        """Whether its elements lie one after another."""
        return self.strides == contiguous(self.sizes) or prod(self.sizes) <= 1


@dataclass(frozen=True)
class ForeignTensor:
    """One of their tensors; `flat`: its pieces are parts of the row of all of its elements."""

    shape: Shape
    dtype: str
    flat: bool
    pieces: tuple[Piece, ...]


class ForeignFiles:
    """The tensors of a folder of another trainer; raises UserError for anything that isn't as it claims."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self._sizes: dict[str, int] = {}
        answer: Any = ask(folder, kind)
        self.confined: list[str] = answer.get("confined", [])
        try:
            self.facts = dict(answer["index"]["facts"])
            files = [str(name) for name in answer["index"]["files"]]
            self.tensors = {
                str(name): self._tensor(str(name), entry, files) for name, entry in answer["index"]["tensors"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            if isinstance(error, UserError):
                raise
            raise self._problem(f"its index makes no sense ({type(error).__name__})") from None

    def read(self, name: str, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """The box of a tensor that begins at `offsets` and is `sizes` long, in the file's type."""
        tensor = self.tensors[name]
        if tensor.flat:
            row = self._assemble(tensor, (0,), (prod(tensor.shape),)).reshape(tensor.shape)
            return row[_slices(offsets, sizes)].contiguous()
        return self._assemble(tensor, tuple(offsets), tuple(sizes))

    def _assemble(self, tensor: ForeignTensor, offsets: Shape, sizes: Shape) -> Tensor:
        out = torch.empty(sizes, dtype=getattr(torch, tensor.dtype))
        for piece in tensor.pieces:
            first = tuple(max(o, p) for o, p in zip(offsets, piece.offsets, strict=True))
            ends = zip(offsets, sizes, piece.offsets, piece.sizes, strict=True)
            common = tuple(min(o + n, p + m) - f for (o, n, p, m), f in zip(ends, first, strict=True))
            if all(n > 0 for n in common):
                there = tuple(f - p for f, p in zip(first, piece.offsets, strict=True))
                here = tuple(f - o for f, o in zip(first, offsets, strict=True))
                out[_slices(here, common)] = self._read_piece(piece, out.dtype, there, common)
        return out

    def _read_piece(self, piece: Piece, dtype: torch.dtype, offsets: Shape, sizes: Shape) -> Tensor:
        """A box of a piece: of one in rows only the rows that are asked for are read."""
        if piece.in_rows and piece.sizes:
            row = prod(piece.sizes[1:])
            data = self._bytes(piece, offsets[0] * row * dtype.itemsize, sizes[0] * row * dtype.itemsize)
            rows = data.view(dtype).reshape(sizes[0], *piece.sizes[1:])
            return rows[_slices((0, *offsets[1:]), sizes)]
        data = self._bytes(piece, 0, _extent(piece.sizes, piece.strides) * dtype.itemsize)
        return data.view(dtype).as_strided(piece.sizes, piece.strides)[_slices(offsets, sizes)]

    def _bytes(self, piece: Piece, offset: int, count: int) -> Tensor:
        data = torch.empty(count, dtype=torch.uint8)
        try:
            with open(inside(self.folder, piece.file), "rb") as file:
                file.seek(piece.start + offset)
                got = file.readinto(data.numpy().data)
        except OSError as error:
            raise RunError(f"cannot read {self.folder / piece.file}: {error.strerror}") from error
        if got != count:
            raise RunError(f"{self.folder / piece.file} became shorter while it was read")
        return data

    def _tensor(self, name: str, entry: Any, files: list[str]) -> ForeignTensor:
        shape, dtype, flat = _whole(entry["shape"]), str(entry["dtype"]), bool(entry["flat"])
        if dtype not in ITEM_BYTES:
            raise self._problem(f"tensor '{name[:100]}' has no type that is known")
        pieces = tuple(
            Piece(_whole(offsets), _whole(sizes), files[file], start, _whole(strides))
            for offsets, sizes, file, start, strides in entry["pieces"]
        )
        tensor = ForeignTensor(shape, dtype, flat, pieces)
        self._check(f"tensor '{name[:100]}'", tensor)
        return tensor

    def _check(self, name: str, tensor: ForeignTensor) -> None:
        """Raises UserError unless the pieces are in their files, and cover the tensor exactly once."""
        whole = (prod(tensor.shape),) if tensor.flat else tensor.shape
        width = ITEM_BYTES[tensor.dtype]
        for piece in tensor.pieces:
            aligned = len(piece.offsets) == len(piece.sizes) == len(piece.strides) == len(whole)
            if not aligned or any(o + n > m for o, n, m in zip(piece.offsets, piece.sizes, whole, strict=True)):
                raise self._problem(f"{name} has a piece outside of its {list(tensor.shape)}")
            extent = _extent(piece.sizes, piece.strides)
            inside_file = piece.start >= 0 and piece.start + extent * width <= self._size(piece.file)
            if not inside_file or extent < prod(piece.sizes):
                raise self._problem(f"{name} is larger than {piece.file[:100]}")
        boxes = [(piece.offsets, piece.sizes) for piece in tensor.pieces]
        if not are_disjoint(boxes) or sum(prod(size) for _, size in boxes) != prod(whole):
            raise self._problem(f"{name} isn't covered exactly once by its pieces")

    def _size(self, file: str) -> int:
        if file not in self._sizes:
            try:
                self._sizes[file] = inside(self.folder, file).stat().st_size
            except OSError as error:
                raise self._problem(f"{file[:100]} cannot be read ({error.strerror})") from None
        return self._sizes[file]

    def _problem(self, what: str) -> UserError:
        return UserError(what, str(self.folder), "the checkpoint is damaged: use another")


def ask(folder: Path, kind: str) -> dict[str, object]:
    """The confined reader's answer for a folder; raises UserError for what it refuses, or that ends it."""
    parsed = _parsed_bytes(folder)
    memory, seconds = LEAST_MEMORY + MEMORY_PER_BYTE * parsed, LEAST_SECONDS + parsed // BYTES_PER_SECOND
    root = Path(scalewright.__file__).parent.parent
    command = [sys.executable, "-I", "-S", "-B", "-c", START + "main(sys.argv[1:])", str(root)]
    command += [kind, str(folder.resolve()), str(memory), str(seconds)]
    null = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=null, stdout=subprocess.PIPE, stderr=null, env={}) as reader:
        assert isinstance(reader.stdout, io.BufferedReader)
        text = reader.stdout.read(ANSWER_BYTES + 1)
        if len(text) > ANSWER_BYTES:
            reader.kill()
    how = "the checkpoint is damaged, or made to do harm: use another"
    try:
        answer = dict(parse_json(text)) if reader.returncode == 0 else {}
    except (ValueError, TypeError):
        answer = {}
    if "what" in answer:
        raise UserError(str(answer["what"]), str(answer.get("where", "")), str(answer.get("how") or how))
    if "index" not in answer:
        raise UserError(f"its reader ended with {reader.returncode}, and no answer", str(folder), how)
    return answer


def _parsed_bytes(folder: Path) -> int:
    """Bytes of what the reader parses, at most: .metadata, JSON, and a little of each file of numbers."""
    sizes = ((path.name, path.stat().st_size) for path in folder.rglob("*") if path.is_file())
    return sum(size if name == ".metadata" else min(size, 1 << 16) for name, size in sizes)


def _whole(values: Any) -> Shape:
    if not isinstance(values, list) or any(type(n) is not int or not 0 <= n < 1 << 62 for n in values):
        raise ValueError("not sizes")
    return tuple(values)


def _extent(sizes: Shape, strides: Shape) -> int:
    """Elements from a box's first to its last."""
    return 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) if all(sizes) else 0


def _slices(offsets: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))
