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
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from scalewright.checkpoint.format import (
    COMMIT,
    MANIFEST,
    STATE,
    Manifest,
    StoredBox,
    StoredFile,
    StoredTensor,
    checksum,
    committed,
    step_folder,
)
from scalewright.parallel.collectives import gather_json
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.weights import Weight, Weights
from scalewright.spec.errors import RunError

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
    keep: int = 2,
) -> Path:
    """Saves all that this rank holds, together with every other rank; returns the committed folder.

    `states` maps an optimizer state's name to {canonical name: tensor like the weight's master}. `state` is
    what isn't a tensor. Raises RunError on every rank when any of them could not write; what was saved
    before stays.
    """
    final = step_folder(root, step)
    partial = final.with_name(final.name + ".tmp")
    problem = _try(lambda: _make_empty(root, partial)) if mesh.rank == 0 else None
    _agree(problem, mesh, partial)
    described: dict[str, Any] = {"tensors": {}, "files": {}}
    problem = _try(lambda: described.update(_write_rank(partial, weights, states, mesh)))
    answers = _agree(problem, mesh, partial, described)
    if mesh.rank == 0:
        manifest = _merge(answers, step=step, samples=samples, run_id=run_id, model=model, layout=layout)
        problem = _try(lambda: _commit(partial, final, manifest, state))
    _agree(problem, mesh, partial)
    if mesh.rank == 0:
        prune(root, keep)
    return final


def _try(action: Any) -> str | None:
    """What went wrong with a write, in words; None when it went well."""
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
        raise RunError(
            f"cannot save {partial.with_suffix('').name}: {text} (rank {rank}); older checkpoints are kept"
        )
    return [a["value"] for a in answers]


def _make_empty(root: Path, partial: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob("step-*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()


def _write_rank(
    folder: Path, weights: Weights, states: Mapping[str, Mapping[str, Tensor]], mesh: Mesh
) -> dict[str, Any]:
    """Writes this rank's boxes; returns the tensors and files that it wrote, as plain data."""
    owned = [w for i, w in enumerate(weights) if _owns(w, i, mesh)]
    tensors: dict[str, Any] = {}
    files: dict[str, Any] = {}
    model = ((w, w.name, w.name, w.master.detach()) for w in owned)
    optimizer = (
        (w, f"optimizer/{kind}/{w.name}", f"{kind}/{w.name}", by_name[w.name])
        for kind, by_name in states.items()
        for w in owned
        if w.name in by_name
    )
    for stem, entries in (("model", model), ("optimizer", optimizer)):
        for number, batch in enumerate(_by_size(entries)):
            file = f"{stem}-{mesh.rank:05d}-{number:03d}.safetensors"
            content = {key: tensor.to("cpu").contiguous() for _, _, key, tensor in batch}
            save_file(content, folder / file, metadata={"format": "pt"})
            _sync(folder / file)
            files[file] = asdict(StoredFile((folder / file).stat().st_size, checksum(folder / file)))
            for weight, name, key, tensor in batch:
                offsets, sizes = weight.box
                dtype = str(tensor.dtype).removeprefix("torch.")
                whole = weight.placement.tensor.shape
                stored = StoredTensor(whole, dtype, (StoredBox(file, key, offsets, sizes),))
                tensors[name] = asdict(stored)
    return {"tensors": tensors, "files": files}


def _owns(weight: Weight, index: int, mesh: Mesh) -> bool:
    """Whether this rank writes the box, of all that hold it; nobody writes an empty one."""
    if not all(weight.box[1]):
        return False
    place = 0
    for axis in weight.placement.copies:
        place = place * mesh.size(axis) + mesh.index(axis)
    return place == index % weight.copies


def _by_size(
    entries: Iterator[tuple[Weight, str, str, Tensor]],
) -> Iterator[list[tuple[Weight, str, str, Tensor]]]:
    batch: list[tuple[Weight, str, str, Tensor]] = []
    filled = 0
    for entry in entries:
        size = entry[3].numel() * entry[3].element_size()
        if batch and filled + size > FILE_BYTES:
            yield batch
            batch, filled = [], 0
        batch.append(entry)
        filled += size
    if batch:
        yield batch


def _merge(answers: list[Any], **keys: Any) -> Manifest:
    """One manifest of all ranks' boxes."""
    tensors: dict[str, StoredTensor] = {}
    files: dict[str, StoredFile] = {}
    for answer in answers:
        files.update({name: StoredFile(**entry) for name, entry in answer["files"].items()})
        for name, entry in answer["tensors"].items():
            boxes = tuple(StoredBox(**b) for b in entry["boxes"])
            before = tensors[name].boxes if name in tensors else ()
            tensors[name] = StoredTensor(tuple(entry["shape"]), entry["dtype"], before + boxes)
    return Manifest(tensors=tensors, files=files, **keys)


def _commit(partial: Path, final: Path, manifest: Manifest, state: dict[str, Any]) -> None:
    for name, text in ((MANIFEST, manifest.to_json()), (STATE, json.dumps(state, indent=1))):
        (partial / name).write_text(text, encoding="utf-8")
        _sync(partial / name)
    (partial / COMMIT).write_text(f"step {manifest.step}\n", encoding="utf-8")
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
    """Removes all finished checkpoints but the newest `keep`; returns what went. COMMIT goes first."""
    old = committed(root)[keep:]
    for folder in old:
        (folder / COMMIT).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    return old


def as_states(named: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """{parameter: {state: tensor}} turned into {state: {parameter: tensor}}, as `save` takes it."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, states in named.items():
        for kind, tensor in states.items():
            if isinstance(tensor, torch.Tensor):
                found.setdefault(kind, {})[name] = tensor
    return found
