"""The metadata.json of a split of prepared tokens: every number in it is checked against the others, and against those
of OUT/metadata.json. A wrong one would change results without a sign (`text_bytes` divides bits per byte).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import ConfigDict, Field

from scalewright.spec.base import Spec
from scalewright.spec.common.untrusted import JSON_BYTES, parse_json, read_bytes
from scalewright.spec.errors import UserError

FORMAT, VERSION = "scalewright-tokens", 1
METADATA = "metadata.json"
SPLITS = ("train", "valid")
BLOCK = 1 << 20  # bytes of a file that have a checksum of their own
AGAIN = "run `scalewright prepare` again with the same arguments: it redoes only what is damaged"

_Count = Annotated[int, Field(ge=0, le=1 << 62)]
_Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Values(Spec):
    model_config = ConfigDict(strict=True, extra="ignore")  # a later release may add keys


class _Counts(_Values):
    tokens: _Count
    documents: _Count
    text_bytes: _Count


class _Tokenizer(_Values):
    dtype: Literal["uint16", "uint32"]
    vocab_size: _Count
    eod: _Count
    bos: list[_Count] | None = None  # before each document; not recorded by older releases
    tokenizer_sha256: _Sha256


class Listed(_Values):
    """A file with its checksums: SHA-256, and CRC-32 of every MiB, 8 digits each, which older files lack."""

    file: Annotated[str, Field(min_length=1)]
    bytes: _Count
    sha256: _Sha256
    block_crc32: Annotated[str, Field(pattern="^([0-9a-f]{8})*$")] = ""


class _Shard(Listed, _Counts):
    pass


class SplitMetadata(_Tokenizer, _Counts):
    """The metadata of one split."""

    split: Literal["train", "valid"]
    index: Listed
    shards: Annotated[list[_Shard], Field(min_length=1)]


class _Whole(_Tokenizer):
    splits: dict[str, _Counts]


def read_split(folder: Path) -> SplitMetadata:
    """The metadata of one split; raises UserError for the first value that can't be right."""
    path, above = folder / METADATA, folder.parent / METADATA
    data = read_json(path)
    try:
        split, whole = SplitMetadata.parse(data), None
        if is_prepared(above.parent):
            data, path = read_json(above), above
            whole, path = _Whole.parse(data), folder / METADATA
    except UserError as error:
        raise UserError(f"the metadata file is damaged: {error.what}", str(path), AGAIN) from None
    for name, value, expected in _facts(split, whole):
        if value != expected:
            problem = f"the metadata file is damaged: {name} is {value}, and {expected} by the other numbers"
            raise UserError(problem, str(path), AGAIN)
    return split


def is_prepared(folder: Path) -> bool:
    """Whether `prepare` wrote a folder; a split may be copied to one that has another metadata.json."""
    above = folder / METADATA
    if (folder / "pieces" / "plan.json").is_file():
        return True
    return above.is_file() and FORMAT in above.read_text(encoding="utf-8", errors="replace")


def _facts(split: SplitMetadata, whole: _Whole | None) -> Iterator[tuple[str, object, object]]:
    """(name, value, what it should be) of everything that follows from something else."""
    if whole is not None:
        counts = whole.splits.get(split.split)
        yield from ((key, getattr(split, key), getattr(whole, key)) for key in _Tokenizer.model_fields)
        yield from ((key, getattr(split, key), getattr(counts, key, None)) for key in _Counts.model_fields)
    for key in _Counts.model_fields:
        yield key, getattr(split, key), sum(getattr(shard, key) for shard in split.shards)
        yield key, getattr(split, key), max(getattr(split, key), 1)
    width = np.dtype(split.dtype).itemsize
    yield "vocab_size", split.vocab_size, min(split.vocab_size, 1 << 8 * width)
    yield "eod", split.eod, min(split.eod, split.vocab_size - 1)
    for begin in split.bos or []:
        yield "bos", begin, min(begin, split.vocab_size - 1)
    yield "index.bytes", split.index.bytes, 8 * (split.documents + 1)
    yield "files in shards", len({shard.file for shard in split.shards}), len(split.shards)
    for shard in split.shards:
        yield f"bytes of {shard.file}", shard.bytes, width * shard.tokens
    for file in (split.index, *split.shards):
        if file.block_crc32:
            yield f"blocks of {file.file}", len(file.block_crc32) // 8, -(-file.bytes // BLOCK)


def read_json(path: Path) -> dict[str, object]:
    """The plain data of a JSON file of ours; raises UserError when it is missing or damaged."""
    try:
        data = parse_json(read_bytes(path, JSON_BYTES), once=True)
    except FileNotFoundError:
        raise UserError("the metadata file is missing", str(path), AGAIN) from None
    except (OSError, ValueError) as error:
        raise UserError(f"the metadata file is damaged: {error}", str(path), AGAIN) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UserError("not a folder of prepared tokens", str(path), "make one with `scalewright prepare`")
    version = data.get("version")
    if type(version) is not int or version != VERSION:
        shown = f"tokens of format version {str(version)[:40]}, this version reads {VERSION}"
        raise UserError(shown, str(path), "prepare them again")
    return data
