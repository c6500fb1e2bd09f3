"""The bytes of a safetensors file before there are numbers: its header, and where each tensor lies.

    8 bytes        header                                              the tensors, one after the other
    its length     {"__metadata__": ..., "a": {dtype, shape, data_offsets: [begin, end]}, ...}

In the order that safetensors itself writes, so that both make the same bytes: types of more bytes come first (each
tensor is aligned then), and names in their order; the header is filled up with spaces to a multiple of 8 bytes.
Source: https://github.com/huggingface/safetensors, safetensors/src/tensor.rs (`prepare`), Apache-2.0.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from math import prod

# torch's names and the format's, in the order in which safetensors compares them
NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "float8_e5m2": "F8_E5M2", "float8_e4m3fn": "F8_E4M3", "int16": "I16",
    "uint16": "U16", "float16": "F16", "bfloat16": "BF16", "int32": "I32", "uint32": "U32", "float32": "F32",
    "float64": "F64", "int64": "I64", "uint64": "U64",
}  # fmt: skip
_RANK = {name: number for number, name in enumerate(NAMES)}


def lay_out(
    tensors: Mapping[str, tuple[str, tuple[int, ...], int]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """(the file's beginning, each tensor's first byte) of tensors (dtype, shape, bytes of a number) by key. Raises
    KeyError for a dtype that the format lacks."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    begins: dict[str, int] = {}
    end = 0
    for key in sorted(tensors, key=lambda key: (-_RANK[tensors[key][0]], key)):
        dtype, shape, item = tensors[key]
        begins[key], end = end, end + prod(shape) * item
        header[key] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [begins[key], end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    return struct.pack("<Q", len(text)) + text, {key: start + begin for key, begin in begins.items()}
