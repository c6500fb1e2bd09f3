"""Packed rows at random, and attention by its formula: document by document, and with a whole mask."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from scalewright.model.attend import Scores
from scalewright.model.visible import alibi_slopes, first_keys


class Case(NamedTuple):
    """Attention of packed rows; a head's values are `wide` wide."""

    lengths: tuple[tuple[int, ...], ...] | None  # of each row's documents; null: two whole rows
    window: int | None = None
    chunks: bool = False
    cap: float | None = None
    alibi: bool = False
    sinks: bool = False
    wide: int = 8
    heads: int = 4
    groups: int = 2


LENGTH = 300
DOCUMENTS = ((1, 150, 1, 1, 40, 107), (7, 3, 130, 160))  # of one token, shorter and longer than a tile's least
CASES: dict[str, Case] = {
    "documents": Case(DOCUMENTS),
    "one head of keys": Case(DOCUMENTS, groups=1),
    "narrow values": Case(DOCUMENTS, wide=5, groups=4),
    "a token each": Case(((1,) * LENGTH, (LENGTH,))),
    "window": Case(None, window=20),
    "a token's window": Case(None, window=1),
    "documents, window": Case(DOCUMENTS, window=33),
    "chunks": Case(None, window=64, chunks=True),
    "documents, chunks": Case(DOCUMENTS, window=50, chunks=True),
    "cap": Case(None, cap=2.0),
    "documents, cap, window": Case(DOCUMENTS, cap=2.0, window=70),
    "narrow values, cap": Case(DOCUMENTS, cap=2.0, wide=5),
    "alibi": Case(None, alibi=True),
    "documents, alibi": Case(DOCUMENTS, alibi=True, groups=4),
    "documents, sinks": Case(DOCUMENTS, sinks=True),
    "window, sinks, cap": Case(None, window=30, sinks=True, cap=2.0),
}


class Rows(NamedTuple):
    """A case's numbers; q, k, v, and sinks require gradients."""

    q: Tensor  # [2, H, T, K]
    k: Tensor
    v: Tensor
    sinks: Tensor | None
    documents: Tensor | None
    first: Tensor
    slopes: Tensor | None
    scores: Scores
    grad: Tensor  # of the output

    @property
    def inputs(self) -> list[Tensor]:
        """What gets gradients."""
        return [x for x in (self.q, self.k, self.v, self.sinks) if x is not None]


def make(case: Case, dtype: torch.dtype = torch.float64, device: str = "cpu", width: int = 8) -> Rows:
    """Random numbers for a case, q, k and v laid out as a projection makes them: [B, T, heads, width].

    Heads of the case's values are `wide` of 8 parts of that.
    """
    random = torch.Generator().manual_seed(0)

    def numbers(heads: int, width: int) -> Tensor:
        x = torch.randn(2, LENGTH, heads, width, generator=random, dtype=torch.float64)
        return x.to(device, dtype).transpose(1, 2)

    wide = width * case.wide // 8
    q, k, v = numbers(case.heads, width), numbers(case.groups, width), numbers(case.groups, wide)
    sinks = torch.randn(case.heads, generator=random).to(device, dtype) if case.sinks else None
    grad = numbers(case.heads, wide)
    documents = None if case.lengths is None else documents_of(case.lengths).to(device)
    first = first_keys(torch.arange(LENGTH, device=device), documents, case.window, case.chunks)
    slopes = torch.tensor(alibi_slopes(case.heads), device=device) if case.alibi else None
    for x in (q, k, v, sinks):
        if x is not None:
            x.requires_grad_()
    return Rows(q, k, v, sinks, documents, first, slopes, Scores(0.4 * (8 / width) ** 0.5, case.cap), grad)


def documents_of(lengths: tuple[tuple[int, ...], ...]) -> Tensor:
    """int32 [B, T]: the number of each token's document."""
    return torch.from_numpy(np.stack([np.repeat(np.arange(len(row)), row) for row in lengths]).astype(np.int32))


def random_lengths(seed: int, length: int = LENGTH) -> tuple[int, ...]:
    """Documents of random lengths that fill a row."""
    random = np.random.default_rng(seed)
    ends = np.unique(np.append(random.integers(1, length, random.integers(0, 12)), length))
    return tuple(int(n) for n in np.diff(np.append(0, ends)))


def by_documents(case: Case, rows: Rows) -> Tensor:
    """Each document by itself, by its formula: visibility from indices inside it alone.

    Windows side by side count from the row's begin, not the document's.
    """
    lengths = case.lengths or ((LENGTH,), (LENGTH,))
    outs = []
    for row, documents in enumerate(lengths):
        start, parts = 0, []
        for count in documents:
            at = (slice(row, row + 1), slice(None), slice(start, start + count))
            parts.append(_document(case, rows, *(x[at] for x in (rows.q, rows.k, rows.v)), start))
            start += count
        outs.append(torch.cat(parts, dim=2))
    return torch.cat(outs)


def _document(case: Case, rows: Rows, q: Tensor, k: Tensor, v: Tensor, start: int) -> Tensor:
    index = torch.arange(start, start + q.shape[2], device=q.device)
    away = index[:, None] - index[None, :]
    visible = away >= 0
    if case.window is not None and case.chunks:
        chunk = (index - start) // case.window
        visible = visible & (chunk[:, None] == chunk[None, :])
    elif case.window is not None:
        visible = visible & (away < case.window)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    if case.cap is None and not case.alibi and not case.sinks and case.wide == q.shape[-1]:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=rows.scores.scale)
    raw: Tensor = q @ k.transpose(-1, -2) * rows.scores.scale
    if case.cap is not None:
        raw = torch.tanh(raw / case.cap) * case.cap
    if rows.slopes is not None:
        raw = raw - rows.slopes[None, :, None, None].to(raw.dtype) * away
    raw = raw.masked_fill(~visible, float("-inf"))
    if rows.sinks is not None:
        sinks = rows.sinks[None, :, None, None].expand(*raw.shape[:3], 1)
        return torch.cat([raw, sinks], dim=-1).softmax(dim=-1)[..., :-1] @ v
    return raw.softmax(dim=-1) @ v


def with_gradients(out: Tensor, rows: Rows) -> list[Tensor]:
    """The output and the gradients of what has them."""
    return [out.detach(), *torch.autograd.grad(out, rows.inputs, rows.grad)]


def keywords(rows: Rows) -> dict[str, Any]:
    """The arguments of `attend_rows` beside its tensors."""
    return {"slopes": rows.slopes, "sinks": rows.sinks}
