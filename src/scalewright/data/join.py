"""The last step of `prepare`: the pieces' document lengths become one index a split, with its metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.data.encode import Encoding, lengths_path
from scalewright.data.metadata import FORMAT, METADATA, SPLITS, VERSION
from scalewright.data.sample import Words
from scalewright.data.shards import block_checksums, commit, commit_json
from scalewright.data.statistics import length_statistics
from scalewright.data.tokens import TokenFile
from scalewright.spec.errors import UserError


def join_splits(
    out: Path, records: Sequence[dict[str, Any]], words: Words, encoding: Encoding, stats: bool, must_validate: bool
) -> tuple[dict[str, Any], dict[str, object] | None]:
    """Writes each split's index and metadata; returns its counts, and with `stats` its length statistics.

    Raises UserError when nothing is left to train on, or (with `must_validate`) to validate on.
    """
    splits: dict[str, Any] = {}
    statistics: dict[str, object] = {}
    for split in SPLITS:
        shards = [record["splits"][split] for record in records if record["splits"][split]]
        if not shards:
            if split == "train" or (must_validate and encoding.options.valid_fraction > 0):
                raise _empty(split, encoding)
            (out / split / METADATA).unlink(missing_ok=True)
            (out / split).rmdir()
            continue
        numbers = [record["number"] for record in records if record["splits"][split]]
        splits[split] = _join(out, split, shards, numbers, words, encoding)
        if stats:
            documents = splits[split]["documents"]
            index = TokenFile(out / split / "documents.bin", np.dtype("<i8"), documents + 1).map()
            statistics[split] = length_statistics(index.astype(np.int64, copy=False))
    return splits, statistics if stats else None


def _join(
    out: Path, split: str, shards: list[dict[str, Any]], numbers: list[int], words: Words, encoding: Encoding
) -> dict[str, Any]:
    path = out / split / "documents.bin"
    index = commit(path, _offsets(out, split, numbers))
    counts = {key: sum(shard[key] for shard in shards) for key in ("tokens", "documents", "text_bytes")}
    data = {
        "format": FORMAT,
        "version": VERSION,
        "split": split,
        "dtype": encoding.dtype,
        **counts,
        "eod": words.eod,
        "bos": list(words.bos),
        "vocab_size": words.vocab_size,
        "tokenizer_sha256": words.sha256,
        "index": {"file": path.name, **index, "block_crc32": block_checksums(path)},
        "shards": shards,
    }
    commit_json(out / split / METADATA, data)
    return {**counts, "bytes_per_token": counts["text_bytes"] / counts["tokens"], "shards": len(shards)}


def _offsets(out: Path, split: str, numbers: list[int]) -> Iterator[bytes]:
    """Where each document starts, over all shards, a piece at a time; then the end."""
    start = 0
    yield np.zeros(1, "<i8").tobytes()
    for number in numbers:
        ends = start + np.cumsum(np.fromfile(lengths_path(out, number, split), "<i8"))
        start = int(ends[-1])
        yield ends.astype("<i8").tobytes()


def _empty(split: str, encoding: Encoding) -> UserError:
    kind = "training" if split == "train" else "validation"
    advice = "give more documents, or a smaller fraction"
    if split == "valid":
        advice = "give more documents, a larger fraction, or 0 for no validation"
    return UserError(
        f"no document fell into the {kind} split", f"--valid-fraction {encoding.options.valid_fraction:g}", advice
    )
