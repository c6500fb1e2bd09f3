"""Attention of packed rows by a GPU's kernels: FlashAttention over documents, and FlexAttention.

    segments    documents of all rows one after the other, [B T, H, K], and where each begins: 0 3 7 8 ...
                a window is the kernel's own; windows side by side begin a segment each.         16 bits
    blocks      128 queries x 128 keys; those without a visible pair are left out, those without an
                invisible one need no mask. Takes caps, ALiBi and sinks.           where blocks are compiled

(torch.nn.attention.varlen; Dong et al. 2024, arXiv 2412.05496.) Both keep q, k, v, the output and its lse.
Where neither takes a case, and on a CPU, `rows.py` does it: one formula, three ways. Where documents begin is
known on the host, from the data, so that nothing waits for the device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalewright.model.attend import Scores, widened

HALF = (torch.bfloat16, torch.float16)  # what FlashAttention takes
BLOCK = 128  # queries, and keys, of FlexAttention's blocks
WIDEST = 256  # head dims that FlashAttention takes
_NEEDED = {"scale", "window_size", "enable_gqa"}


class Segments(NamedTuple):
    """Documents as FlashAttention takes them."""

    bounds: Tensor  # int32 [N + 1] on the device: where each begins in all rows in a line, and the end
    longest: int  # at least as long as the longest
    window: int | None = None


class Packing(NamedTuple):
    """The documents of a micro-batch, made with it (parallel/inputs.py)."""

    documents: NDArray[Any]  # int [B, T]; no tensor, which FSDP would move to the device
    segments: Segments


def bounds_of(first: NDArray[Any]) -> tuple[NDArray[np.int32], int]:
    """Where segments begin in all rows one after the other, with the end; and the length of the longest.

    `first` [B, T] is each token's first visible key, in its row. Both are rounded up to powers of two,
    by empty segments at the end: a compiled block, and the allocator, then meet few sizes.

    >>> bounds_of(np.array([[0, 0, 2], [0, 0, 0]]))
    (array([0, 2, 3, 6, 6], dtype=int32), 3)
    """
    length = first.shape[1]
    begins = np.flatnonzero((first == np.arange(length)).reshape(-1))
    ends = np.append(begins[1:], first.size)
    longest = int((ends - begins).max())
    bounds = np.full(_power_of_two(len(begins)) + 1, first.size, np.int32)
    bounds[: len(begins)] = begins
    return bounds, min(_power_of_two(longest), length)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


@lru_cache(maxsize=1)
def _varlen() -> Any:
    """torch's module, or None of a torch without it. Not at the top: it imports the compiler, 2 CPU seconds."""
    try:
        from torch.nn.attention import varlen
    except ImportError:
        return None
    return varlen


def has_varlen() -> bool:
    """Whether this torch has the kernel, with a window and groups of query heads."""
    function = getattr(_varlen(), "varlen_attn", None)
    return function is not None and set(inspect.signature(function).parameters) >= _NEEDED


def takes_segments(q: Tensor, scores: Scores, sinks: Tensor | None) -> bool:
    """Whether FlashAttention takes these queries [B, H, T, K]."""
    plain, width = scores.cap is None and sinks is None, q.shape[-1]
    return plain and q.is_cuda and q.dtype in HALF and width % 8 == 0 and width <= WIDEST


def attend_segments(q: Tensor, k: Tensor, v: Tensor, segments: Segments, scale: float) -> Tensor:
    """q [B, H, T, K], k [B, G, T, K], v [B, G, T, W] -> [B, H, T, W], each segment by itself."""
    batch, width = q.shape[0], v.shape[-1]
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, widened(v, q.shape[-1])))
    bounds, longest, window = segments
    reach = (-1, 0) if window is None else (window - 1, 0)
    out: Any = _varlen().varlen_attn(
        q, k, v, bounds, bounds, longest, longest, scale=scale, window_size=reach, enable_gqa=q.shape[1] != k.shape[1]
    )
    return torch.unflatten(out, 0, (batch, -1))[..., :width].transpose(1, 2)


def block_mask(first: Tensor) -> Any:
    """FlexAttention's BlockMask of whole rows, from each token's first visible key [B or 1, T].

    From the first and the last query of a block alone, whose keys enclose those of the others: [T/128, T/128]
    numbers are made where torch's `create_block_mask` would make [T, T].
    """
    from torch.nn.attention.flex_attention import BlockMask

    length = first.shape[1]
    count = -(-length // BLOCK)
    index = torch.arange(count, device=first.device)
    ends = torch.arange(BLOCK - 1, count * BLOCK, BLOCK, device=first.device).clamp_(max=length - 1)
    low, high = first[:, index * BLOCK], first[:, ends]  # [B or 1, count]: of a block's first and last query
    query, key = index[:, None], index[None, :]
    seen = (key <= query) & (key >= (low // BLOCK)[..., None])  # [B or 1, count, count]
    whole = (key < query) & (key * BLOCK >= high[..., None])
    partly = seen & ~whole
    several = len(first) > 1

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key >= (first[batch, query] if several else first[0, query]))

    return BlockMask.from_kv_blocks(
        *_ordered(partly), *_ordered(whole), BLOCK_SIZE=BLOCK, mask_mod=visible, seq_lengths=(length, length)
    )


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of each row [B, N, N] are there, and their indices first: [B, 1, N], [B, 1, N, N]."""
    count = blocks.sum(-1, dtype=torch.int32)
    order = torch.argsort(blocks.int(), dim=-1, descending=True, stable=True).int()
    return count[:, None], order[:, None]


def attend_blocks(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, scores: Scores, slopes: Tensor | None, sinks: Tensor | None
) -> Tensor:
    """q [B, H, T, K], k [B, G, T, K], v [B, G, T, W] -> [B, H, T, W], by FlexAttention; `mask` as above."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    out, more = flex_attention(
        q, k, v, _bent(scores.cap, slopes), mask, scores.scale, q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=True),
    )  # fmt: skip
    if sinks is None or more.lse is None:
        return out
    share = torch.sigmoid(more.lse - sinks.to(more.lse.dtype)[:, None])  # exp(lse) / (exp(lse) + exp(sink))
    return out * share[..., None].to(out.dtype)


def _bent(cap: float | None, slopes: Tensor | None) -> Callable[..., Tensor] | None:
    """What is done to a score before the softmax; nothing: None."""
    if cap is None and slopes is None:
        return None

    def bend(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if cap is not None:
            score = torch.tanh(score / cap) * cap
        return score if slopes is None else score - slopes[head] * (query - key)

    return bend
