"""Writes a checkpoint: every rank its boxes, rank 0 the manifest, and COMMIT last of all.

    each rank   model-*, optimizer-* into step-N.tmp/   fsync, checksums
    rank 0      manifest.json, state.json, COMMIT       fsync
                rename step-N.tmp -> step-N             the commit
                prune to `keep`

A kill leaves the older checkpoints as they were, and a .tmp folder that the next save removes. Of
several ranks that hold the same box one writes it; the tensors are spread over them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalewright.checkpoint.finite import all_finite, finite_entry, superfluous
from scalewright.checkpoint.format import (
    BUFFER,
    COMMIT,
    COMPLEX,
    MANIFEST,
    OPTIMIZER,
    STATE,
    Manifest,
    StoredBox,
    StoredFile,
    StoredTensor,
    commit_text,
    committed,
    describe_file,
    step_folder,
)
from scalewright.model.tensor_file import save_file
from scalewright.parallel.collectives import gather_json
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.weights import Weight, Weights
from scalewright.spec.errors import RunError
from scalewright.spec.placement import Box

FILE_BYTES = 2 * 2**30  # bounds the host memory that a save takes


def save(
    root: Path,
    weights: Weights,
    states: Mapping[str, Mapping[str, Tensor]],
    mesh: Mesh,
    *,
    step: int,
    samples: int,
    run_id: str,
    model: dict[str, Any],
    layout: dict[str, Any],
    state: dict[str, Any],
    buffers: Mapping[str, Tensor] | None = None,
    keep: int = 2,
    finite: bool = True,
) -> Path:
    """Saves all that this rank holds, together with every other rank; returns the committed folder.

    `states` maps an optimizer state's name to {canonical name: tensor like the weight's master}. `state` has
    no tensors; `finite`: whether the step's loss and gradient norm were. It is recorded together with whether
    every number written is. `buffers` are the same on every rank, and rank 0 writes them. Raises
    RunError on every rank when any of them could not write; earlier checkpoints stay.
    """
    final = step_folder(root, step)
    partial = final.with_name(final.name + ".tmp")
    problem = _try(lambda: make_empty(root, partial)) if mesh.rank == 0 else None
    _agree(problem, mesh, partial)
    described: dict[str, Any] = {"tensors": {}, "files": {}, "nonfinite": []}
    model_chunks, optimizer_chunks = _chunks(weights, states, mesh)
    if mesh.rank == 0:
        model_chunks += [_whole(name, tensor) for name, tensor in (buffers or {}).items()]
    if complexes := [name for name, tensor in (buffers or {}).items() if tensor.is_complex()]:
        state = {**state, COMPLEX: complexes}
    problem = _try(lambda: _write_rank(partial, model_chunks, optimizer_chunks, mesh.rank, described))
    ranks = _agree(problem, mesh, partial, described)
    if mesh.rank == 0:
        manifest = merge(ranks, step=step, samples=samples, run_id=run_id, model=model, layout=layout)
        problem = _try(lambda: commit(partial, final, manifest, {**state, **finite_entry(finite, ranks)}))
    _agree(problem, mesh, partial)
    if mesh.rank == 0:
        prune(root, keep)
    return final


def _try(action: Any) -> str | None:
    """The problem of a write, in words; None when it went well."""
    try:
        action()
    except Exception as error:  # safetensors wraps OSError in an error of its own
        text = str(error)
        return "no space left on the disk" if "No space left" in text or "os error 28" in text else text
    return None


def _agree(problem: str | None, mesh: Mesh, partial: Path, value: Any = None) -> list[Any]:
    """Every rank's value, or RunError on every rank when one had a problem."""
    answers = gather_json({"problem": problem, "value": value}, mesh)
    problems = [(rank, a["problem"]) for rank, a in enumerate(answers) if a["problem"]]
    if problems:
        if mesh.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        rank, text = problems[0]
        older = "older checkpoints are kept" if committed(partial.parent) else "no older checkpoint exists"
        raise RunError(f"cannot save {partial.with_suffix('').name}: {text} (rank {rank}); {older}")
    return [a["value"] for a in answers]


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


def _chunks(
    weights: Weights, states: Mapping[str, Mapping[str, Tensor]], mesh: Mesh
) -> tuple[list[Chunk], list[Chunk]]:
    """The boxes of weights and of optimizer states that this rank writes."""
    model: list[Chunk] = []
    optimizer: list[Chunk] = []
    for weight in _owned(weights, mesh):
        model.append(_chunk(weight, weight.name, weight.name, weight.master.detach()))
        for kind, by_name in states.items():
            if weight.name in by_name:
                name, key = f"{OPTIMIZER}{kind}/{weight.name}", f"{kind}/{weight.name}"
                optimizer.append(_chunk(weight, name, key, by_name[weight.name]))
    return model, optimizer


def _chunk(weight: Weight, name: str, key: str, tensor: Tensor) -> Chunk:
    """A tensor shaped like the weight's master; its true part is written, without padding."""
    true = weight.true(tensor)
    return Chunk(name, key, weight.placement.tensor.shape, tensor.dtype, weight.box, lambda: true)


def _whole(name: str, tensor: Tensor) -> Chunk:
    """A buffer; a complex one as pairs of real numbers, since safetensors lacks some complex types."""
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    shape = tuple(tensor.shape)
    box = ((0,) * len(shape), shape)
    return Chunk(BUFFER + name, BUFFER + name, shape, tensor.dtype, box, tensor.detach)


def write_chunks(folder: Path, chunks: Sequence[Chunk], stem: str) -> dict[str, Any]:
    """Writes boxes as `<stem>-000.safetensors` and on, one file in memory at a time; describes them."""
    tensors: dict[str, Any] = {}
    files: dict[str, Any] = {}
    bad: list[str] = []
    for number, batch in enumerate(_by_size(chunks)):
        file = f"{stem}-{number:03d}.safetensors"
        content = _unshared({chunk.key: chunk.get() for chunk in batch})
        bad += [chunk.name for chunk in batch if not all_finite(content[chunk.key])]
        save_file(content, folder / file, metadata={"format": "pt"})
        _sync(folder / file)
        files[file] = asdict(describe_file(folder / file))
        for chunk in batch:
            dtype = str(chunk.dtype).removeprefix("torch.")
            box = StoredBox(file, chunk.key, *chunk.box)
            tensors[chunk.name] = asdict(StoredTensor(chunk.shape, dtype, (box,)))
    return {"tensors": tensors, "files": files, "nonfinite": bad}


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, contiguous, each in a storage of its own: the format refuses two names of one storage."""
    unshared: dict[str, Tensor] = {}
    storages: set[int] = set()
    for key, tensor in tensors.items():
        copy = tensor.to("cpu").contiguous()
        storage = copy.untyped_storage().data_ptr()
        unshared[key] = copy.clone() if storage in storages else copy
        storages.add(storage)
    return unshared


def _write_rank(
    folder: Path, model: Sequence[Chunk], optimizer: Sequence[Chunk], rank: int, described: dict[str, Any]
) -> None:
    """Writes this rank's boxes and adds their description to `described`."""
    for stem, chunks in (("model", model), ("optimizer", optimizer)):
        written = write_chunks(folder, chunks, f"{stem}-{rank:05d}")
        described["tensors"].update(written["tensors"])
        described["files"].update(written["files"])
        described["nonfinite"] += written["nonfinite"]


def _owned(weights: Weights, mesh: Mesh) -> Iterator[Weight]:
    """The weights whose boxes this rank writes: of those that hold the same box, each takes about as many
    bytes, the next tensor going to the rank with the least so far. Empty boxes aren't written.

    A tied tensor is written by the first of its two ends: the ends hold different tensors besides it, and so
    would count different bytes.
    """
    taken: dict[tuple[str, ...], list[int]] = {}
    for weight in weights:
        if not all(weight.box[1]):
            continue
        if "tie" in weight.placement.copies and mesh.index("tie"):
            continue
        axes = tuple(axis for axis in weight.placement.copies if axis != "tie")
        index = 0
        for axis in axes:
            index = index * mesh.size(axis) + mesh.index(axis)
        numbers = taken.setdefault(axes, [0] * prod(mesh.size(axis) for axis in axes))
        owner = numbers.index(min(numbers))
        numbers[owner] += prod(weight.box[1])
        if owner == index:
            yield weight


def _by_size(chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    batch: list[Chunk] = []
    filled = 0
    for chunk in chunks:
        if batch and filled + chunk.bytes > FILE_BYTES:
            yield batch
            batch, filled = [], 0
        batch.append(chunk)
        filled += chunk.bytes
    if batch:
        yield batch


def merge(ranks: list[Any], **keys: Any) -> Manifest:
    """One manifest of all ranks' boxes."""
    tensors: dict[str, StoredTensor] = {}
    files: dict[str, StoredFile] = {}
    for rank in ranks:
        files.update({name: StoredFile(**entry) for name, entry in rank["files"].items()})
        for name, entry in rank["tensors"].items():
            boxes = tuple(StoredBox(**b) for b in entry["boxes"])
            before = tensors[name].boxes if name in tensors else ()
            tensors[name] = StoredTensor(tuple(entry["shape"]), entry["dtype"], before + boxes)
    return Manifest(tensors=tensors, files=files, **keys)


def commit(partial: Path, final: Path, manifest: Manifest, state: dict[str, Any]) -> None:
    """Makes a written folder a checkpoint: manifest, state, COMMIT, and the name that readers look for."""
    for name, text in ((MANIFEST, manifest.to_json()), (STATE, json.dumps(state, indent=1))):
        (partial / name).write_text(text, encoding="utf-8")
        _sync(partial / name)
    (partial / COMMIT).write_text(commit_text(partial, manifest.step), encoding="utf-8")
    _sync(partial / COMMIT)
    _sync(partial)
    if final.exists():  # a resume saved this step again
        shutil.rmtree(final)
    partial.rename(final)
    _sync(final.parent)


def _sync(path: Path) -> None:
    """Makes sure that a file (or a folder's entries) is on the disk; Windows can't do it for folders."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def prune(root: Path, keep: int) -> list[Path]:
    """Removes the finished checkpoints that aren't kept, COMMIT first; returns them."""
    old = superfluous(committed(root), keep)
    for folder in old:
        (folder / COMMIT).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    return old


def as_states(named: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """{parameter: {state: tensor}} turned into {state: {parameter: tensor}}, as `save` takes it."""
    by_state: dict[str, dict[str, Tensor]] = {}
    for name, states in named.items():
        for kind, tensor in states.items():
            if isinstance(tensor, torch.Tensor):
                by_state.setdefault(kind, {})[name] = tensor
    return by_state
