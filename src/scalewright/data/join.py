"""The last step of `prepare`: the pieces' document lengths become one index a split, with its metadata.

With --stats also how long documents are, by powers of two, the same in JSON and as bars in a terminal:

tokens          documents
      64–127    ████████████▌                    1,204   9.1%
     128–255    ██████████████████████████       2,511  18.9%
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.data.encode import Encoding, lengths_path
from scalewright.data.metadata import FORMAT, METADATA, SPLITS, VERSION
from scalewright.data.sample import Words
from scalewright.data.shards import block_checksums, commit, commit_json
from scalewright.data.tokens import TokenFile
from scalewright.spec.errors import UserError


def join_splits(
    out: Path, records: Sequence[dict[str, Any]], words: Words, encoding: Encoding, stats: bool
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, object]] | None]:
    """Writes each split's index and metadata; returns its counts, and with `stats` its length statistics.

    Raises UserError when nothing is left to train on.
    """
    splits: dict[str, dict[str, Any]] = {}
    statistics: dict[str, dict[str, object]] = {}
    for split in SPLITS:
        shards = [record["splits"][split] for record in records if record["splits"][split]]
        if not shards:
            if split == "train":
                where = f"--valid-fraction {encoding.options.valid_fraction:g}"
                raise UserError("no document fell into the training split", where, "give more, or a smaller fraction")
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
        "format": FORMAT, "version": VERSION, "split": split, "dtype": encoding.dtype, **counts, "eod": words.eod,
        "bos": list(words.bos), "vocab_size": words.vocab_size, "tokenizer_sha256": words.sha256,
        "index": {"file": path.name, **index, "block_crc32": block_checksums(path)}, "shards": shards,
    }  # fmt: skip
    commit_json(out / split / METADATA, data)
    return {**counts, "bytes_per_token": counts["text_bytes"] / counts["tokens"], "shards": len(shards)}


def _offsets(out: Path, split: str, numbers: list[int]) -> Iterator[bytes]:
    start = 0
    yield np.zeros(1, "<i8").tobytes()
    for number in numbers:
        ends = start + np.cumsum(np.fromfile(lengths_path(out, number, split), "<i8"))
        start = int(ends[-1])
        yield ends.astype("<i8").tobytes()


_EXACT = 1 << 24  # documents; of more, quantiles come from every k-th document
_BARS = " ▏▎▍▌▋▊▉█"


def length_statistics(offsets: NDArray[np.int64]) -> dict[str, object]:
    """Plain data about document lengths in tokens (the end of document counts), from where they start."""
    documents = len(offsets) - 1
    if documents < 1:
        return {"documents": 0, "histogram": []}
    counts, tokens = np.zeros(64, np.int64), np.zeros(64, np.int64)
    shortest, longest = int(offsets[1] - offsets[0]), 0
    for start in range(0, documents, 1 << 22):
        lengths = np.diff(offsets[start : start + (1 << 22) + 1])
        octave = np.frexp(lengths.astype(np.float64))[1] - 1  # floor(log2(length)), exact
        counts += np.bincount(octave, minlength=64)
        np.add.at(tokens, octave, lengths)
        shortest, longest = min(shortest, int(lengths.min())), max(longest, int(lengths.max()))
    step = -(-documents // _EXACT)
    sample = offsets[1::step] - offsets[:-1:step]
    middle, most, nearly_all = (int(value) for value in np.quantile(sample, [0.5, 0.9, 0.99], method="lower"))
    filled = np.flatnonzero(counts)
    return {
        "documents": documents, "tokens": int(offsets[-1]), "shortest": shortest, "median": middle,
        "mean": int(offsets[-1]) / documents, "p90": most, "p99": nearly_all, "longest": longest,
        "histogram": [
            {"from": 1 << k, "to": (2 << k) - 1, "documents": int(counts[k]), "tokens": int(tokens[k])}
            for k in range(int(filled[0]), int(filled[-1]) + 1)
        ],
    }  # fmt: skip


def histogram_lines(statistics: Mapping[str, Any], width: int = 32) -> list[str]:
    """The histogram as lines of text, one a bin; empty when there are no documents."""
    bins = statistics["histogram"]
    most = max((entry["documents"] for entry in bins), default=0)
    total = max(statistics["documents"], 1)
    lines = []
    for entry in bins:
        eighths = round(8 * width * entry["documents"] / most)
        bar = _BARS[8] * (eighths // 8) + (_BARS[eighths % 8] if eighths % 8 else "")
        span = f"{entry['from']:,}–{entry['to']:,}"
        share = f"{100 * entry['documents'] / total:.1f}%"
        lines.append(f"{span:>21}  {bar:<{width}}  {entry['documents']:>9,}  {share:>6}")
    return lines
