"""A folder of nanotron: a safetensors file for each parameter and tensor-parallel rank.

    checkpoint_metadata.json    its version
    model_config.json           the model's settings
    model/model/decoder/3/pp_block/attn/qkv_proj/model_weight_pp-rank-0-of-1_tp-rank-1-of-2.safetensors
        "data"              this rank's part
        metadata            unsharded_shape: "(96, 48)"
                            local_global_slices_pairs: "0,24,None|None,None,None#24,48,None|None,None,None;.."
                            rows 0 to 24 here are rows 24 to 48 of the whole, and so on

q, k and v (gate and up) are fused, and each of them is cut for itself: the pairs of slices say where each
part goes. Safetensors headers are JSON, read here; there is no pickle among the weights.
"""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

from scalewright.checkpoint.foreign.index import ITEM_BYTES, SAFETENSORS, Index, Shape, Stored, contiguous
from scalewright.checkpoint.foreign.torch_file import damaged
from scalewright.spec.common.untrusted import inside, open_regular, parse_json, read_json

METADATA, CONFIG, MODEL = "checkpoint_metadata.json", "model_config.json", "model"
FILE = re.compile(r"model_(?P<kind>\w+?)(?:_pp-rank-\d+-of-\d+_tp-rank-(?P<rank>\d+)-of-(?P<ranks>\d+))?\.safetensors")
HEADER_BYTES = 1 << 20
WHOLE = re.compile(r"(?<!int)\b\d+")  # also in "(np.int64(80), 48)", as numpy 2 prints it


def read(folder: Path) -> Index:
    """Where every weight of the folder lies; raises UserError."""
    index = Index()
    settings = inside(folder, CONFIG)
    if settings.is_file():
        try:
            facts = read_json(settings)
        except (OSError, ValueError) as error:
            raise damaged(settings, str(error)) from None
        index.facts = facts if isinstance(facts, dict) else {}
    root = folder / MODEL
    for path in sorted(root.rglob("model_*.safetensors")):
        if (match := FILE.fullmatch(path.name)) is None:
            raise damaged(path, "no name of nanotron's")
        name = ".".join((*path.parent.relative_to(root).parts, match["kind"]))
        file = path.relative_to(folder).as_posix()
        stored, metadata = _header(inside(folder, file))
        if match["rank"] is None:
            index.whole(name, file, stored)
            continue
        try:
            shape = tuple(map(int, WHOLE.findall(metadata["unsharded_shape"])))
            pairs = [_pair(text, stored.shape, shape) for text in metadata["local_global_slices_pairs"].split(";")]
        except (KeyError, ValueError, AttributeError, TypeError):
            raise damaged(path, "its metadata don't say which part of the tensor it has") from None
        if name not in index.tensors:
            index.add(name, shape, stored.dtype)
        if index.tensors[name]["shape"] != list(shape) or index.tensors[name]["dtype"] != stored.dtype:
            raise damaged(path, "another rank's part has another shape or type")
        for here, there in pairs:
            offsets, sizes = zip(*here, strict=True)
            before = sum(o * s for o, s in zip(offsets, stored.strides, strict=True))  # elements
            part = Stored(stored.dtype, sizes, stored.start + before * ITEM_BYTES[stored.dtype], stored.strides)
            index.piece(name, tuple(offset for offset, _ in there), file, part)
    return index


Ranges = list[tuple[int, int]]  # (offset, size) of each dimension


def _pair(text: str, local: Shape, whole: Shape) -> tuple[Ranges, Ranges]:
    """A part's box in the file, and in the whole tensor; raises ValueError."""
    here, there = (_ranges(side, shape) for side, shape in zip(text.split("#"), (local, whole), strict=True))
    if [size for _, size in here] != [size for _, size in there]:
        raise ValueError("two boxes differ")
    return here, there


def _ranges(text: str, shape: Shape) -> Ranges:
    ranges = []
    for part, size in zip(text.split("|"), shape, strict=True):
        first, last, step = (None if n == "None" else int(n) for n in part.split(","))
        begin, end, stride = slice(first, last, step).indices(size)
        if stride != 1 or end < begin:
            raise ValueError("not a box")
        ranges.append((begin, end - begin))
    return ranges


def _header(path: Path) -> tuple[Stored, dict[str, str]]:
    """Where the tensor `data` of a safetensors file lies, and the file's metadata."""
    try:
        with open_regular(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= HEADER_BYTES:
                raise ValueError(f"a header of {length} bytes")
            header = parse_json(file.read(length))
        entry = header["data"]
        shape = tuple(entry["shape"])
        dtype, (begin, end) = SAFETENSORS[entry["dtype"]], entry["data_offsets"]
        if any(type(n) is not int or n < 0 for n in (*shape, begin)):
            raise ValueError("a shape isn't one")
        if end - begin != prod(shape) * ITEM_BYTES[dtype]:
            raise ValueError("a shape of other bytes than it has")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(path, f"no safetensors file of nanotron ({error})") from None
    return Stored(dtype, shape, 8 + length + begin, contiguous(shape)), header.get("__metadata__") or {}
