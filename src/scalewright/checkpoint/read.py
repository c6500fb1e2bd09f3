"""Reads any part of any tensor of a checkpoint, whatever layout wrote it.

wanted box            stored boxes             copied
rows 2..6      x      rows 0..4, rows 4..8  =  rows 2..4 of the first, rows 4..6 of the second
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from scalewright.checkpoint.boxes import StoredBox, StoredTensor
from scalewright.checkpoint.foreign.folder import find_foreign
from scalewright.checkpoint.format import (
    BESIDE_PARAMETERS,
    BUFFER,
    COMPLEX,
    OPTIMIZER,
    checkpoints_at,
    committed,
    damaged,
    finish_commits,
    free_name,
    rank_name,
    read_manifest,
    read_state,
)
from scalewright.checkpoint.store.bring import ranges_of
from scalewright.checkpoint.store.ranges import Ranges
from scalewright.checkpoint.verify import check_file, check_size, finite_first, verify
from scalewright.parallel.collectives import from_rank_zero, gather_json
from scalewright.parallel.mesh import Mesh
from scalewright.spec.common.untrusted import inside
from scalewright.spec.ends import ORIGIN, Ends
from scalewright.spec.errors import UserError, nearest
from scalewright.spec.placement import Box

OPEN = 64  # files at once: one of 512 ranks' is read from 1,024
Copies = list[tuple[StoredBox, list[int], list[int]]]  # stored box, where the part of it begins in the tensor, its size


class CheckpointReader:
    """A finished checkpoint, open for reading; files are opened when a box of theirs is wanted."""

    def __init__(self, folder: Path, verify_files: bool = True, fetch: Callable[[str], None] | None = None) -> None:
        """Reads manifest and state, which are always compared with COMMIT. `verify_files` compares each data file with
        its checksum when its first box is read; false where that has been done (`damage`), or a second reading would
        cost too much. `fetch` has a file there, by name, before it is opened. Raises UserError."""
        self.folder, self._verify_files, self._fetch = folder, verify_files, fetch
        self._ranges: dict[str, Ranges | None] = {}
        self.manifest, self.state = read_manifest(folder), read_state(folder)
        self._files: dict[str, object] = {}  # the newest OPEN
        self._checked: set[str] = set()
        self._copies: dict[tuple[StoredTensor, Box], Copies] = {}  # the same for all layers of a model

    def check_tokenizer(self, path: Path) -> None:
        """Raises UserError for another tokenizer.json than the one of the run's data, where that is known."""
        wanted = str((self.state.get("data") or {}).get("tokenizer"))
        if self._verify_files and len(wanted) == 64 and sha256(path.read_bytes()).hexdigest() != wanted:
            how = "copy it from the run's data, or add --no-verify"
            raise UserError("the tokenizer is not the one that the run was trained with", str(path), how)

    def names(self) -> list[str]:
        """The model's parameters alone, without buffers, optimizer states, islands and tensors of ranks."""
        return [name for name in self.manifest.tensors if not name.startswith(BESIDE_PARAMETERS)]

    def buffers(self) -> list[str]:
        """The buffers of a user's own module."""
        return [name.removeprefix(BUFFER) for name in self.manifest.tensors if name.startswith(BUFFER)]

    def read_buffer(self, name: str) -> Tensor | None:
        """A whole buffer; None when the checkpoint has none of this name."""
        if not self.has(BUFFER + name):
            return None
        stored = self.read(BUFFER + name)
        return torch.view_as_complex(stored) if name in self.state.get(COMPLEX, ()) else stored

    def read_of_rank(self, name: str, rank: int) -> Tensor | None:
        """A tensor that only this rank had; None when the checkpoint has none of this name."""
        stored = rank_name(name, rank)
        return self.read(stored) if self.has(stored) else None

    def optimizer_states(self) -> list[str]:
        """The optimizer's states, such as `exp_avg`."""
        kinds = (name.split("/")[1] for name in self.manifest.tensors if name.startswith(OPTIMIZER))
        return list(dict.fromkeys(kinds))

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds this tensor."""
        return name in self.manifest.tensors

    def stored_name(self, name: str) -> str:
        """The name of a parameter's tensor: a tied head is stored as the embedding."""
        return "embed.weight" if name == "head.weight" and not self.has(name) else name

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raises UserError unless every one of these tensors is there, in this shape, with its files."""
        wanted = {self._find(name, shape) for name, shape in shapes.items()}
        files = {box.file for stored in wanted for box in stored.boxes}
        for file in sorted(files):
            if problem := check_size(self.folder, file, self.manifest.files[file]):
                raise damaged(f"the checkpoint is damaged: {problem}", self.folder)

    def read(self, name: str, box: Box | None = None, shape: tuple[int, ...] | None = None) -> Tensor:
        """A tensor, or the part of it that `box` describes, on the CPU in its stored dtype. `shape` is the whole
        tensor's in the caller's model. Raises UserError for a tensor that isn't there, has another shape, or a hole."""
        stored = self._find(name, shape)
        offsets, sizes = box or ((0,) * len(stored.shape), stored.shape)
        copies = self.copies(stored, (tuple(offsets), tuple(sizes)))
        if sum(prod(lengths) for _, _, lengths in copies) != prod(sizes):  # before memory is taken for it
            raise damaged(f"tensor '{name}' is not covered by the files", self.folder)
        for part, lows, lengths in copies:
            if (ranges := self._in_store(part.file)) is not None:
                first = lows[0] - part.offset[0] if lows else 0
                ranges.want_rows(part.key or name, first, lengths[0] if lengths else 1)
            else:
                self._check(part.file)
        out = torch.empty(sizes, dtype=getattr(torch, stored.dtype))
        for part, lows, lengths in copies:
            region = _slices(lows, lengths, part.offset)
            out[_slices(lows, lengths, offsets)] = self._piece(part, part.key or name, region, out.dtype)
        return out

    def copies(self, stored: StoredTensor, box: Box) -> Copies:
        """The parts of stored boxes that a box of a tensor consists of."""
        if (copies := self._copies.get((stored, box))) is None:
            copies = self._copies[stored, box] = _copies(stored, *box)
        return copies

    def _find(self, name: str, shape: tuple[int, ...] | None) -> StoredTensor:
        if (stored := self.manifest.tensors.get(name)) is None:
            near = nearest(name, self.manifest.tensors)
            how = f"it has {near[0]}; is it another model's?" if near else "is it another model's?"
            raise UserError(f"the checkpoint has no tensor '{name}'", str(self.folder), how)
        if shape is not None and tuple(shape) != stored.shape:
            problem = f"tensor '{name}' is {list(stored.shape)} in the checkpoint but {list(shape)} in the model"
            raise UserError(problem, str(self.folder), "give the model that the checkpoint was made with")
        return stored

    def _piece(self, box: StoredBox, key: str, region: tuple[slice, ...], dtype: torch.dtype) -> Tensor:
        """A part of a stored box; raises UserError when the file is damaged, or holds something else."""
        try:
            handle = self._file(box.file)
            stored = handle.get_slice(key)
            if tuple(stored.get_shape()) != box.size:
                raise ValueError(f"'{key}' is {stored.get_shape()} instead of {list(box.size)}")
            piece: Tensor = stored[region] if region else handle.get_tensor(key)
            if piece.dtype != dtype:
                raise ValueError(f"'{key}' is {piece.dtype} instead of {dtype}")
            return piece
        except (SafetensorError, OSError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise damaged(f"cannot read {box.file}: {error}", self.folder) from None

    def _check(self, name: str) -> None:
        """Raises UserError unless a file's size and bytes are those that the manifest describes."""
        if name not in self._checked:
            check = check_file if self._verify_files else check_size
            if self._fetch is not None:
                self._fetch(name)
            if problem := check(self.folder, name, self.manifest.files[name]):
                raise damaged(f"the checkpoint is damaged: {problem}", self.folder)
            self._checked.add(name)

    def _in_store(self, name: str) -> Ranges | None:
        """A file that isn't on this node, or not all of it."""
        if name not in self._ranges:
            self._ranges[name] = ranges_of(self.folder, name, self.manifest.files[name])
        return self._ranges[name]

    def _file(self, name: str) -> Any:
        """A file of tensors, mapped."""
        if name not in self._files:
            if len(self._files) >= OPEN:
                del self._files[next(iter(self._files))]
            ranges = self._in_store(name)
            self._files[name] = safe_open(ranges.path if ranges else inside(self.folder, name), framework="pt")
        return self._files[name]


def _copies(stored: StoredTensor, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Copies:
    """The parts of stored boxes that a box consists of."""
    copies = []
    for part in stored.boxes:
        lows = [max(a, b) for a, b in zip(offsets, part.offset, strict=True)]
        ends = zip(offsets, sizes, part.offset, part.size, strict=True)
        lengths = [min(a + n, b + m) - low for (a, n, b, m), low in zip(ends, lows, strict=True)]
        if all(length > 0 for length in lengths):
            copies.append((part, lows, lengths))
    return copies


def _slices(lows: Sequence[int], lengths: Sequence[int], start: Sequence[int]) -> tuple[slice, ...]:
    """The region at `lows` in a box that begins at `start`."""
    ends = zip(lows, lengths, start, strict=True)
    return tuple(slice(low - first, low - first + length) for low, length, first in ends)


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint folder that a user means: a step folder, or the newest finite one of a run folder. Raises
    UserError when there is none."""
    path = Path(path)
    if checkpoints := checkpoints_at(path):
        return finite_first(checkpoints)[0]
    if find_foreign(path) is not None:
        how = f"run `scalewright convert {path} OUT`, and give OUT"
        raise UserError("a checkpoint of another trainer", str(path), how)
    raise UserError("no finished checkpoint there", str(path), "give a run folder or one of its checkpoints/step-*")


def text_files(path: Path) -> tuple[list[Path], Ends]:
    """The folders with the tokenizer's files of a model at `path`, and how its texts ended in training. Of a
    checkpoint: its own, its run's, that of the Hugging Face folder from which it began."""
    if (path / "config.json").is_file():
        return [path], Ends()
    step = find_checkpoint(path)
    state, folders = read_state(step), [step, step.parent.parent]
    if state.get("run", {}).get("init") != "random":
        folders += [folder / ORIGIN for folder in folders if (folder / ORIGIN / "config.json").is_file()]
    return folders, Ends.parse(state)


def newest_verified(root: Path, mesh: Mesh) -> tuple[Path | None, list[str]]:
    """The newest checkpoint under `checkpoints/` whose files are whole and whose numbers are finite, and the problems
    of newer ones. One that isn't finite is better than none. All ranks call it together and share the reading."""
    if mesh.rank == 0:
        finish_commits(root)
    checkpoints = committed(root) if mesh.rank == 0 else []
    in_turn = ([folder.name for folder in folders] for folders in (checkpoints, finite_first(checkpoints)))
    names, order = from_rank_zero(list(in_turn), mesh)
    rejected: list[str] = []
    for name in order:
        if (problem := damage(root / name, mesh)) is None:
            newer = names[: names.index(name)]
            passed = [n for n in newer if n in order[order.index(name) :]]
            return root / name, [*(f"{n}: its numbers aren't finite" for n in passed), *rejected]
        rejected.append(f"{name}: {problem}")
    return None, rejected


def damage(folder: Path, mesh: Mesh) -> str | None:
    """The first problem of a checkpoint, the same on every rank; they share the reading."""
    try:
        problems = verify(folder, mesh.rank, mesh.world)
    except UserError as error:
        problems = [error.what]
    return next((problem for ranks in gather_json(problems[:1], mesh) for problem in ranks), None)


def set_aside(root: Path, step: int) -> list[str]:
    """Renames checkpoints of steps after `step`, and returns their new names: the run goes on without them. A damaged
    one, or one of a future that was abandoned, would otherwise be the newest again: it would push better ones out when
    old ones are pruned."""
    later = [folder for folder in committed(root) if int(folder.name.split("-")[1]) > step]
    return [folder.rename(free_name(folder, "aside")).name for folder in later]
