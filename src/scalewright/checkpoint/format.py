"""A checkpoint on disk: its files, the form of its manifest and state, and when it exists.

    checkpoints/step-00000010/
      manifest.json                     every tensor as boxes: which part of it lies in which file
      state.json                        step, samples, tokens, the optimizer's numbers, each source's place in
                                        the data, the run file as it was resolved: all but tensors
      model-00000-000.safetensors       rank 0's boxes of the weights (fp32), at most 2 GiB a file; buffers of
                                        a user's own module, whole and in their own dtype
      optimizer-00000-000.safetensors   its boxes of the optimizer's state, and what it has alone
      COMMIT                            written last: checksums of the two .json files; without it the
                                        folder does not exist for anyone

Boxes are parts of true tensors, so any layout reads any other's checkpoint. Nothing here is a pickle. Checksums find
what a disk did to a file; the form of the keys that readers rely on is checked, too, and finds what an edit did. So
is whether a tensor's boxes overlap: one that is counted twice would hide a hole elsewhere.

    ┌───┬───────┐   cut along dimension 1:  ┌───┐ ┌───────┐   each part along dimension 0:  ┌───┐ ┌───────┐
    │ a │   b   │                           │ a │ │   b   │                                 └───┘ └───────┘
    ├───┼───────┤                           ├───┤ ├───────┤                                 ┌───┐ ┌───────┐
    │ c │   d   │                           │ c │ │   d   │                                 └───┘ └───────┘
    └───┴───────┘                           └───┘ └───────┘   one box is left in each part: none overlap

Boxes that a straight cut parts don't overlap. Sharding by rows, columns and experts makes boxes that a few rounds of
cuts part entirely; boxes left together count as an overlap. n boxes of d dimensions take O(LEVELS * d * n log n),
whatever a manifest holds; comparing all pairs would take hours for a damaged one.
"""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, GetCoreSchemaHandler

from scalewright.spec.base import Spec
from scalewright.spec.common.untrusted import inside, parse_json, read_bytes
from scalewright.spec.errors import UserError, reason, shortened
from scalewright.spec.placement import Box

MANIFEST, STATE, COMMIT = "manifest.json", "state.json", "COMMIT"
VERSION = 1
HEAD_BYTES = 1 << 30  # a manifest of 512 ranks and 70B parameters has 213 MB
COMMIT_BYTES = 1 << 16
LARGEST = 1 << 62
ITEM_BYTES = {
    **dict.fromkeys(("float64", "int64", "uint64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"), 1),
}
COMPLEX = "complex_buffers"  # in state.json: the buffers whose last dimension is (real, imaginary)
# Prefixes of names in a manifest; parameters have none. RANK: a tensor that one rank has, rank/00003/NAME.
OPTIMIZER, BUFFER, RANK = "optimizer/", "buffer/", "rank/"
OUTER, ISLAND = "outer/", "island/"  # of runs with islands: outer/<kind>/<name>, island/<i>/<kind>/<name>
BESIDE_PARAMETERS = (OPTIMIZER, BUFFER, RANK, OUTER, ISLAND)
STEP_FOLDER = re.compile(r"^step-([0-9]{8,})\Z")


@dataclass(frozen=True)
class StoredBox:
    """A part of a tensor, and the file and key that hold it."""

    file: str
    key: str
    offset: tuple[int, ...]
    size: tuple[int, ...]


@dataclass(frozen=True)
class StoredTensor:
    """A whole tensor as the boxes that cover it."""

    shape: tuple[int, ...]
    dtype: str
    boxes: tuple[StoredBox, ...]


@dataclass(frozen=True)
class StoredFile:
    """Size and checksum that a file must have."""

    bytes: int
    checksum: str  # "crc32:89abcdef"


@dataclass(frozen=True)
class Manifest:
    """A checkpoint's content. Tensors: parameters by name, `optimizer/<state>/<name>`, `buffer/<name>`,
    those of islands, and `rank/<rank>/<name>` of what one rank has alone."""

    step: int
    samples: int
    run_id: str
    model: dict[str, object]
    layout: dict[str, object]
    tensors: dict[str, StoredTensor]
    files: dict[str, StoredFile]
    version: int = VERSION


def rank_name(name: str, rank: int) -> str:
    """The name in a manifest of a tensor that only one rank has."""
    return f"{RANK}{rank:05d}/{name}"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a committed checkpoint, as COMMIT describes it, its numbers and file names checked. Raises
    UserError when the folder isn't a finished checkpoint, or its manifest is damaged."""
    try:
        data = parse_json(_read_head(folder, MANIFEST))
        version = whole(data["version"], "version")
        if version != VERSION:
            how = "read it with the release that wrote it"
            raise UserError(f"checkpoint version {version} is not {VERSION}", str(folder), how)
        manifest = Manifest(
            step=whole(data["step"], "step"),
            samples=whole(data["samples"], "samples"),
            run_id=str(data["run_id"]),
            model=dict(data["model"]),
            layout=dict(data["layout"]),
            tensors={name: stored_tensor(entry) for name, entry in data["tensors"].items()},
            files={n: StoredFile(whole(f["bytes"], "bytes"), str(f["checksum"])) for n, f in data["files"].items()},
        )
        check_bounds(manifest)
        return manifest
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # from any damage
        raise damaged(f"damaged manifest: {_in_words(error)}", folder / MANIFEST) from None


def damaged(problem: str, place: Path) -> UserError:
    """The error for a checkpoint that can't be read: a damaged one, or one that a run removed meanwhile."""
    folder = place.parent if place.name == MANIFEST else place
    if committed_at(folder) is None:
        how = "read a newer one; a run keeps as many as its checkpoint.keep"
        return UserError("the checkpoint is gone: it was removed while it was read", str(folder), how)
    return UserError(problem, str(place), "use an older checkpoint")


def committed_at(folder: Path) -> tuple[int, int] | None:
    """What changes when a checkpoint is replaced by another of its step; None: there is none (any more)."""
    try:
        commit = (folder / COMMIT).stat()
    except OSError:
        return None
    return commit.st_ino, commit.st_mtime_ns


def remove(folder: Path) -> None:
    """Removes a checkpoint, COMMIT first: for readers it is then gone, not damaged. Raises OSError."""
    if folder.is_symlink():  # what it leads to isn't the run's
        folder.unlink()
        return
    (folder / COMMIT).unlink(missing_ok=True)
    shutil.rmtree(folder)


def _in_words(error: Exception) -> str:
    """The problem of a manifest, from the error of the code that reads it."""
    if isinstance(error, KeyError):
        return f"'{error.args[0]}' is missing"
    if isinstance(error, ValueError):
        return str(error)
    return "an entry has another type than it should (a list instead of an object, say)"


def stored_tensor(entry: Mapping[str, Any]) -> StoredTensor:
    """A tensor from its entry in a manifest; raises an error for a damaged one."""
    boxes = tuple(
        StoredBox(str(b["file"]), str(b["key"]), _sizes(b["offset"]), _sizes(b["size"])) for b in entry["boxes"]
    )
    return StoredTensor(_sizes(entry["shape"]), str(entry["dtype"]), boxes)


def whole(value: Any, name: str) -> int:
    """A whole number of a manifest, from 0 to 2^62; raises ValueError (NaN, -1, 1.5, true, "7")."""
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"{name} is {str(value)[:40]}")
    return value


def _sizes(values: Any) -> tuple[int, ...]:
    return tuple(whole(value, "a size") for value in values)


def check_bounds(manifest: Manifest) -> None:
    """Raises ValueError for boxes outside their tensor, boxes that overlap, or boxes with more numbers than their files
    have bytes for. Tensors read by a manifest are then never larger than the files on the disk, and boxes with as many
    numbers as their tensor cover it."""
    for name, tensor in manifest.tensors.items():
        if (width := ITEM_BYTES.get(tensor.dtype)) is None:
            raise ValueError(f"tensor '{name}' has the dtype '{tensor.dtype[:40]}'")
        held = 0
        for box in tensor.boxes:
            if not len(box.offset) == len(box.size) == len(tensor.shape):
                raise ValueError(f"tensor '{name}' has a box of another number of dimensions")
            if any(o + s > n for o, s, n in zip(box.offset, box.size, tensor.shape, strict=True)):
                raise ValueError(f"tensor '{name}' has a box outside of it")
            if box.file not in manifest.files:
                raise ValueError(f"tensor '{name}' lies in '{box.file[:80]}', which is not among the files")
            held += prod(box.size) * width
        if held > sum(manifest.files[file].bytes for file in {box.file for box in tensor.boxes}):
            raise ValueError(f"tensor '{name}' is larger than its files")
        if not are_disjoint([(box.offset, box.size) for box in tensor.boxes]):
            raise ValueError(f"tensor '{name}' has boxes that overlap")


def uncovered(manifest: Manifest) -> list[str]:
    """The first tensor that its boxes don't cover, in words; empty when they cover all (see check_bounds)."""
    tensors = manifest.tensors.items()
    names = [name for name, t in tensors if sum(prod(box.size) for box in t.boxes) != prod(t.shape)]
    others = f", nor are {len(names) - 1} others" if len(names) > 1 else ""
    return [f"tensor '{names[0]}' is not covered by the files{others}"] if names else []


def read_state(folder: Path) -> dict[str, Any]:
    """The state without tensors: step, samples, tokens and the optimizer's scalars."""
    text = _read_head(folder, STATE)
    try:
        State.parse(state := parse_json(text))
        return dict(state)
    except (ValueError, UserError) as error:
        raise damaged(f"damaged {STATE}: {shortened(reason(error))}", folder) from None


def _read_head(folder: Path, name: str) -> bytes:
    """The manifest's or the state's bytes, compared with COMMIT; raises UserError."""
    expected = _committed_heads(folder)[name]
    try:
        content = read_bytes(inside(folder, name), HEAD_BYTES)
    except FileNotFoundError:
        raise damaged(f"{name} is missing", folder) from None
    except (OSError, ValueError) as error:
        raise damaged(f"{name} cannot be read ({error})", folder) from None
    if len(content) != expected.bytes:
        raise damaged(f"{name} has {len(content)} bytes instead of {expected.bytes}", folder)
    if f"crc32:{zlib.crc32(content):08x}" != expected.checksum:
        raise damaged(f"{name} is damaged (its checksum differs)", folder)
    return content


def _committed_heads(folder: Path) -> dict[str, StoredFile]:
    """Size and checksum of the manifest and the state by COMMIT; raises UserError."""
    if folder.is_dir() and committed_at(folder) is None:
        how = "give a step-* folder that has one"
        raise UserError(f"not a finished checkpoint: it has no {COMMIT}", str(folder), how)
    try:
        files = parse_json(read_bytes(inside(folder, COMMIT), COMMIT_BYTES))["files"]
        return {name: StoredFile(**files[name]) for name in (MANIFEST, STATE)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, UserError):
            raise
        raise damaged(f"{COMMIT} is damaged", folder) from None


def step_folder(root: Path, step: int) -> Path:
    """Where a step's checkpoint lies under `checkpoints/`."""
    return root / f"step-{step:08d}"


def committed(root: Path) -> list[Path]:
    """The finished checkpoints under `checkpoints/`, newest first."""
    if not root.is_dir():
        return []
    folders = [p for p in root.iterdir() if STEP_FOLDER.match(p.name) and (p / COMMIT).exists()]
    return sorted(folders, key=lambda p: int(p.name.split("-")[1]), reverse=True)


def checkpoints_at(path: Path) -> list[Path]:
    """A checkpoint itself, or the finished ones of a run's folder, or of `checkpoints/`."""
    return [path] if (path / MANIFEST).exists() else committed(path / "checkpoints") or committed(path)


def free_name(folder: Path, suffix: str) -> Path:
    """A name beside a folder, to keep it under: `folder.suffix-1`, or the first of these that is free."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.{suffix}-{number}")).exists():
        number += 1
    return aside


Count = Annotated[int, Field(ge=0, le=1 << 62)]
Keys = Annotated[dict[str, object], Field(default_factory=dict)]
Pair = Annotated[list[Count], Field(min_length=2, max_length=2)]
Number = float | dict[str, object]  # of an optimizer (train/state/group_state.py)


class _Form(Spec):
    """Any number and any text, as a state has them: a product that underflows, the inf of a schedule."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Without the rules of `spec/scalars.py`, which are for what a person writes."""
        return handler(source)


class _Data(_Form):
    segments: Annotated[list[dict[str, object]], Field(min_length=1)] | None = None
    paths: dict[str, str] = Field(default_factory=dict)


class _Run(_Form):
    layout: Keys
    train: Keys
    data: Keys


class State(_Form):
    """All of it. A key may be missing, and others, as those of a newer release, may be anything."""

    step: Count = 0
    samples: Count = 0
    tokens: Count = 0
    optimizer: dict[str, dict[str, Number]] = Field(default_factory=dict)
    run: _Run | None = None
    data: _Data = _Data()
    guard: Keys
    left_out: list[Pair] = Field(default_factory=list)
    schedule_unit: Annotated[float, Field(gt=0)] | None = None
    valid_loss: float | None = None


LEVELS = 16  # rounds of cuts; ours need one for each dimension that is sharded


def are_disjoint(boxes: Sequence[Box]) -> bool:
    """Whether no two of these boxes share an element; empty boxes share none with any."""
    groups = [[(offset, size) for offset, size in boxes if all(size)]]
    for _ in range(LEVELS):
        groups = [part for group in groups if len(group) > 1 for part in _cut(group)]
    return not any(len(group) > 1 for group in groups)


def _cut(boxes: list[Box]) -> list[list[Box]]:
    """The boxes in groups between the cuts along the first dimension that has any; one group: none has."""
    for dim in range(len(boxes[0][0])):
        boxes = sorted(boxes, key=lambda box: box[0][dim])
        groups, end = [], -1
        for offset, size in boxes:
            if offset[dim] >= end:
                groups.append([(offset, size)])
            else:
                groups[-1].append((offset, size))
            end = max(end, offset[dim] + size[dim])
        if len(groups) > 1:
            return groups
    return [boxes]
