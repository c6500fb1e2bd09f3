"""Reads any part of any tensor of a checkpoint, whatever layout wrote it.

wanted box            stored boxes             copied
rows 2..6      x      rows 0..4, rows 4..8  =  rows 2..4 of the first, rows 4..6 of the second
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from scalewright.checkpoint.finite import finite_first
from scalewright.checkpoint.format import StoredTensor, committed, read_manifest, read_state, verify
from scalewright.parallel.collectives import from_rank_zero, gather_json
from scalewright.parallel.mesh import Mesh
from scalewright.spec.errors import UserError, nearest
from scalewright.spec.placement import Box


class CheckpointReader:
    """A finished checkpoint, open for reading; files are opened when a box of theirs is wanted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        self.state = read_state(folder)
        self._files: dict[str, Any] = {}

    def names(self) -> list[str]:
        """The model's tensors; the optimizer's are left out."""
        return [name for name in self.manifest.tensors if not name.startswith("optimizer/")]

    def optimizer_states(self) -> list[str]:
        """The optimizer's states, such as `exp_avg`."""
        kinds = (name.split("/")[1] for name in self.manifest.tensors if name.startswith("optimizer/"))
        return list(dict.fromkeys(kinds))

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds this tensor."""
        return name in self.manifest.tensors

    def read(self, name: str, box: Box | None = None, shape: tuple[int, ...] | None = None) -> Tensor:
        """A tensor, or the part of it that `box` describes, on the CPU in its stored dtype.

        `shape` is what the caller believes the whole to be. Raises UserError for a tensor that isn't there,
        has another shape, or has a hole.
        """
        stored = self._find(name, shape)
        offsets, sizes = box or ((0,) * len(stored.shape), stored.shape)
        out = torch.empty(sizes, dtype=getattr(torch, stored.dtype))
        covered = 0
        for part in stored.boxes:
            lows = [max(a, b) for a, b in zip(offsets, part.offset, strict=True)]
            ends = zip(offsets, sizes, part.offset, part.size, strict=True)
            highs = [min(a + n, b + m) for a, n, b, m in ends]
            if any(low >= high for low, high in zip(lows, highs, strict=True)):
                continue
            source = tuple(slice(lo - o, hi - o) for lo, hi, o in zip(lows, highs, part.offset, strict=True))
            target = tuple(slice(lo - o, hi - o) for lo, hi, o in zip(lows, highs, offsets, strict=True))
            piece = self._piece(part.file, part.key, source)
            out[target] = piece
            covered += piece.numel()
        if covered != out.numel():
            raise UserError(
                f"tensor '{name}' is not covered by the files", str(self.folder), "use an older checkpoint"
            )
        return out

    def _find(self, name: str, shape: tuple[int, ...] | None) -> StoredTensor:
        stored = self.manifest.tensors.get(name)
        if stored is None:
            near = nearest(name, self.manifest.tensors)
            raise UserError(
                f"the checkpoint has no tensor '{name}'",
                str(self.folder),
                f"it has {near[0]}; is it another model's?" if near else "is it another model's?",
            )
        if shape is not None and tuple(shape) != stored.shape:
            raise UserError(
                f"tensor '{name}' is {list(stored.shape)} in the checkpoint but {list(shape)} in the model",
                str(self.folder),
                "give the model that the checkpoint was made with",
            )
        return stored

    def _piece(self, file: str, key: str, where: tuple[slice, ...]) -> Tensor:
        try:
            if file not in self._files:
                self._files[file] = safe_open(self.folder / file, framework="pt")
            handle = self._files[file]
            piece: Tensor = handle.get_slice(key)[where] if where else handle.get_tensor(key)
            return piece
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"cannot read {file}: {error}", str(self.folder), "use an older checkpoint"
            ) from None


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint folder that a user means: a step folder, or the newest finite one of a run folder.

    Raises UserError when there is none.
    """
    path = Path(path)
    if (path / "manifest.json").exists():
        return path
    for root in (path / "checkpoints", path):
        found = committed(root)
        if found:
            return finite_first(found)[0]
    raise UserError(
        "no finished checkpoint there", str(path), "give a run folder or one of its checkpoints/step-*"
    )


def newest_verified(root: Path, mesh: Mesh) -> tuple[Path | None, list[str]]:
    """The newest checkpoint under `checkpoints/` whose files are whole and whose numbers are finite, and what
    was wrong with newer ones. One that isn't finite is better than none.

    All ranks call it together and share the reading.
    """
    found = committed(root) if mesh.rank == 0 else []
    order = [folder.name for folder in finite_first(found)]
    names, order = from_rank_zero([[folder.name for folder in found], order], mesh)
    rejected: list[str] = []
    for name in order:
        problem = damage(root / name, mesh)
        if problem is None:
            newer = names[: names.index(name)]
            passed = [n for n in newer if n in order[order.index(name) :]]
            return root / name, [*(f"{n}: its numbers aren't finite" for n in passed), *rejected]
        rejected.append(f"{name}: {problem}")
    return None, rejected


def damage(folder: Path, mesh: Mesh) -> str | None:
    """What is wrong with a checkpoint, the same answer on every rank; they share the reading."""
    try:
        problems = verify(folder, mesh.rank, mesh.world)
    except UserError as error:
        problems = [error.what]
    found = [problem for answer in gather_json(problems[:1], mesh) for problem in answer]
    return found[0] if found else None


def set_aside(root: Path, step: int) -> list[str]:
    """Renames checkpoints of steps after `step`, and gives their new names: the run goes on without them.

    A damaged one, or one of a future that was abandoned, would otherwise be the newest again: it would push
    better ones out when old ones are pruned.
    """
    moved = []
    for folder in committed(root):
        if int(folder.name.split("-")[1]) <= step:
            continue
        number = 1
        while (aside := folder.with_name(f"{folder.name}.aside-{number}")).exists():
            number += 1
        folder.rename(aside)
        moved.append(aside.name)
    return moved
