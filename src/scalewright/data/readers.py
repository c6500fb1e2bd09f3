"""Token files of any maker, as one TokenStore: ours, Megatron's, NumPy's, and bare numbers.

    ours       a folder that `prepare` wrote, or its train/ or valid/
    megatron   NAME.bin + NAME.idx (or a folder of such pairs), read as they are
    npy        one array, memory-mapped: 1-D is one stream, 2-D is a document a row
    raw        numbers without a header, as nanoGPT writes them; only with `format: uint16` (or uint32, int32)

In npy and raw streams, the token `eod: ID` ends a document; without it a stream is one document.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalewright.data.metadata import METADATA
from scalewright.data.remote import fetch_tokens
from scalewright.data.shards import is_shards, open_shards
from scalewright.data.tokens import TokenFile, TokenStore
from scalewright.spec.common.urls import is_url, parse_url
from scalewright.spec.errors import UserError

RAW_FORMATS = ("uint16", "uint32", "int32")

# Megatron-LM's index file: megatron/core/datasets/indexed_dataset.py, version 1.
_MAGIC = b"MMIDIDX\x00\x00"
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}


def open_tokens(path: str | Path, split: str = "train", format: str = "auto", eod: int | None = None) -> TokenStore:
    """The tokens at `path`, also a URL, in any of these formats; of a folder with train/ and valid/, those of `split`.

    Raises UserError when there are none, or when they are damaged.
    """
    path = fetch_tokens(str(parse_url(path)), split) if is_url(path) else Path(path).expanduser()
    source = _split_folder(path, split, format)
    if _unfinished(source.parent) and is_shards(source):
        raise _nothing_there(source)
    if format in RAW_FORMATS:
        store = _streams(_files(source, ".bin"), format, eod)
    elif is_shards(source):
        store = open_shards(source)
    elif pairs := _megatron_pairs(source):
        store = _store([_megatron_pair(_with(p, ".bin"), _with(p, ".idx")) for p in pairs], eod)
    elif arrays := _files(source, ".npy"):
        store = _streams(arrays, "npy", eod)
    else:
        raise _nothing_there(source)
    if store.tokens < 2:
        raise UserError(f"too few tokens to learn from: {store.tokens}", str(source), "prepare a larger text")
    return store


def _split_folder(path: Path, split: str, format: str) -> Path:
    """OUT/train or OUT/valid where OUT has splits (or OUT/train.bin, OUT/val.bin), else the path itself."""
    if not path.is_dir():
        return path
    names = {"train": ["train"], "valid": ["valid", "val", "validation"]}[split]
    for name in names:
        if (path / name).is_dir():
            return path / name
        for suffix in (".bin", ".npy", ".idx"):
            file = path / f"{name}{suffix}"
            if file.is_file() and (suffix != ".bin" or format in RAW_FORMATS):
                return file
    if split == "valid" and (path / "train" / METADATA).is_file():
        raise UserError("there are no validation tokens", str(path), "take the --valid-fraction that `prepare` named")
    return path


def _unfinished(folder: Path) -> bool:
    """Whether a `prepare` left its plan here and was stopped, or a file of it is missing."""
    finished = (folder / METADATA).is_file() and (folder / "train" / METADATA).is_file()
    return (folder / "pieces" / "plan.json").is_file() and not finished


def _nothing_there(path: Path) -> UserError:
    if not path.exists():
        how = "make it with `scalewright prepare INPUT --out DIR`, or name its place: data.train=DIR data.valid=DIR, "
        how += "`evaluate --data DIR`"
        return UserError("no such file or folder of tokens", str(path), how)
    if _unfinished(path) or _unfinished(path.parent):
        advice = "run the same `scalewright prepare` again: it does only what is missing"
        return UserError("the tokens are not finished", str(path), advice)
    if path.suffix == ".bin" or (path.is_dir() and any(path.glob("*.bin"))):
        how = "name their type, such as format: uint16 beside path"
        return UserError("bare numbers without an index", str(path), how)
    if path.is_file():
        return UserError("not a token file", str(path), "make tokens of it with `scalewright prepare INPUT --out DIR`")
    return UserError("no tokens in this folder", str(path), "make some with `scalewright prepare INPUT --out DIR`")


def _files(path: Path, suffix: str) -> list[Path]:
    if path.is_dir():
        return sorted(path.glob(f"*{suffix}"))
    return [path] if path.suffix == suffix and path.is_file() else []


def _streams(paths: list[Path], format: str, eod: int | None) -> TokenStore:
    if not paths:
        raise UserError(f"no {'.npy' if format == 'npy' else '.bin'} file there", format, "check the path")
    parts = []
    for path in paths:
        file, row = _npy_file(path) if format == "npy" else (_raw_file(path, format), 0)
        if row and eod is None:
            ends = np.arange(row, file.count + 1, row, dtype=np.int64)
        else:
            ends = _document_ends(file.map(), eod)
        parts.append((file, ends))
    return _store(parts, eod)


def _store(parts: Sequence[tuple[TokenFile, NDArray[np.int64]]], eod: int | None) -> TokenStore:
    starts = np.cumsum([0, *(file.count for file, _ in parts)])
    ends = [start + ends for start, (_, ends) in zip(starts, parts, strict=False)]
    return TokenStore(tuple(file for file, _ in parts), np.concatenate([np.zeros(1, np.int64), *ends]), eod)


def _raw_file(path: Path, format: str) -> TokenFile:
    dtype = np.dtype(format).newbyteorder("<")
    size = path.stat().st_size
    if size % dtype.itemsize:
        how = "check format: it may be another"
        raise UserError(f"{size:,} bytes are not a whole number of {format}", str(path), how)
    return TokenFile(path, dtype, size // dtype.itemsize)


def _npy_file(path: Path) -> tuple[TokenFile, int]:
    """The numbers of a .npy file, and the length of a row (0 for one stream)."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"not a readable .npy file: {error}", str(path), "save it again with numpy.save") from None
    if (
        not isinstance(array, np.memmap)
        or array.dtype.kind not in "ui"
        or array.ndim not in (1, 2)
        or not array.flags.c_contiguous
    ):
        shape = f"{array.dtype} of {array.ndim} dimensions" if isinstance(array, np.ndarray) else "an archive"
        how = "save such an array"
        raise UserError(f"token ids are whole numbers in one or two dimensions, not {shape}", str(path), how)
    row = array.shape[1] if array.ndim == 2 else 0
    return TokenFile(path, array.dtype, array.size, int(array.offset)), row


def _document_ends(tokens: NDArray[np.integer], eod: int | None) -> NDArray[np.int64]:
    """One past each document's last token: after every `eod`, and at the end. Reads 16M tokens at a time."""
    if len(tokens) == 0:
        return np.empty(0, np.int64)
    ends = []
    if eod is not None:
        for start in range(0, len(tokens), 1 << 24):
            ends.append(np.flatnonzero(tokens[start : start + (1 << 24)] == eod).astype(np.int64) + start + 1)
    if not ends or not len(ends[-1]) or ends[-1][-1] != len(tokens):
        ends.append(np.array([len(tokens)], np.int64))
    return np.concatenate(ends)


def _megatron_pairs(path: Path) -> list[Path]:
    """The prefixes (paths without suffix) of .bin/.idx pairs: of a prefix, of either file, or in a folder."""
    if path.is_dir():
        return [index.with_suffix("") for index in sorted(path.glob("*.idx"))]
    prefix = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
    return [prefix] if _with(prefix, ".idx").is_file() else []


def _with(prefix: Path, suffix: str) -> Path:
    return prefix.with_name(prefix.name + suffix)  # a prefix may hold dots of its own


def _megatron_pair(tokens: Path, index: Path) -> tuple[TokenFile, NDArray[np.int64]]:
    """A pair's numbers, and one past the last token of each document that isn't empty.

    magic "MMIDIDX\\0\\0" · uint64 version · uint8 dtype code · uint64 sequences S · uint64 documents D
    int32[S] tokens in a sequence · int64[S] its first byte in .bin · int64[D] first sequence of a document
    """
    raw = index.read_bytes() if index.stat().st_size < 1 << 20 else np.memmap(index, np.uint8, "r")
    if bytes(raw[:9]) != _MAGIC or len(raw) < 34:
        raise UserError("not a Megatron index file", str(index), "it should start with MMIDIDX")
    version, code, sequences, documents = struct.unpack("<QBQQ", bytes(raw[9:34]))
    if version != 1 or code not in _DTYPES or "f" in _DTYPES[code]:
        how = "only version 1 with whole numbers is read"
        raise UserError(f"a Megatron index of version {version}, dtype code {code}", str(index), how)
    if len(raw) < 34 + 12 * sequences + 8 * documents:
        raise UserError(f"the index is cut off: {len(raw):,} bytes", str(index), "copy it again")
    sizes = np.frombuffer(raw, "<i4", sequences, 34)
    firsts = np.frombuffer(raw, "<i8", documents, 34 + 12 * sequences)
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
    dtype = np.dtype(_DTYPES[code])
    if not tokens.is_file():
        raise UserError("the index has no token file beside it", str(tokens), "copy the .bin file there")
    size, expected = tokens.stat().st_size, int(bounds[-1]) * dtype.itemsize
    if size < expected:
        raise UserError(f"the file has {size:,} bytes, its index says {expected:,}", str(tokens), "copy it again")
    if not documents or firsts.min() < 0 or firsts.max() > sequences:
        raise UserError("the index names sequences that it doesn't have", str(index), "copy it again")
    ends = np.unique(np.append(bounds[firsts], bounds[-1]))
    return TokenFile(tokens, dtype, int(bounds[-1])), ends[ends > 0]
