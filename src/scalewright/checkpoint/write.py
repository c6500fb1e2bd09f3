"""Writes a checkpoint: every rank its boxes, rank 0 the manifest, and COMMIT last of all.

    rank 0      the run's lines (track/saved.py)        fsync
    each rank   model-*, optimizer-* into step-N.tmp/   fsync, checksums
    rank 0      manifest.json, state.json, COMMIT       fsync; with COMMIT it is whole
                rename step-N.tmp -> step-N             readers see it
                prune to `keep`

A kill leaves the older checkpoints as they were, and a .tmp folder: one with COMMIT gets its name when the run goes on,
others are removed by the next save. tests/checkpoint/test_kills.py ends a save at each of its writes. Of
several ranks that hold the same box one writes it; the tensors are spread over them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
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
    COMPLEX,
    ISLAND,
    MANIFEST,
    OPTIMIZER,
    OUTER,
    PARTIAL,
    STATE,
    VERSION,
    committed,
    finish_commits,
    rank_name,
    remove,
    step_folder,
)
from scalewright.checkpoint.pieces import describe_file, write_tensors
from scalewright.checkpoint.verify import NAMED, all_finite, commit_text, finite_entry, superfluous
from scalewright.parallel.collectives import gather_json
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.weights import Weight, Weights
from scalewright.spec.common.files import sync_folder, write_whole
from scalewright.spec.errors import RunError
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


def save(
    root: Path,
    weights: Weights,
    states: States,
    mesh: Mesh,
    *,
    step: int,
    samples: int,
    run_id: str,
    model: dict[str, object],
    layout: dict[str, object],
    state: dict[str, object],
    buffers: Mapping[str, Tensor] | None = None,
    of_rank: Mapping[str, Tensor] | None = None,
    islands: IslandTensors | None = None,
    copies: Callable[[], Mapping[str, bytes]] | None = None,
    keep: int = 2,
    finite: bool = True,
) -> Path:
    """Saves all that this rank holds, together with every other rank; returns the committed folder.

    `states` maps a weight's canonical name to {optimizer state: tensor like the weight's master}. `state` has no
    tensors; `finite`: whether the step's loss and gradient norm were. It is recorded together with whether every number
    written is. `buffers` are the same on every rank, and rank 0 writes them; `of_rank` are this rank's alone.
    `islands`: each writes its own weights and states; those under `optimizer/` are island 0's. `copies` makes further
    files, on rank 0. Raises RunError on every rank when any of them could not write; earlier checkpoints stay.
    """
    final, first = step_folder(root, step), mesh.rank == 0
    partial = final.with_name(final.name + PARTIAL)

    def begin() -> dict[str, Any]:
        texts = copies() if copies is not None else {}
        make_empty(root, partial)
        for name, text in texts.items():
            write_whole(partial / name, text.decode("utf-8", "replace"))
        return vars(describe(partial, texts))

    begun = _together(mesh, partial, begin if first else None)
    chunks = _chunks(weights, states, mesh, islands)
    chunks += [_whole(rank_name(name, mesh.rank), tensor) for name, tensor in (of_rank or {}).items()]
    if first:
        chunks += [_whole(BUFFER + name, tensor) for name, tensor in (buffers or {}).items()]
    if complexes := [name for name, tensor in (buffers or {}).items() if tensor.is_complex()]:
        state = {**state, COMPLEX: complexes}

    written = _together(mesh, partial, lambda: vars(write_rank(partial, chunks, mesh.rank)))

    def finish() -> None:
        parts = [Written(**part) for part in (begun[0], *written)]
        finiteness = finite_entry(finite, (name for part in parts for name in part.nonfinite))
        head = {"step": step, "samples": samples, "run_id": run_id, "model": model, "layout": layout}
        commit(partial, final, parts, {**state, **finiteness}, **head)

    _together(mesh, partial, finish if first else None)
    if first:
        prune(root, keep)
    return final


def _together(mesh: Mesh, partial: Path, write: Callable[[], Any] | None) -> list[Any]:
    """Every rank's result of its write (None: it has nothing to write), or RunError on all when one had a problem."""
    problem = value = None
    try:
        value = write() if write is not None else None
    except Exception as error:  # safetensors wraps OSError in an error of its own
        problem = str(error)
        if "No space left" in problem or "os error 28" in problem:
            problem = "no space left on the disk"
    answers = gather_json([problem, value], mesh)
    for rank, (text, _) in enumerate(answers):
        if text:
            if mesh.rank == 0:
                shutil.rmtree(partial, ignore_errors=True)
            older = "older checkpoints are kept" if committed(partial.parent) else "no older checkpoint exists"
            raise RunError(f"cannot save {partial.with_suffix('').name}: {text} (rank {rank}); {older}")
    return [answer for _, answer in answers]


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


def _chunks(weights: Weights, states: States, mesh: Mesh, islands: IslandTensors | None = None) -> list[Chunk]:
    """The boxes of weights and of optimizer states that this rank writes."""
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


def _whole(name: str, tensor: Tensor) -> Chunk:
    """A whole tensor; a complex one as pairs of real numbers, since safetensors lacks some complex types."""
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    shape = tuple(tensor.shape)
    return Chunk(name, shape, tensor.dtype, ((0,) * len(shape), shape), tensor.detach)


@dataclass(frozen=True)
class Written:
    """What a rank wrote: all that rank 0 sees of it, 2 to 4 KB."""

    files: dict[str, dict[str, object]]  # their entries in the manifest (format.py)
    nonfinite: list[str]  # tensors with inf or NaN, the first few


def write_rank(folder: Path, chunks: Iterable[Chunk], rank: int) -> Written:
    """Writes a rank's boxes, the model's apart from all others, as `model-00003-000.safetensors` and on."""
    apart: dict[str, list[Chunk]] = {"model": [], "optimizer": []}
    for chunk in chunks:
        apart["optimizer" if chunk.name.startswith(BESIDE_MODEL) else "model"].append(chunk)
    files: dict[str, dict[str, object]] = {}
    nonfinite: list[str] = []
    for stem, some in apart.items():
        for number, batch in enumerate(_by_size(some)):
            name = f"{stem}-{rank:05d}-{number:03d}.safetensors"
            items = [(chunk.name, chunk.dtype, chunk.box[1], bound(_looked_at, chunk, nonfinite)) for chunk in batch]
            stored = write_tensors(folder / name, items)
            held = [(c.name, str(c.dtype).removeprefix("torch."), c.shape, c.box) for c in batch]
            files[name] = {**asdict(stored), "boxes": pack(held)}
    return Written(files, nonfinite)


def describe(folder: Path, names: Iterable[str]) -> Written:
    """The same of files that hold no tensors, and lie there already."""
    return Written({name: asdict(describe_file(folder / name)) for name in names}, [])


def _looked_at(chunk: Chunk, nonfinite: list[str]) -> Tensor:
    tensor = chunk.get()
    if len(nonfinite) < NAMED and not all_finite(tensor):
        nonfinite.append(chunk.name)
    return tensor


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
    partial.rename(final)
    sync_folder(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def prune(root: Path, keep: int) -> list[Path]:
    """Removes the finished checkpoints that aren't kept, COMMIT first; returns them."""
    old = superfluous(committed(root), keep)
    for folder in old:
        with suppress(OSError):
            remove(folder)
    return old
