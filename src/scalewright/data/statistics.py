"""How long the documents are: a histogram by powers of two, the same in JSON and as bars in a terminal.

tokens          documents
      64–127    ████████████▌                    1,204   9.1%
     128–255    ██████████████████████████       2,511  18.9%
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_EXACT = 1 << 24  # documents; of more, quantiles come from every k-th document
_BARS = " ▏▎▍▌▋▊▉█"


def length_statistics(offsets: NDArray[np.int64]) -> dict[str, object]:
    """Plain data about document lengths in tokens (the end of document counts), from where they start."""
    documents = len(offsets) - 1
    if documents < 1:
        return {"documents": 0, "histogram": []}
    counts = np.zeros(64, np.int64)
    tokens = np.zeros(64, np.int64)
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
        "documents": documents,
        "tokens": int(offsets[-1]),
        "shortest": shortest,
        "median": middle,
        "mean": int(offsets[-1]) / documents,
        "p90": most,
        "p99": nearly_all,
        "longest": longest,
        "histogram": [
            {"from": 1 << k, "to": (2 << k) - 1, "documents": int(counts[k]), "tokens": int(tokens[k])}
            for k in range(int(filled[0]), int(filled[-1]) + 1)
        ],
    }


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
