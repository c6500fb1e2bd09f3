"""The token files that `prepare` writes, and how they are read back: plain arrays and one JSON file a split.

    OUT/tokenizer.json            the tokenizer, copied in
    OUT/metadata.json             inputs, options, counts; written last: without it OUT isn't finished
    OUT/train/metadata.json       counts, dtype, end-of-document id, checksums of files and of each MiB
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
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from scalewright.data.check import AT_OPENING, check_files, check_sample
from scalewright.data.metadata import AGAIN, BLOCK, METADATA, Listed, SplitMetadata, is_prepared, read_split
from scalewright.data.tokens import TokenFile, TokenStore, Vocabulary
from scalewright.spec.common.untrusted import inside, open_regular
from scalewright.spec.errors import RunError, UserError

_NOT_THERE = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP,
}  # fmt: skip


def shard_name(number: int) -> str:
    """The file name of a piece's tokens."""
    return f"tokens-{number:05d}.bin"


def token_dtype(vocab_size: int) -> str:
    """The smallest of the two unsigned types that holds every id."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def block_checksums(path: Path) -> str:
    """CRC-32 of every MiB of a file, 8 hexadecimal digits each."""
    with open_regular(path) as file:
        return "".join(f"{zlib.crc32(block):08x}" for block in iter(lambda: file.read(BLOCK), b""))


def commit(path: Path, chunks: Iterable[bytes]) -> dict[str, object]:
    """Writes a file so that it is there whole or not at all; returns its `bytes` and `sha256`."""
    temporary = path.with_name(path.name + ".tmp")
    digest, size = hashlib.sha256(), 0
    temporary.unlink(missing_ok=True)  # it may be a link
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


def commit_json(path: Path, data: dict[str, object]) -> None:
    """Writes plain data as JSON, whole or not at all; equal data have equal bytes."""
    commit(path, [(json.dumps(data, indent=1) + "\n").encode()])


def disk_error(error: OSError, out: Path) -> Exception:
    """The error for a failed write: one line, with the finished pieces kept."""
    kept = "the finished pieces are kept; the same command goes on from there"
    path = Path(error.filename) if isinstance(error.filename, (str, os.PathLike)) else out
    if out not in (path, *path.parents) and path not in out.parents:
        return RunError(f"cannot read {path}: {error.strerror or error}: {kept}")
    if error.errno in _NOT_THERE:
        return UserError("cannot write there", str(path), "choose another --out, or change its permissions")
    return RunError(f"cannot write to {out}: {error.strerror or error} (free some space): {kept}")


def is_shards(folder: Path) -> bool:
    """Whether a folder holds one split of prepared tokens (finished or not)."""
    return (folder / METADATA).is_file() and any(folder.glob("tokens-*.bin"))


def open_shards(folder: Path) -> TokenStore:
    """One split, memory-mapped. Compares the checksums of a small split, and of a large one those of some
    blocks; raises UserError."""
    data = read_split(folder)
    *files, index = split_files(folder, data)
    tokenizer = _tokenizer(folder, data)
    vocabulary = Vocabulary(data.vocab_size, "vocab_size in metadata.json", AGAIN)
    small = sum(shard.bytes for shard in data.shards) <= AT_OPENING
    for _ in check_files(files, index, vocabulary) if small else check_sample([*files, index], vocabulary):
        pass
    offsets = index.map().astype(np.int64, copy=False)
    if offsets[0] != 0 or offsets[-1] != data.tokens:
        raise UserError("the file is damaged: it doesn't end where the tokens end", str(index.path), AGAIN)
    return TokenStore(
        files=tuple(files), offsets=offsets, eod=data.eod, bos=None if data.bos is None else tuple(data.bos),
        vocab_size=data.vocab_size, tokenizer_path=tokenizer, tokenizer_checksum=data.tokenizer_sha256,
        text_bytes=data.text_bytes, index=index, vocabulary=vocabulary, checked=small,
    )  # fmt: skip


def split_files(folder: Path, data: SplitMetadata) -> Iterator[TokenFile]:
    """A split's token files, then its index; raises UserError for one that is missing or of another size."""

    def listed(entry: Listed, dtype: str, count: int) -> TokenFile:
        path = inside(folder, entry.file)
        if not path.is_file():
            raise UserError("a token file is missing", str(path), AGAIN)
        if (size := path.stat().st_size) != entry.bytes:
            raise UserError(f"the file has {size:,} bytes instead of {entry.bytes:,}", str(path), AGAIN)
        kind = np.dtype(dtype).newbyteorder("<")
        return TokenFile(path, kind, count, sha256=entry.sha256, blocks=entry.block_crc32)

    yield from (listed(shard, data.dtype, shard.tokens) for shard in data.shards)
    yield listed(data.index, "int64", data.documents + 1)


def _tokenizer(folder: Path, data: SplitMetadata) -> Path | None:
    """The tokenizer beside a split; raises UserError for another than the one that made its tokens. A split that was
    copied alone, without the folder's metadata, needs none."""
    path = folder.parent / "tokenizer.json"
    if not path.is_file():
        if os.path.lexists(path) or is_prepared(folder.parent):
            raise UserError("the tokenizer is missing, or is no file", str(path), AGAIN)
        return None
    if checksum(path) != data.tokenizer_sha256:
        raise UserError("the tokenizer is not the one that made these tokens", str(path), AGAIN)
    return path
