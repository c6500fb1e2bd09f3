"""The token files that `prepare` writes, and how they are read back: plain arrays and one JSON file a split.

    OUT/tokenizer.json            the tokenizer, copied in
    OUT/metadata.json             inputs, options, counts; written last: without it OUT isn't finished
    OUT/train/metadata.json       counts, dtype, end-of-document id, checksums of everything below
    OUT/train/tokens-00000.bin    tokens, little-endian uint16 (or uint32 from 65,537 words on), end to end
    OUT/train/documents.bin       int64[documents + 1]: the token at which each document starts, and the end
    OUT/valid/...                 the same
    OUT/pieces/                   one record a finished piece of the work, for a rerun to skip

A file is written under a temporary name, flushed to the disk and renamed: a name that exists is whole.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.data.tokens import TokenFile, TokenStore
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.text.untrusted import inside, parse_json

FORMAT, VERSION = "scalewright-tokens", 1
METADATA = "metadata.json"
SPLITS = ("train", "valid")

_CHECKED_AT_OPENING = 32 << 20  # bytes; checksums of a smaller split are computed whenever it is opened
_NOT_THERE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST}
_AGAIN = "run `scalewright prepare` again with the same arguments: it redoes only what is damaged"


def shard_name(number: int) -> str:
    """The file name of a piece's tokens."""
    return f"tokens-{number:05d}.bin"


def token_dtype(vocab_size: int) -> str:
    """The smallest of the two unsigned types that holds every id."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def commit(path: Path, chunks: Iterable[bytes]) -> dict[str, Any]:
    """Writes a file so that it is there whole or not at all; returns its `bytes` and `sha256`."""
    temporary = path.with_name(path.name + ".tmp")
    digest, size = hashlib.sha256(), 0
    try:
        with open(temporary, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return {"bytes": size, "sha256": digest.hexdigest()}


def commit_json(path: Path, data: dict[str, Any]) -> None:
    """Writes plain data as JSON, whole or not at all; equal data have equal bytes."""
    commit(path, [(json.dumps(data, indent=1) + "\n").encode()])


def disk_error(error: OSError, out: Path) -> Exception:
    """The error for a failed write: one line, with the finished pieces kept."""
    kept = "the finished pieces are kept; the same command goes on from there"
    path = Path(error.filename) if isinstance(error.filename, (str, os.PathLike)) else out
    if out not in (path, *path.parents) and path not in out.parents:
        return RunError(f"cannot read {path}: {error.strerror or error}: {kept}")
    if error.errno in _NOT_THERE:
        return UserError(
            "cannot write there",
            str(path),
            "choose another --out, or change its permissions",
        )
    return RunError(f"cannot write to {out}: {error.strerror or error} (free some space): {kept}")


def read_json(path: Path) -> dict[str, Any]:
    """The plain data of a JSON file of ours; raises UserError when it is missing or damaged."""
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError("the metadata file is missing", str(path), _AGAIN) from None
    except (OSError, ValueError) as error:
        raise UserError(f"the metadata file is damaged: {error}", str(path), _AGAIN) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UserError("not a folder of prepared tokens", str(path), "make one with `scalewright prepare`")
    if data.get("version") != VERSION:
        version = data.get("version")
        raise UserError(
            f"tokens of format version {version}, this version reads {VERSION}",
            str(path),
            "prepare them again",
        )
    return data


def is_shards(folder: Path) -> bool:
    """Whether a folder holds one split of prepared tokens (finished or not)."""
    return (folder / METADATA).is_file() and any(folder.glob("tokens-*.bin"))


def open_shards(folder: Path, check: bool | None = None) -> TokenStore:
    """One split, memory-mapped. `check`: compute checksums (default: if that is quick); raises UserError."""
    data = read_json(folder / METADATA)
    size = sum(entry["bytes"] for entry in data["shards"])
    check_split(folder, data, full=size <= _CHECKED_AT_OPENING if check is None else check)
    dtype = np.dtype(data["dtype"]).newbyteorder("<")
    files = tuple(
        TokenFile(inside(folder, entry["file"]), dtype, entry["tokens"]) for entry in data["shards"]
    )
    offsets = TokenFile(inside(folder, data["index"]["file"]), np.dtype("<i8"), data["documents"] + 1).map()
    tokenizer = folder.parent / "tokenizer.json"
    return TokenStore(
        files=files,
        offsets=offsets.astype(np.int64, copy=False),
        eod=data["eod"],
        bos=tuple(data["bos"]) if "bos" in data else None,
        vocab_size=data["vocab_size"],
        tokenizer_path=tokenizer if tokenizer.is_file() else None,
        tokenizer_checksum=data["tokenizer_sha256"],
        text_bytes=data["text_bytes"],
        checksums=tuple(str(entry["sha256"]) for entry in [*data["shards"], data["index"]]),
    )


def check_split(
    folder: Path, data: dict[str, Any], full: bool, progress: Callable[[int], None] | None = None
) -> None:
    """Sizes of every file, and with `full` their checksums; raises UserError that names the first bad one."""
    for entry in [*data["shards"], data["index"]]:
        path = inside(folder, entry["file"])
        if not path.is_file():
            raise UserError("a token file is missing", str(path), _AGAIN)
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise UserError(f"the file has {size:,} bytes instead of {entry['bytes']:,}", str(path), _AGAIN)
        if full and checksum(path) != entry["sha256"]:
            raise UserError(
                "the file is damaged: its checksum differs from the one in metadata.json", str(path), _AGAIN
            )
        if progress:
            progress(size)


def verify(folder: str | Path, progress: Callable[[int], None] | None = None) -> dict[str, Any]:
    """Reads every byte of a prepared folder (or of one split) and compares checksums; returns {files, bytes}.

    Raises UserError that names the first damaged file and its remedy.
    """
    root = Path(folder)
    splits = (
        [root] if is_shards(root) else [root / name for name in SPLITS if (root / name / METADATA).is_file()]
    )
    if not splits:
        raise UserError(
            "no prepared tokens there", str(root), "make some with `scalewright prepare INPUT --out DIR`"
        )
    files = size = 0
    for split in splits:
        data = read_json(split / METADATA)
        check_split(split, data, full=True, progress=progress)
        tokenizer = split.parent / "tokenizer.json"
        if tokenizer.is_file() and checksum(tokenizer) != data["tokenizer_sha256"]:
            raise UserError("the tokenizer is not the one that made these tokens", str(tokenizer), _AGAIN)
        files += len(data["shards"]) + 1
        size += sum(entry["bytes"] for entry in [*data["shards"], data["index"]])
    return {"files": files, "bytes": size}
