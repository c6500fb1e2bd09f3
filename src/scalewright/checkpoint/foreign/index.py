"""Where the numbers of a tensor lie in another trainer's files: what the confined reader answers, as JSON.

    {"files": ["__0_0.distcp", ...],
     "tensors": {"layers.0.attention.wq.weight": {"shape": [64, 64], "dtype": "bfloat16", "flat": false,
                  "pieces": [[[0, 0], [32, 64], 0, 6080, [64, 1]], ...]}}, offsets, sizes, file, byte, strides
     "facts": {...}}                                  settings of the model that lie there, as plain values

A flat tensor is cut as one long row of its elements. Both sides import this file, which needs nothing but Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

# Bytes of an element, by the name that torch has for its type
ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip
SAFETENSORS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64"}
Shape = tuple[int, ...]
# What isn't a weight: words with which a name begins, or that it has.
BEGINNINGS = ("optimizer", "optim", "chained_", "lr_scheduler", "dataloader", "train_state", "rng_state")
MIDDLES = ("_extra_state", "rng_state", "rerun_state", "rotary_emb.inv_freq", "freqs_cis", "rope.cache")


def is_weight(name: str) -> bool:
    """Whether a name may be that of a weight: not an optimizer's state, a scheduler or a table of RoPE."""
    return not name.startswith(BEGINNINGS) and not any(word in name for word in MIDDLES)


def contiguous(shape: Shape) -> Shape:
    """The strides of a tensor whose elements lie row after row."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


@dataclass(frozen=True)
class Stored:
    """A tensor of one file: where its first byte lies, and the steps from there."""

    dtype: str
    shape: Shape
    start: int  # bytes from the file's beginning
    strides: Shape  # in elements


class Entry(TypedDict):
    """A tensor and its pieces: offsets, sizes, the file's number, its first byte there, strides."""

    shape: list[int]
    dtype: str
    flat: bool
    pieces: list[tuple[list[int], list[int], int, int, list[int]]]


@dataclass
class Index:
    """What the reader found in a folder."""

    tensors: dict[str, Entry] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, shape: Shape, dtype: str, *, flat: bool = False) -> None:
        """A tensor, whose pieces follow."""
        self.tensors[name] = {"shape": list(shape), "dtype": dtype, "flat": flat, "pieces": []}

    def piece(self, name: str, offsets: Shape, file: str, stored: Stored, sizes: Shape | None = None) -> None:
        """A box of a tensor that begins at `offsets`, of the size that is stored unless `sizes` differs."""
        number = self._numbers.setdefault(file, len(self._numbers))
        if number == len(self.files):
            self.files.append(file)
        box = list(offsets), list(sizes or stored.shape)
        self.tensors[name]["pieces"].append((*box, number, stored.start, list(stored.strides)))

    def whole(self, name: str, file: str, stored: Stored) -> None:
        """A tensor in one piece."""
        self.add(name, stored.shape, stored.dtype)
        self.piece(name, (0,) * len(stored.shape), file, stored)

    def dump(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {"tensors": self.tensors, "files": self.files, "facts": self.facts}
