"""Small token stores for tests: every token tells its document and its place in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalewright.data.tokens import TokenFile, TokenStore

EOD = 9999


def token(document: int, place: int) -> int:
    """A number that names one place of one document."""
    return document * 1000 + place


def make_store(folder: Path, lengths: list[int], files: int = 1, text_bytes: int | None = None) -> TokenStore:
    """Documents of these lengths in as many files; token = document · 1000 + place."""
    documents = [np.array([token(d, p) for p in range(n)], np.uint32) for d, n in enumerate(lengths)]
    groups = np.array_split(np.arange(len(lengths)), files)
    made = []
    for number, group in enumerate(groups):
        data = np.concatenate([documents[d] for d in group])
        path = folder / f"{len(list(folder.iterdir()))}-{number}.bin"
        data.tofile(path)
        made.append(TokenFile(path, data.dtype, len(data)))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return TokenStore(tuple(made), offsets, eod=EOD, vocab_size=10_000, text_bytes=text_bytes)


def document(store: TokenStore, number: int) -> NDArray[np.int64]:
    """The tokens of one document."""
    start = store.offsets[number : number + 1].astype(np.int64)
    return store.gather(start, store.offsets[number + 1 : number + 2] - start)
