"""Which keys a query sees, in one number a query: the first of them. The last is the query's own.

    index       0 1 2 3 4 5 6 7
    document    0 0 0 1 1 1 1 2        a run of equal numbers
    first       0 0 0 3 3 3 3 7        of a window of w: max(first, index - w + 1)
                                       of windows side by side: index - (index - first) mod w

    visible(query, key)  =  first of query <= key <= query

These T numbers of a row take the place of a mask [T, T]. Where the host has them too, `tiles` cuts
attention to the products of queries and keys that see each other, most of them without any mask:

    keys      A A A A B B . .          a document by itself: causal
    queries   A               \\        queries after all keys (parts of context parallelism): all
              A                        short documents together, windows, ALiBi: with a mask of that size
              B
              B

Indices count within the row: nothing leaks from one document of a packed row into another.

With ALiBi scores fall with the distance, at a rate of each head's own (Press et al. 2021, arXiv 2108.12409):

    score(q, k) = q . k / sqrt(K) - slope_h (p_q - p_k)      slope_h = 2 ** (-8 h / H),  h = 1 .. H

For H not a power of two, the slopes of the next lower power come first and every second one of the next higher power
fills up, as in the authors' code and in BLOOM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LEAST = 128  # queries of a tile: documents shorter than that share one


class Span(NamedTuple):
    """What the host has of queries and keys: indices within their row, ascending, and first visible keys."""

    query: NDArray[np.int64]  # [Q]
    key: NDArray[np.int64]  # [T]
    first: NDArray[Any] | None  # [B or 1, Q], ascending; None: on the device alone


@dataclass(frozen=True)
class Visible:
    """Which of some keys each of some queries sees, and ALiBi's slopes."""

    query: Tensor  # int [Q], indices within the row
    key: Tensor  # int [T]
    first: Tensor  # int [B or 1, Q], each query's first visible key
    slopes: Tensor | None  # fp32 [H]
    span: Span

    def mask(self, tile: Tile, dtype: torch.dtype) -> Tensor:
        """What a tile adds to its scores, [b or 1, H or 1, queries, keys]."""
        rows = tile.rows if len(self.first) > 1 else slice(None)
        query, key = self.query[tile.queries], self.key[tile.keys]
        return added_mask(query, key, self.first[rows, tile.queries], self.slopes, dtype, hidden_score(dtype))


def hidden_score(dtype: torch.dtype) -> float:
    """What a mask adds for a key that isn't visible: finite, so that a query without any key gives no NaN."""
    return torch.finfo(dtype).min / 2


def first_keys(
    index: Tensor, documents: Tensor | None = None, window: int | None = None, chunks: bool = False
) -> Tensor:
    """The first key that each token of whole rows sees, int64 [B or 1, T].

    `index` [T] is 0 .. T-1; `documents` [B, T] number the documents. `window` tokens are seen, the query's
    own included; with `chunks` windows lie side by side, from each document's first token on.
    """
    first = torch.zeros_like(index)[None]
    if documents is not None:
        begins = documents[:, 1:] != documents[:, :-1]
        first = torch.cat([first.expand(len(documents), -1)[:, :1], index[1:] * begins], dim=1).cummax(1)[0]
    if window is None:
        return first
    if chunks:
        return index - (index - first) % window
    return torch.maximum(first, index - (window - 1))


def is_visible(query: Tensor, key: Tensor, first: Tensor) -> Tensor:
    """Bool [B or 1, 1, Q, T]: whether a query [Q] sees a key [T]; `first` [B or 1, Q]."""
    return (key <= query[:, None])[None, None] & (key >= first[:, None, :, None])


def added_mask(
    query: Tensor, key: Tensor, first: Tensor, slopes: Tensor | None, dtype: torch.dtype, hidden: float
) -> Tensor:
    """What is added to scores, [B or 1, H or 1, Q, T]: ALiBi's bias or 0, and `hidden` where not visible."""
    visible = is_visible(query, key, first)
    if slopes is None:
        return torch.zeros(visible.shape, dtype=dtype, device=query.device).masked_fill_(~visible, hidden)
    return torch.where(visible, alibi_bias(query, key, slopes).to(dtype), hidden)


class Tile(NamedTuple):
    """Queries and keys whose scores are made at once."""

    rows: slice  # of the batch
    queries: slice
    keys: slice
    kind: Literal["all", "causal", "masked"]  # causal: as many keys as queries, key i visible from query i on


def tiles(span: Span, most: int, *, whole: bool, masked: bool = False) -> list[Tile]:
    """The tiles in which all queries see all their keys; pairs outside of them are invisible.

    `most`: queries of a tile; with `whole` of one that needs a mask, others are as long as their document.
    `masked`: every tile gets a mask.
    """
    firsts = np.zeros((1, len(span.query)), np.int64) if span.first is None else span.first
    masked = masked or span.first is None
    plan: list[Tile] = []
    for row, first in enumerate(firsts):
        rows = slice(row, row + 1) if len(firsts) > 1 else slice(None)
        ends = np.append(np.flatnonzero(np.diff(first)) + 1, len(first))  # of runs with the same first key
        begins = np.append(0, ends[:-1])
        long = begins[ends - begins >= LEAST]
        start = 0
        while start < len(first):
            least = max(LEAST, int(span.query[start] - first[start]) // 2)
            end = int(ends[min(int(np.searchsorted(ends, start + least)), len(ends) - 1)])
            if len(after := long[np.searchsorted(long, start, side="right") :]):
                end = min(end, int(after[0]))  # short documents don't share a tile with a long one
            kind = "masked" if masked else _kind(span, first, start, end)
            if end - start > most and not (whole and kind != "masked"):
                end = start + most
                kind = "masked" if masked else _kind(span, first, start, end)
            keys = _keys(span, first, start, end)
            if keys.start < keys.stop:
                plan.append(Tile(rows, slice(start, end), keys, kind))
            start = end
    return plan


def _keys(span: Span, first: NDArray[Any], start: int, end: int) -> slice:
    """The keys from the first that one of these queries sees to the last."""
    right = np.searchsorted(span.key, span.query[end - 1], side="right")
    return slice(int(np.searchsorted(span.key, first[start])), int(right))


def _kind(span: Span, first: NDArray[Any], start: int, end: int) -> Literal["all", "causal", "masked"]:
    query, key = span.query[start:end], span.key[_keys(span, first, start, end)]
    if not len(key) or first[end - 1] > key[0]:
        return "masked"
    if key[-1] <= query[0]:
        return "all"
    return "causal" if np.array_equal(query, key) else "masked"


def alibi_slopes(heads: int) -> list[float]:
    """The slope of each head, in the order of the heads."""
    power = 1 << (heads.bit_length() - 1)  # the largest power of two up to `heads`
    slopes = [2.0 ** (-8.0 * (h + 1) / power) for h in range(power)]
    finer = [2.0 ** (-4.0 * (h + 1) / power) for h in range(0, 2 * power, 2)]
    return slopes + finer[: heads - power]


def local_slopes(heads: int, local: range, device: torch.device) -> Tensor:
    """The slopes of the heads in `local` out of `heads`, fp32 [h]; made on the device."""
    values = alibi_slopes(heads)[local.start : local.stop]
    return torch.cat([torch.full((1,), s, dtype=torch.float32, device=device) for s in values])


def alibi_bias(query: Tensor, key: Tensor, slopes: Tensor) -> Tensor:
    """The bias to add to the scores of queries [Q] and keys [T] at these indices, fp32 [1, h, Q, T].

    Indices within the row do: inside one document their difference is the distance.
    """
    distance = (query[:, None] - key[None, :]).to(torch.float32)
    return -slopes[None, :, None, None] * distance
