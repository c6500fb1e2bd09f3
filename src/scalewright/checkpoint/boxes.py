"""Tensors as boxes: which part of each lies in which file, in few words, and whether the parts make a whole.

    layers.0.attention.q.weight, ... layers.79.attention.q.weight: of each the rows 16 to 31, in this file

    {"names": [["layers.*.attention.q.weight", [0, 80, 1]]], "dtype": "float32",
     "shape": [8192, 8192], "offset": [16, 0], "size": [16, 8192]}

`*` stands for the name's first number between dots, [first, count, step] for its values, as many as it takes. A rank of
ZeRO-3 has as many entries as its model has shapes: 2 KB where its boxes are 2,000. What holds for many layers is read,
checked and looked up once, since one `StoredTensor` stands for all that lie in the same boxes of the same files.

A box that is counted twice would hide a hole elsewhere, so that none may overlap:

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
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from scalewright.spec.placement import Box

LARGEST = 1 << 62
MOST_NUMBERS = 1 << 22  # that patterns of names stand for: 1,000 times a large model's
DTYPES = {  # torch's name: safetensors' name, bytes
    "float64": ("F64", 8), "int64": ("I64", 8), "uint64": ("U64", 8),
    "float32": ("F32", 4), "int32": ("I32", 4), "uint32": ("U32", 4),
    "float16": ("F16", 2), "bfloat16": ("BF16", 2), "int16": ("I16", 2), "uint16": ("U16", 2),
    "int8": ("I8", 1), "uint8": ("U8", 1), "bool": ("BOOL", 1),
    "float8_e4m3fn": ("F8_E4M3", 1), "float8_e5m2": ("F8_E5M2", 1),
}  # fmt: skip
NUMBER = re.compile(r"(?<![^./])(?:0|[1-9][0-9]{0,8})(?![^.])")
Runs = tuple[tuple[int, int, int], ...]  # (first, count, step); empty: a name without a number


@dataclass(frozen=True)
class StoredBox:
    """A part of a tensor, and the file that holds it."""

    file: str
    offset: tuple[int, ...]
    size: tuple[int, ...]
    key: str = ""  # in a file of version 1; since then the tensor's name


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A whole tensor as the boxes that cover it; one for all that lie in the same ones."""

    shape: tuple[int, ...]
    dtype: str
    boxes: tuple[StoredBox, ...]


Part = tuple[tuple[int, ...], str, StoredBox]  # shape and dtype of a tensor, and where a part of it lies


def pack(held: Iterable[tuple[str, str, tuple[int, ...], Box]]) -> list[dict[str, object]]:
    """The entries of a file's boxes, each (name, dtype, shape of the whole tensor, box)."""
    groups: dict[tuple[object, ...], dict[tuple[str, bool], list[int]]] = defaultdict(dict)
    for name, dtype, shape, (offset, size) in held:
        names = groups[dtype, shape, offset, size]
        if (number := NUMBER.search(name)) is None or "*" in name:
            names[name, False] = []
        else:
            pattern = f"{name[: number.start()]}*{name[number.end() :]}"
            names.setdefault((pattern, True), []).append(int(number[0]))
    return [
        {
            "names": [[name, *_runs(numbers)] if numbered else name for (name, numbered), numbers in names.items()],
            **dict(zip(("dtype", "shape", "offset", "size"), key, strict=True)),
        }
        for key, names in groups.items()
    ]


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == 1:
            runs[-1][1:] = [2, number - runs[-1][0]]
        elif runs and number == runs[-1][0] + runs[-1][1] * runs[-1][2]:
            runs[-1][1] += 1
        else:
            runs.append([number, 1, 1])
    return runs


def unpack(files: Mapping[str, Mapping[str, Any]]) -> dict[str, StoredTensor]:
    """The tensors of all files, from their entries in a manifest. Raises ValueError, LookupError or TypeError
    for damaged ones, and where boxes overlap."""
    parts: dict[str, dict[Runs, list[Part]]] = defaultdict(lambda: defaultdict(list))
    for file, entry in files.items():
        for boxes in entry.get("boxes", ()):
            box = StoredBox(file, sizes(boxes["offset"]), sizes(boxes["size"]))
            part = sizes(boxes["shape"]), str(boxes["dtype"]), box
            for named in boxes["names"]:
                name, runs = (named, []) if isinstance(named, str) else (str(named[0]), named[1:])
                read = tuple((whole(a, "a number"), whole(n, "a count"), whole(d, "a step")) for a, n, d in runs)
                parts[name][read].append(part)
    if sum(count for by_runs in parts.values() for runs in by_runs for _, count, _ in runs) > MOST_NUMBERS:
        raise ValueError(f"it names more than {MOST_NUMBERS:,} tensors")
    tensors: dict[str, StoredTensor] = {}
    for pattern, by_runs in parts.items():
        for name, tensor in _named(pattern, by_runs):
            if tensors.setdefault(name, tensor) is not tensor:
                raise ValueError(f"tensor '{name[:80]}' is listed twice")
    check_bounds(tensors, {file: entry["bytes"] for file, entry in files.items()})
    return tensors


def _named(pattern: str, by_runs: Mapping[Runs, list[Part]]) -> Iterator[tuple[str, StoredTensor]]:
    """The tensors of one pattern."""
    holders: dict[int | None, list[Runs]] = defaultdict(list)
    for runs in by_runs:
        for first, count, step in runs:
            for index in range(count):
                holders[first + index * step].append(runs)
        if not runs:
            holders[None].append(runs)
    made: dict[tuple[Runs, ...], StoredTensor] = {}
    for number, held_by in holders.items():
        name = pattern if number is None else pattern.replace("*", str(number), 1)
        if (key := tuple(held_by)) not in made:
            held = [part for runs in held_by for part in by_runs[runs]]
            if len({part[:2] for part in held}) > 1:
                raise ValueError(f"tensor '{name[:80]}' has two shapes or types")
            shape, dtype, _ = held[0]
            made[key] = StoredTensor(shape, dtype, tuple(box for _, _, box in held))
        yield name, made[key]


def whole(value: Any, name: str) -> int:
    """A whole number of a manifest, from 0 to 2^62; raises ValueError (NaN, -1, 1.5, true, "7")."""
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"{name} is {str(value)[:40]}")
    return value


def sizes(values: Any) -> tuple[int, ...]:
    """Whole numbers."""
    return tuple(whole(value, "a size") for value in values)


def distinct(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Each with the first of its names."""
    first: dict[StoredTensor, str] = {}
    for name, tensor in tensors.items():
        first.setdefault(tensor, name)
    return {name: tensor for tensor, name in first.items()}


def check_bounds(tensors: Mapping[str, StoredTensor], files: Mapping[str, int]) -> None:
    """Raises ValueError for boxes outside their tensor, boxes that overlap, or boxes with more numbers than their files
    (bytes by name) have room for. Tensors read by a manifest are then never larger than the files on the disk, and
    boxes with as many numbers as their tensor cover it."""
    for name, tensor in distinct(tensors).items():
        if (kind := DTYPES.get(tensor.dtype)) is None:
            raise ValueError(f"tensor '{name}' has the dtype '{tensor.dtype[:40]}'")
        held = 0
        for box in tensor.boxes:
            if not len(box.offset) == len(box.size) == len(tensor.shape):
                raise ValueError(f"tensor '{name}' has a box of another number of dimensions")
            if any(o + s > n for o, s, n in zip(box.offset, box.size, tensor.shape, strict=True)):
                raise ValueError(f"tensor '{name}' has a box outside of it")
            if box.file not in files:
                raise ValueError(f"tensor '{name}' lies in '{box.file[:80]}', which is not among the files")
            held += prod(box.size) * kind[1]
        if held > sum(files[file] for file in {box.file for box in tensor.boxes}):
            raise ValueError(f"tensor '{name}' is larger than its files")
        if not are_disjoint([(box.offset, box.size) for box in tensor.boxes]):
            raise ValueError(f"tensor '{name}' has boxes that overlap")


def uncovered(tensors: Mapping[str, StoredTensor]) -> list[str]:
    """The first tensor that its boxes don't cover, in words; empty when they cover all (see check_bounds)."""
    holes = {t for t in set(tensors.values()) if sum(prod(box.size) for box in t.boxes) != prod(t.shape)}
    names = [name for name, tensor in tensors.items() if tensor in holes]
    others = f", nor are {len(names) - 1} others" if len(names) > 1 else ""
    return [f"tensor '{names[0]}' is not covered by the files{others}"] if names else []


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
