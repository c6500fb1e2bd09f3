"""Writes a checkpoint: every rank its boxes, rank 0 the manifest, and COMMIT last of all.

    each rank   model-*, optimizer-* into step-N.tmp/   fsync, checksums
    rank 0      manifest.json, state.json, COMMIT       fsync; with COMMIT it is whole
                rename step-N.tmp -> step-N             readers see it
                prune to what is kept                   (save.py calls all this)

A kill leaves the older checkpoints as they were, and a .tmp folder: one with COMMIT gets its name when the run goes on,
others are removed by the next save. tests/checkpoint/test_kills.py ends a save at each of its writes. Of
several ranks that hold the same box one writes it; the tensors are spread over them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial as bound
from math import prod
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from scalewright.checkpoint.boxes import pack, uncovered, unpack
from scalewright.checkpoint.format import (
    BESIDE_MODEL,
    BUFFER,
    COMMIT,
    ISLAND,
    MANIFEST,
    OPTIMIZER,
    OUTER,
    PARTIAL,
    RANK,
    STATE,
    VERSION,
    committed,
    finish_commits,
    remove,
)
from scalewright.checkpoint.pieces import Item, describe_file, write_tensors
from scalewright.checkpoint.verify import NAMED, Retention, all_finite, commit_text, superfluous
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.weights import Weight, Weights
from scalewright.spec.common.files import sync_folder, write_whole
from scalewright.spec.placement import Box

FILE_BYTES = 2 * 2**30  # bounds the host memory that a save takes


class Later(Protocol):
    """A tensor that is made when its file is written, in the shape of its weight's master."""

    @property
    def dtype(self) -> torch.dtype: ...

    def __call__(self) -> Tensor: ...


States = Mapping[str, Mapping[str, Tensor | Later]]  # {weight: {kind: tensor like its master}}


@dataclass(frozen=True)
class IslandTensors:
    """What a run with islands saves beside the rest (train/diloco.py)."""

    index: int  # this rank's island
    outer: Mapping[str, Tensor]  # by weight: the model, in the place of masters
    shared: States  # alike on all islands
    own: States


def make_empty(root: Path, partial: Path) -> None:
    """An empty folder to write into; the rest of a killed save is removed."""
    root.mkdir(parents=True, exist_ok=True)
    finish_commits(root)
    for leftover in root.glob(f"step-*{PARTIAL}"):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()


@dataclass(frozen=True)
class Chunk:
    """One box of one tensor for a file; `get` makes it when its turn comes."""

    name: str  # in the manifest and in the file
    shape: tuple[int, ...]  # of the whole tensor
    dtype: torch.dtype
    box: Box
    get: Callable[[], Tensor]

    @property
    def bytes(self) -> int:
        """The box's size."""
        return prod(self.box[1]) * self.dtype.itemsize

    @property
    def item(self) -> Item:
        """As a file of tensors takes it."""
        return self.name, self.dtype, self.box[1], self.get

    @property
    def passing(self) -> bool:
        """Whether something else than an update may change it: a module's buffer, a tensor of one rank."""
        return self.name.startswith((BUFFER, RANK))


def chunks_of(weights: Weights, states: States, mesh: Mesh | None, islands: IslandTensors | None = None) -> list[Chunk]:
    """The boxes of weights and of optimizer states that this rank writes; without a mesh all that it holds."""
    chunks: list[Chunk] = []
    outer = islands.outer if islands is not None else {}
    alike, prefix = (states, OPTIMIZER) if islands is None else (islands.shared, OUTER)
    for weight in _owned(weights, mesh):
        chunks.append(_chunk(weight, weight.name, outer.get(weight.name, weight.master.detach())))
        chunks += _state_chunks(weight, alike, prefix)
    if islands is not None:
        island = f"{ISLAND}{islands.index}/"
        for weight in _owned(weights, mesh, apart=True):
            chunks += _state_chunks(weight, states, f"{island}{OPTIMIZER}" if islands.index else OPTIMIZER)
            chunks += _state_chunks(weight, islands.own, island)
    return chunks


def _state_chunks(weight: Weight, states: States, prefix: str) -> list[Chunk]:
    kinds = states.get(weight.name, {}).items()
    return [_chunk(weight, f"{prefix}{kind}/{weight.name}", tensor) for kind, tensor in kinds]


def _chunk(weight: Weight, name: str, tensor: Tensor | Later) -> Chunk:
    """A tensor shaped like the weight's master; its true part is written, without padding."""

    def get() -> Tensor:
        return weight.true(tensor if isinstance(tensor, Tensor) else tensor())

    return Chunk(name, weight.placement.tensor.shape, tensor.dtype, weight.box, get)


def whole_chunk(name: str, tensor: Tensor) -> Chunk:
    """A whole tensor; a complex one as pairs of real numbers, since safetensors lacks some complex types."""
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    shape = tuple(tensor.shape)
    return Chunk(name, shape, tensor.dtype, ((0,) * len(shape), shape), tensor.detach)


@dataclass(frozen=True)
class Written:
    """What a rank wrote: all that rank 0 sees of it, 2 to 4 KB."""

    files: dict[str, dict[str, object]]  # their entries in the manifest (format.py)
    nonfinite: list[str]  # tensors with inf or NaN, the first few


def in_files(chunks: Iterable[Chunk], rank: int) -> Iterator[tuple[str, list[Chunk]]]:
    """(name, chunks) of a rank's files: the model's apart from all others, as `model-00003-000.safetensors` and on."""
    apart: dict[str, list[Chunk]] = {"model": [], "optimizer": []}
    for chunk in chunks:
        apart["optimizer" if chunk.name.startswith(BESIDE_MODEL) else "model"].append(chunk)
    for stem, some in apart.items():
        for number, batch in enumerate(_by_size(some)):
            yield f"{stem}-{rank:05d}-{number:03d}.safetensors", batch


def boxes_of(batch: Iterable[Chunk]) -> Any:
    """What a file holds, as its entry in the manifest has it."""
    return pack([(c.name, str(c.dtype).removeprefix("torch."), c.shape, c.box) for c in batch])


def write_rank(folder: Path, chunks: Iterable[Chunk], rank: int) -> Written:
    """Writes a rank's boxes, the tensors one after the other."""
    files: dict[str, dict[str, object]] = {}
    nonfinite: list[str] = []
    for name, batch in in_files(chunks, rank):
        stored = write_tensors(folder / name, [replace(c, get=bound(_looked_at, c, nonfinite)).item for c in batch])
        files[name] = {**asdict(stored), "boxes": boxes_of(batch)}
    return Written(files, nonfinite)


def describe(folder: Path, names: Iterable[str]) -> Written:
    """The same of files that hold no tensors, and lie there already."""
    return Written({name: asdict(describe_file(folder / name)) for name in names}, [])


def _looked_at(chunk: Chunk, nonfinite: list[str]) -> Tensor:
    tensor = chunk.get()
    if len(nonfinite) < NAMED and not all_finite(tensor):
        nonfinite.append(chunk.name)
    return tensor


def _owned(weights: Weights, mesh: Mesh | None, *, apart: bool = False) -> Iterator[Weight]:
    """The weights whose boxes this rank writes: of those that hold the same box, each takes about as many bytes, the
    next tensor going to the rank with the least so far. Empty boxes aren't written.

    `apart`: in each island, whose numbers are its own. A tied tensor is written by the first of its two ends: the ends
    hold different tensors besides it, and so would count different bytes.
    """
    taken: dict[tuple[str, ...], list[int]] = {}
    others = {"tie", "dp_replicate"} if apart else {"tie"}
    if mesh is None:
        yield from weights
        return
    for weight in weights:
        if not all(weight.box[1]) or ("tie" in weight.placement.copies and mesh.index("tie")):
            continue
        axes = tuple(axis for axis in weight.placement.copies if axis not in others)
        index = 0
        for axis in axes:
            index = index * mesh.size(axis) + mesh.index(axis)
        numbers = taken.setdefault(axes, [0] * prod(mesh.size(axis) for axis in axes))
        owner = numbers.index(min(numbers))
        numbers[owner] += prod(weight.box[1])
        if owner == index:
            yield weight


def _by_size(chunks: Sequence[Chunk]) -> list[list[Chunk]]:
    batches: list[list[Chunk]] = []
    filled = 0
    for chunk in chunks:
        if not batches or filled + chunk.bytes > FILE_BYTES:
            batches.append([])
            filled = 0
        batches[-1].append(chunk)
        filled += chunk.bytes
    return batches


def commit(partial: Path, final: Path, written: Sequence[Written], state: Mapping[str, object], **head: Any) -> None:
    """Makes a written folder a checkpoint: manifest, state, COMMIT, and the name that readers look for. `head`: the
    other keys of the manifest. Raises ValueError where the ranks' boxes overlap or leave a hole, OSError."""
    files = {name: entry for rank in written for name, entry in rank.files.items()}
    if problems := uncovered(unpack(files)):
        raise ValueError(problems[0])
    write_whole(partial / MANIFEST, json.dumps({"version": VERSION, **head, "files": files}))
    write_whole(partial / STATE, json.dumps(state, indent=1))
    write_whole(partial / COMMIT, commit_text(partial, head["step"]))
    replaced = final.with_name(f"{final.name}.old{PARTIAL}")
    if final.exists():  # a resume saved this step again: one of the two is whole at any moment
        final.rename(replaced)
    try:
        partial.rename(final)
    except OSError:
        if replaced.exists():
            replaced.rename(final)
        raise
    sync_folder(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def prune(root: Path, kept: Retention) -> list[Path]:
    """Removes the finished checkpoints that aren't kept, COMMIT first; returns them."""
    old = superfluous(committed(root), kept)
    for folder in old:
        with suppress(OSError):
            remove(folder)
    return old
