"""Writes a checkpoint: every rank its boxes, rank 0 the manifest, and COMMIT last of all.

    each rank   model-*, optimizer-* into step-N.tmp/   fsync, checksums
    rank 0      manifest.json, state.json, COMMIT       fsync
                rename step-N.tmp -> step-N             the commit
                prune to what is kept                   (save.py calls all this)

A kill leaves the older checkpoints as they were, and a .tmp folder that the next save removes. Of
several ranks that hold the same box one writes it; the tensors are spread over them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from scalewright.checkpoint.format import (
    BUFFER,
    COMMIT,
    ISLAND,
    MANIFEST,
    OPTIMIZER,
    OUTER,
    RANK,
    STATE,
    Manifest,
    StoredBox,
    StoredFile,
    StoredTensor,
    committed,
    remove,
    stored_tensor,
)
from scalewright.checkpoint.verify import Retention, all_finite, commit_text, describe_file, superfluous
from scalewright.model.huggingface import save_file
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.weights import Weight, Weights
from scalewright.spec.common.files import sync_folder, write_whole
from scalewright.spec.placement import Box

FILE_BYTES = 2 * 2**30  # bounds the host memory that a save takes
METADATA = {"format": "pt"}  # in every file of tensors


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
    for leftover in root.glob("step-*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()


@dataclass(frozen=True)
class Chunk:
    """One box of one tensor for a file; `get` makes it when its file is written."""

    name: str  # in the manifest
    key: str  # in the file
    shape: tuple[int, ...]  # of the whole tensor
    dtype: torch.dtype
    box: Box
    get: Callable[[], Tensor]

    @property
    def bytes(self) -> int:
        """The box's size."""
        return prod(self.box[1]) * self.dtype.itemsize

    @property
    def passing(self) -> bool:
        """Whether something else than an update may change it: a module's buffer, a tensor of one rank."""
        return self.name.startswith((BUFFER, RANK))


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as manifests name it."""
    return str(dtype).removeprefix("torch.")


def chunks_of(
    weights: Weights, states: States, mesh: Mesh, islands: IslandTensors | None = None
) -> tuple[list[Chunk], list[Chunk]]:
    """The boxes of weights and of optimizer states that this rank writes."""
    model: list[Chunk] = []
    optimizer: list[Chunk] = []
    outer = islands.outer if islands is not None else {}
    alike, prefix = (states, OPTIMIZER) if islands is None else (islands.shared, OUTER)
    for weight in _owned(weights, mesh):
        values = outer.get(weight.name, weight.master.detach())
        model.append(_chunk(weight, weight.name, weight.name, values))
        optimizer += _state_chunks(weight, alike, prefix)
    if islands is not None:
        island = f"{ISLAND}{islands.index}/"
        for weight in _owned(weights, mesh, apart=True):
            optimizer += _state_chunks(weight, states, f"{island}{OPTIMIZER}" if islands.index else OPTIMIZER)
            optimizer += _state_chunks(weight, islands.own, island)
    return model, optimizer


def _state_chunks(weight: Weight, states: States, prefix: str) -> list[Chunk]:
    before = "" if prefix == OPTIMIZER else prefix
    named = {f"{kind}/{weight.name}": tensor for kind, tensor in states.get(weight.name, {}).items()}
    return [_chunk(weight, prefix + key, before + key, tensor) for key, tensor in named.items()]


def _chunk(weight: Weight, name: str, key: str, tensor: Tensor | Later) -> Chunk:
    """A tensor shaped like the weight's master; its true part is written, without padding."""

    def get() -> Tensor:
        return weight.true(tensor if isinstance(tensor, Tensor) else tensor())

    return Chunk(name, key, weight.placement.tensor.shape, tensor.dtype, weight.box, get)


def whole_chunk(name: str, tensor: Tensor) -> Chunk:
    """A whole tensor; a complex one as pairs of real numbers, since safetensors lacks some complex types."""
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    shape = tuple(tensor.shape)
    return Chunk(name, name, shape, tensor.dtype, ((0,) * len(shape), shape), tensor.detach)


def write_chunks(folder: Path, chunks: Sequence[Chunk], stem: str) -> dict[str, object]:
    """Writes boxes as `<stem>-000.safetensors` and on, one file in memory at a time; describes them."""
    tensors: dict[str, object] = {}
    files: dict[str, object] = {}
    bad = []
    for number, batch in enumerate(_by_size(chunks)):
        file = f"{stem}-{number:03d}.safetensors"
        content = _unshared({chunk.key: chunk.get() for chunk in batch})
        bad += [chunk.name for chunk in batch if not all_finite(content[chunk.key])]
        save_file(content, folder / file, metadata=METADATA)
        with open(folder / file, "rb") as saved:
            os.fsync(saved.fileno())
        files[file] = asdict(describe_file(folder / file))
        tensors |= {chunk.name: describe(chunk, file) for chunk in batch}
    return {"tensors": tensors, "files": files, "nonfinite": bad}


def describe(chunk: Chunk, file: str) -> dict[str, object]:
    """A chunk in a file, as a manifest has it."""
    box = StoredBox(file, chunk.key, *chunk.box)
    return asdict(StoredTensor(chunk.shape, dtype_name(chunk.dtype), (box,)))


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, contiguous, each in a storage of its own: the format refuses two names of one storage."""
    unshared, storages = {}, set()
    for key, tensor in tensors.items():
        copy = tensor.to("cpu").contiguous()
        storage = copy.untyped_storage().data_ptr()
        unshared[key] = copy.clone() if storage in storages else copy
        storages.add(storage)
    return unshared


def _owned(weights: Weights, mesh: Mesh, *, apart: bool = False) -> Iterator[Weight]:
    """The weights whose boxes this rank writes: of those that hold the same box, each takes about as many bytes, the
    next tensor going to the rank with the least so far. Empty boxes aren't written.

    `apart`: in each island, whose numbers are its own. A tied tensor is written by the first of its two ends: the ends
    hold different tensors besides it, and so would count different bytes.
    """
    taken: dict[tuple[str, ...], list[int]] = {}
    others = {"tie", "dp_replicate"} if apart else {"tie"}
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


def in_files(chunks: Mapping[str, Sequence[Chunk]]) -> Iterator[tuple[str, list[Chunk]]]:
    """(name of a file, its chunks), of chunks by the beginning of their files' names."""
    for stem, part in chunks.items():
        for number, batch in enumerate(_by_size(part)):
            yield f"{stem}-{number:03d}.safetensors", batch


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


def merge(written: Sequence[Any], **keys: Any) -> Manifest:
    """One manifest of all that `write_chunks` wrote, on any rank."""
    tensors: dict[str, StoredTensor] = {}
    files = {name: StoredFile(**entry) for part in written for name, entry in part["files"].items()}
    for part in written:
        for name, entry in part["tensors"].items():
            tensor = stored_tensor(entry)
            before = tensors[name].boxes if name in tensors else ()
            tensors[name] = replace(tensor, boxes=before + tensor.boxes)
    return Manifest(tensors=tensors, files=files, **keys)


def commit(partial: Path, final: Path, manifest: Manifest, state: dict[str, object]) -> None:
    """Makes a written folder a checkpoint: manifest, state, COMMIT, and the name that readers look for."""
    write_whole(partial / MANIFEST, json.dumps(asdict(manifest), indent=1))
    write_whole(partial / STATE, json.dumps(state, indent=1))
    write_whole(partial / COMMIT, commit_text(partial, manifest.step))
    if final.exists():  # a resume saved this step again
        remove(final)
    partial.rename(final)
    sync_folder(final.parent)


def prune(root: Path, kept: Retention) -> list[Path]:
    """Removes the finished checkpoints that aren't kept, COMMIT first; returns them."""
    old = superfluous(committed(root), kept)
    for folder in old:
        with suppress(OSError):
            remove(folder)
    return old
