"""A fingerprint of data, apart from their path: a moved folder keeps it, other tokens change it.

    prepared shards       hash of the checksums in their metadata.json      no token is read
    .npy, .bin, Megatron  hash of sizes, of some documents' offsets, of 64 KiB at either end of a file

Cheap for terabytes, and not proof against somebody who changes tokens in the middle of a file on purpose.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from scalewright.data.tokens import TokenFile, TokenStore

_SAMPLE = 1 << 16  # bytes at a file's beginning and end


def store_identity(store: TokenStore) -> str:
    """The fingerprint of one split of tokens: 16 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=8)
    documents = store.offsets[:: max(1, store.documents // 1024)]  # at most about a thousand, evenly
    digest.update(f"{store.tokens} {store.documents} {store.eod}".encode())
    digest.update(np.ascontiguousarray(documents, dtype="<i8").tobytes())
    if store.index is not None:
        digest.update(" ".join(file.sha256 for file in (*store.files, store.index)).encode())
    else:
        for file in store.files:
            digest.update(f"{file.dtype.str} {file.count}".encode())
            digest.update(_ends(file))
    return digest.hexdigest()


def _ends(file: TokenFile) -> bytes:
    """The first and the last bytes of a file's tokens."""
    size = file.count * file.dtype.itemsize
    with open(file.path, "rb") as opened:
        opened.seek(file.start)
        first = opened.read(min(size, _SAMPLE))
        opened.seek(file.start + max(0, size - _SAMPLE))
        return first + opened.read(min(size, _SAMPLE))


def file_identity(path: Path) -> str:
    """The fingerprint of a small file such as a tokenizer; of a missing one, "missing"."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "missing"
