"""A folder of DeepSpeed: its master weights in fp32, from the flat vectors that ZeRO cuts them into.

    mp_rank_00_model_states.pt              shapes in order, buffers; without ZeRO the weights themselves
    zero_pp_rank_<r>_..._optim_states.pt    rank r's part of the vector
    zero/<name>/fp32.pt                     a universal checkpoint: a parameter in each folder

    ZeRO 1, 2   one vector of all parameters, one after another, cut into a piece for each rank
                │ q ── k ── v ──│── o ── gate ──── pad │
    ZeRO 3      each parameter is cut for itself, and padded: rank r has its r-th part of every one
                │ q½ k½ v½ o½ │ q½ k½ v½ pad o½ │

As `utils/zero_to_fp32.py` of DeepSpeed puts them together. Tensor and pipeline parallelism of its own are in universal
checkpoints alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

from scalewright.checkpoint.foreign.index import ITEM_BYTES, Index, Shape, Stored, is_weight
from scalewright.checkpoint.foreign.torch_file import TorchFile, damaged, open_file
from scalewright.spec.common.pickles import Made
from scalewright.spec.common.untrusted import inside
from scalewright.spec.errors import UserError

UNIVERSAL, UNIVERSAL_FILE = "zero", "fp32.pt"
MODEL, OPTIMIZER = "*model_states.pt", "*optim_states.pt"
FLAT = {1: "single_partition_of_fp32_groups", 2: "single_partition_of_fp32_groups", 3: "fp32_flat_groups"}


def read(folder: Path) -> Index:
    """Where every weight of the folder lies; raises UserError."""
    index = Index()
    if (folder / UNIVERSAL).is_dir():
        _universal(index, folder)
        return index
    models = [path.name for path in _in_order(folder, MODEL)]
    if any(name.startswith("layer_") or re.search(r"mp_rank_0*[1-9]", name) for name in models):
        problem = "DeepSpeed's own tensor or pipeline parallelism is read from universal checkpoints alone"
        raise UserError(problem, str(folder), "run its ds_to_universal on this folder first")
    optimizers = [path.name for path in _in_order(folder, OPTIMIZER)]
    with _Saved(folder, models[0]) as first:
        if not optimizers:
            _whole_weights(index, first, None)
            return index
        shapes = _shapes(first)
        _whole_weights(index, first, set(_get(first.content, "buffer_names", [])))
        shared = _get(first.content, "shared_params", {})
    parts = [_partition(folder, name) for name in optimizers]
    if {part.ranks for part in parts} != {len(parts)}:
        raise damaged(folder, f"ZeRO's {parts[0].ranks} ranks wrote {len(parts)} files of states here")
    if parts[0].stage == 3:
        _by_parameter(index, folder, {name: s for group in shapes for name, s in group.items()}, parts)
    else:
        _by_vector(index, folder, shapes, parts)
    _frozen(index, folder, models if parts[0].stage == 3 else models[:1])
    for name, same_as in dict(shared).items():
        if same_as in index.tensors:
            index.tensors[str(name)] = index.tensors[same_as]
    return index


def _universal(index: Index, folder: Path) -> None:
    """A file for each parameter; from ZeRO 3 a row of numbers, whose shape is in the model's states."""
    shapes: dict[str, Shape] = {}
    for path in _in_order(folder, MODEL)[:1]:
        with _Saved(folder, path.name) as states:
            if "param_shapes" in states.content:
                shapes = {name: shape for group in _shapes(states) for name, shape in group.items()}
    for path in sorted((folder / UNIVERSAL).glob(f"*/{UNIVERSAL_FILE}")):
        name = path.parent.name
        with _Saved(folder, f"{UNIVERSAL}/{name}/{UNIVERSAL_FILE}") as saved:
            stored = saved.stored(_get(saved.content, "param", saved.content))
            shape = shapes.get(name, stored.shape)
            if shape == stored.shape or len(stored.shape) != 1 or prod(shape) > prod(stored.shape):
                index.whole(name, saved.name, stored)
            else:
                index.add(name, shape, stored.dtype, flat=True)
                row = Stored(stored.dtype, (prod(shape),), stored.start, stored.strides)
                index.piece(name, (0,), saved.name, row)


class _Saved:
    """A file of torch.save in the folder, open while its tensors are looked up."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.path = name, inside(folder, name)
        self._file: IO[bytes] = open_file(self.path)
        self._saved = TorchFile(self.path, self._file)
        self.content = self._saved.content

    def __enter__(self) -> _Saved:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def stored(self, tensor: Any) -> Stored:
        """Where a tensor lies; raises UserError for what is none."""
        if (stored := self._saved.stored(tensor)) is None:
            raise damaged(self.path, "a tensor isn't one")
        return stored


@dataclass(frozen=True)
class _Partition:
    """A rank's part of the master weights: a row of numbers for each group of parameters."""

    file: str
    stage: int
    ranks: int
    rows: list[Stored]
    paddings: Any  # behind each parameter of each group; None: none


def _partition(folder: Path, name: str) -> _Partition:
    with _Saved(folder, name) as saved:
        states = _get(saved.content, "optimizer_state_dict", {})
        stage, ranks = _number(_get(states, "zero_stage", 0)), _get(states, "partition_count", 0)
        ranks = max(map(_number, ranks)) if isinstance(ranks, list) and ranks else _number(ranks)
        rows = _get(states, FLAT.get(stage, ""), [])
        stored = [saved.stored(row) for row in (rows if isinstance(rows, list) else [rows])]
        if not stored or any(len(row.shape) != 1 or row.strides != (1,) for row in stored):
            raise damaged(saved.path, f"it has no master weights of ZeRO (stage {stage})")
        return _Partition(name, stage, ranks, stored, _get(states, "param_alignment_paddings", None))


def _by_vector(index: Index, folder: Path, shapes: list[dict[str, Shape]], parts: list[_Partition]) -> None:
    """ZeRO 1 and 2: a vector for each group, cut by rank."""
    if any(len(part.rows) != len(shapes) for part in parts):
        raise damaged(folder, "its groups of parameters differ from their shapes")
    for group, names in enumerate(shapes):
        paddings = parts[0].paddings[group] if isinstance(parts[0].paddings, list) else [0] * len(names)
        offset = 0
        for (name, shape), padding in zip(names.items(), paddings, strict=True):
            index.add(name, shape, parts[0].rows[group].dtype, flat=True)
            begin = 0
            for part in parts:
                _overlap(index, name, part.file, part.rows[group], begin, offset, prod(shape), 0)
                begin += part.rows[group].shape[0]
            offset += prod(shape) + _number(padding)


def _overlap(index: Index, name: str, file: str, row: Stored, begin: int, first: int, count: int, at: int) -> None:
    """What a row from `begin` of a vector has of `count` elements from `first`, which are a parameter's from `at`."""
    low, high = max(first, begin), min(first + count, begin + row.shape[0])
    if low < high:
        start = row.start + (low - begin) * ITEM_BYTES[row.dtype]
        index.piece(name, (at + low - first,), file, Stored(row.dtype, (high - low,), start, (1,)))


def _by_parameter(index: Index, folder: Path, shapes: dict[str, Shape], parts: list[_Partition]) -> None:
    """ZeRO 3: every parameter cut into equal parts, the last ones padded."""
    offset = 0
    for name, shape in shapes.items():
        index.add(name, shape, parts[0].rows[0].dtype, flat=True)
        size = -(-prod(shape) // len(parts))
        for rank, part in enumerate(parts):
            count = max(0, min(size, prod(shape) - rank * size))
            begin = 0
            for row in part.rows:  # a rank's groups are one vector
                _overlap(index, name, part.file, row, begin, offset, count, rank * size)
                begin += row.shape[0]
        offset += size


def _frozen(index: Index, folder: Path, models: list[str]) -> None:
    """Parameters that don't train: whole, or in ZeRO 3 a part in each rank's file."""
    for rank, file in enumerate(models):
        with _Saved(folder, file) as saved:
            shapes = _get(saved.content, "frozen_param_shapes", None) or {}
            for name, shape in shapes.items():
                stored = saved.stored(_get(saved.content, "frozen_param_fragments", {}).get(name))
                count = prod(stored.shape)
                left = max(0, prod(shape) - rank * count)
                if rank == 0:
                    index.add(name, tuple(shape), stored.dtype, flat=True)
                part = Stored(stored.dtype, (min(count, left),), stored.start, (1,))
                index.piece(name, (min(rank * count, prod(shape)),), file, part)


def _whole_weights(index: Index, saved: _Saved, names: set[str] | None) -> None:
    """The tensors of `module`, or those of these names."""
    module = _get(saved.content, "module", {})
    for name, tensor in module.items():
        if (names is None or name in names) and is_weight(str(name)) and isinstance(tensor, Made):
            index.whole(str(name), saved.name, saved.stored(tensor))


def _shapes(saved: _Saved) -> list[dict[str, Shape]]:
    """The shape of each parameter of each group, in the order of the vector."""
    groups = _get(saved.content, "param_shapes", None)
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise damaged(saved.path, "it has no shapes of ZeRO's parameters")
    return [{str(name): tuple(map(_number, shape)) for name, shape in group.items()} for group in groups]


def _in_order(folder: Path, pattern: str) -> list[Path]:
    """Files by the numbers in their names: rank 10 behind rank 9."""
    return sorted(folder.glob(pattern), key=lambda p: ([int(n) for n in re.findall(r"\d+", p.name)], p.name))


def _get(record: Any, key: str, default: Any) -> Any:
    return record.get(key, default) if isinstance(record, dict) else default


def _number(value: Any) -> int:
    """A whole number, or an enumeration's value."""
    if isinstance(value, Made) and len(value.args) == 1:
        value = value.args[0]
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError("not a number")
    return value
