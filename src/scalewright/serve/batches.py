"""Attention of written tokens, many rows in one call: each sees its own row's keys, padded with hidden ones.

    rows         5: 130 tokens from slot 0         8: 70 from slot 256         9: 190 from slot 512
    one call     q [3, G, H/G, K]   keys [3, G, 192, K]: a view of the cache, 256 slots from row to row
    added        0 .. 0 -inf -inf   of each row's first 130, 70, 190 keys

A hidden key has the weight exp(-inf) = 0, and adding 0 changes no bit: a row's result is the same whatever others are
beside it, and however long they are, where the sums of a longer row begin as those of a shorter one (`hidden_agree`
tries it). Rows lie at equal distances where they can (blocks.py); places between them are computed and dropped.
Rows whose blocks lie apart are gathered first. Keys that all of a row's windows hide are left out, in whole blocks.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from scalewright.model.decoder import Decoder
from scalewright.model.visible import alibi_bias, local_slopes
from scalewright.spec.serving import BLOCK, blocks_for

ENDS, LONGEST = (50, 64, 130, 191), 640  # keys of the rows that `hidden_agree` tries
SPARSE = 2  # places of a batch to each of its rows, at most


class Alone(NamedTuple):
    """A token that attends by itself: its row in the forward, the blocks of its request, the keys up to its own."""

    row: int
    table: Sequence[int]
    keys: int


class _Seen(NamedTuple):
    """What it reads: whole blocks, and which of their keys it sees."""

    row: int
    blocks: Sequence[int]
    first: int
    end: int

    @property
    def base(self) -> int:
        """The slot of the first key that it reads."""
        return self.blocks[0] * BLOCK


@dataclass(frozen=True)
class Batch:
    """Rows that attend in one call, and where their keys are."""

    queries: slice | Tensor  # the row of the forward at each place, [n]
    kept: Tensor | None  # the places that rows are at; None: all of them
    rows: slice | Tensor  # of the forward, one for each of those
    where: tuple[int, int] | Tensor  # (first slot, slots from place to place), or all slots, [n * length]
    length: int  # keys
    added: Tensor  # [n, 1 or H, 1, length]

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, scale: float, out: Tensor) -> None:
        """q [N, H, K], keys [slots, G, K], values [slots, G, W] -> the rows of out [N, H, <= W]."""
        count, groups = len(self.added), keys.shape[1]
        k, v = (self._read(store) for store in (keys, values))
        queries = q[self.queries].view(count, groups, -1, q.shape[2])  # a group's heads as its queries
        added = self.added if self.added.shape[1] == 1 else self.added.view(count, groups, -1, self.length)
        got = F.scaled_dot_product_attention(queries, k, v, attn_mask=added, scale=scale)
        got = got.reshape(count, -1, got.shape[3])[..., : out.shape[2]]
        out[self.rows] = got if self.kept is None else got.index_select(0, self.kept)

    def _read(self, store: Tensor) -> Tensor:
        """[n, G, length, K] of a store [slots, G, K]."""
        groups, width = store.shape[1:]
        if isinstance(self.where, Tensor):
            return store.index_select(0, self.where).view(-1, self.length, groups, width).transpose(1, 2)
        start, apart = self.where
        each = groups * width
        shape, strides = (len(self.added), groups, self.length, width), (apart * each, width, each, 1)
        return store.as_strided(shape, strides, start * each)


def batches(model: Decoder, x: Tensor, alone: Sequence[Alone], slots: int, window: int | None) -> list[Batch]:
    """The calls of a layer with this window (None: unlimited); x: a tensor of the forward, for its device and dtype."""
    straight, apart, met = (
        defaultdict[tuple[int, int], list[_Seen]](list),
        defaultdict[int, list[_Seen]](list),
        Counter[int](),
    )
    for token in alone:
        seen = _seen(token, window, model.spec.window_chunks)
        size = 1 << (len(seen.blocks) - 1).bit_length()  # rows of about one length: at most half of the keys is padding
        if all(b - a == 1 for a, b in pairwise(seen.blocks)):
            straight[size, met[seen.base]].append(seen)  # guesses of one row: one of them in each call
            met[seen.base] += 1
        else:
            apart[size].append(seen)
    out = []
    for group in straight.values():
        for part in _evenly(sorted(group, key=lambda seen: seen.base), slots):
            out.append(_strided(model, x, part))
    return out + [_gathered(model, x, group) for group in apart.values()]


def _seen(token: Alone, window: int | None, chunks: bool) -> _Seen:
    first = 0
    if window is not None:
        last = token.keys - 1
        first = last - last % window if chunks else max(0, token.keys - window)
    skipped = first // BLOCK
    blocks = token.table[skipped : blocks_for(token.keys)]
    return _Seen(token.row, blocks, first - skipped * BLOCK, token.keys - skipped * BLOCK)


def _evenly(group: Sequence[_Seen], slots: int) -> Iterator[Sequence[_Seen]]:
    """Parts of rows in the order of their slots, that lie at equal distances with few places between them."""
    step = reduce(math.gcd, (b.base - a.base for a, b in pairwise(group)), 0)
    places = (group[-1].base - group[0].base) // step + 1 if step else 1
    if len(group) == 1 or (places <= SPARSE * len(group) and group[-1].base + _length(group) <= slots):
        yield group
        return
    yield from _evenly(group[: len(group) // 2], slots)
    yield from _evenly(group[len(group) // 2 :], slots)


def _length(group: Sequence[_Seen]) -> int:
    return max(len(seen.blocks) for seen in group) * BLOCK


def _strided(model: Decoder, x: Tensor, group: Sequence[_Seen]) -> Batch:
    step = reduce(math.gcd, (b.base - a.base for a, b in pairwise(group)), 0)
    places = [(seen.base - group[0].base) // step if step else 0 for seen in group]
    at: list[_Seen] = [group[0]] * (places[-1] + 1)  # between rows: anything
    for place, seen in zip(places, group, strict=True):
        at[place] = seen
    kept = None if len(at) == len(group) else torch.tensor(places, device=x.device)
    return _batch(model, x, group, at, kept, (group[0].base, step))


def _gathered(model: Decoder, x: Tensor, group: Sequence[_Seen]) -> Batch:
    length = _length(group)
    slots = []
    for seen in group:
        blocks = [*seen.blocks, *[seen.blocks[-1]] * (length // BLOCK - len(seen.blocks))]
        slots += [block * BLOCK + at for block in blocks for at in range(BLOCK)]
    return _batch(model, x, group, group, None, torch.tensor(slots, device=x.device))


def _batch(
    model: Decoder, x: Tensor, group: Sequence[_Seen], at: Sequence[_Seen], kept: Tensor | None,
    where: tuple[int, int] | Tensor,
) -> Batch:  # fmt: skip
    length, device = _length(group), x.device
    key = torch.arange(length, device=device)
    first, end = (torch.tensor([[value] for value in column], device=device)
                  for column in ([seen.first for seen in at], [seen.end for seen in at]))  # fmt: skip
    added = torch.zeros((len(at), length), dtype=x.dtype, device=device)
    added = added.masked_fill_((key >= end) | (key < first), float("-inf"))[:, None, None]
    if model.spec.positions == "alibi":
        slopes = local_slopes(model.spec.num_attention_heads, model.heads, device)
        bias = torch.cat([alibi_bias(last - 1, key, slopes) for last in end])  # of one query each
        added = added + bias.to(x.dtype)
    rows = _index([seen.row for seen in group], device)
    queries = rows if kept is None else _index([seen.row for seen in at], device)
    return Batch(queries, kept, rows, where, length, added)


def _index(rows: Sequence[int], device: torch.device) -> slice | Tensor:
    """Rows as a slice, which costs no copy, where they follow each other."""
    if all(b - a == 1 for a, b in pairwise(rows)):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, device=device)


@torch.inference_mode()
def hidden_agree(model: Decoder) -> bool:
    """Whether a row's attention has the same bits alone and among others, whatever number of hidden keys is behind it.

    Tried with random numbers in the model's shapes, on this machine.
    """
    spec, mla, dtype = model.spec, model.spec.mla, next(model.parameters()).dtype
    width = spec.dim_per_head if mla is None else mla.kv_lora_rank + mla.qk_rope_head_dim
    groups = spec.kv_heads if mla is None else 1
    generator = torch.Generator().manual_seed(0)
    sizes = (groups, spec.num_attention_heads // groups, width), (groups, LONGEST, width)
    q, k, v = (torch.randn(len(ENDS), *size, generator=generator).to(dtype) for size in (*sizes, sizes[1]))

    def attended(row: slice, length: int) -> Tensor:
        hidden = torch.arange(length) >= torch.tensor(ENDS[row])[:, None]
        added = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))[:, None, None]
        return F.scaled_dot_product_attention(q[row], k[row, :, :length], v[row, :, :length], attn_mask=added)

    whole = attended(slice(None), LONGEST)
    return all(
        torch.equal(attended(slice(row, row + 1), length), whole[row : row + 1])
        for row, end in enumerate(ENDS)
        for length in (blocks_for(end) * BLOCK, 4 * BLOCK)
    )
