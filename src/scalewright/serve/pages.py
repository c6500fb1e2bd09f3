"""Keys and values in blocks, and the model's own attention over them: many rows in one forward, each with its own.

    a forward's tokens, flat    [ a: one token | b: one token | c: 64 of its prompt | zeros ]       x [1, N, D]
    norms, products, experts    all N at once
    attention, in every layer   k, v -> the rows' slots of the cache
                                a, b: q [2, G, H/G, K], keys [2, G, T, K] ──► one call for many rows (batches.py)
                                c: q [1, H, 64, K], its keys [1, G, T_c, K] ──► the layer's own core

    slot of token t of a row = table[t // 64] * 64 + t % 64          keys, values of a layer: [slots, G, K]

Where a row's blocks lie side by side its keys are a view of the cache; else they are gathered first, which costs more
than attending to them. So a call gets the same numbers in the same shape wherever the blocks are, and gives the same
bits. A token that was written attends by itself, also where many are computed at once (a preempted row's, guesses
that are checked); a prompt's in pieces that end at multiples of 64. Scores that are capped, or meet sinks, are made by
the core row by row. Latent attention caches [c, r] in one tensor, of which its values c are the first numbers
(model/latent_attention.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from scalewright.model.attention import Attention
from scalewright.model.cache import Cache
from scalewright.model.context import Context, View, rope_of, temperature_of, views_after
from scalewright.model.decoder import Decoder
from scalewright.model.latent_attention import LatentAttention
from scalewright.serve.batches import Alone, batches
from scalewright.serve.invariant import threads
from scalewright.spec.model import ModelSpec
from scalewright.spec.serving import BLOCK


@dataclass(frozen=True)
class Piece:
    """Tokens of one row in a forward: the last `count` of its first `end`, whose blocks are `table`."""

    table: tuple[int, ...]
    start: int
    count: int
    prompt: int  # tokens of the row that came as its prompt

    @property
    def end(self) -> int:
        """Tokens of the row up to this piece's last."""
        return self.start + self.count

    def slots(self, start: int = 0) -> list[int]:
        """Where its tokens from `start` on are in the cache."""
        return [self.table[t // BLOCK] * BLOCK + t % BLOCK for t in range(start, self.end)]


@dataclass(frozen=True)
class _Read:
    """Queries of one row that the core gets at once, and the keys of their row."""

    rows: slice  # of the forward
    where: slice | Tensor  # slots
    context: Context  # with what these queries see
    first: int = 0  # of the keys, in layers with a window that needs no mask


class Pages:
    """The cache's memory: for every attention of a model [slots, G, K], and values [slots, G, W].

    `number`: of threads that attend to a piece of a prompt.
    """

    def __init__(self, model: Decoder, blocks: int, number: int = 1) -> None:
        self.slots, self.threads = blocks * BLOCK, number
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        attentions = [m for m in model.modules() if isinstance(m, Attention | LatentAttention)]
        for number, attention in enumerate(attentions):
            latent = attention.mla.kv_lora_rank if isinstance(attention, LatentAttention) else None
            core: nn.Module = attention.core
            paged = PagedCore(core.core if isinstance(core, PagedCore) else core, number, latent)
            attention.core = paged  # type: ignore[assignment]

    def write(self, number: int, slots: Tensor, k: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor]:
        """Puts k, v [1, G, N, K] of an attention into their slots [N]; its whole cache, as [slots, G, K]."""
        if number not in self._keys:
            keys = self._keys[number] = k.new_zeros(self.slots, k.shape[1], k.shape[3])  # no NaN among hidden keys
            self._values[number] = keys if v is None else v.new_zeros(self.slots, v.shape[1], v.shape[3])
        count = slots.shape[0]
        self._keys[number].index_copy_(0, slots, k[0].transpose(0, 1)[:count])
        if v is not None:
            self._values[number].index_copy_(0, slots, v[0].transpose(0, 1)[:count])
        return self._keys[number], self._values[number]

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies blocks to others, in every layer."""
        stores = {id(store): store for store in (*self._keys.values(), *self._values.values())}
        for store in stores.values():
            blocks = store.view(-1, BLOCK, *store.shape[1:])
            blocks[list(targets)] = blocks[list(sources)]

    @property
    def bytes(self) -> int:
        """Memory of keys and values that is taken."""
        stores = {id(store): store for store in (*self._keys.values(), *self._values.values())}
        return sum(store.numel() * store.element_size() for store in stores.values())


def token_bytes(spec: ModelSpec, element: int, heads: int | None = None, modules: int = 0) -> int:
    """Bytes of a token's keys and values in all layers; `heads`: the KV heads of a rank, `modules`: of prediction.

    2 x layers x G x K x bytes; latent attention: layers x (L + R) x bytes.
    """
    layers = spec.num_hidden_layers + modules
    if spec.mla is not None:
        return layers * (spec.mla.kv_lora_rank + spec.mla.qk_rope_head_dim) * element
    return 2 * layers * (spec.kv_heads if heads is None else heads) * spec.dim_per_head * element


def _seen(full: View, sliding: View) -> Context:
    """What a core reads of a context."""
    return Context(torch.empty(0), None, None, None, full, sliding)


PLAIN = _seen(View(), View())  # a query that sees all keys that it is given


class PagedStep(Cache):
    """One forward's pieces, as the model's cache: what blocks see of it is that there is one."""

    def __init__(self, pages: Pages, pieces: Sequence[Piece], model: Decoder, x: Tensor) -> None:
        super().__init__(room=0)
        self.length = 1  # tokens may have come before: latent attention reads latents
        self.pages = pages
        self.slots = torch.tensor([slot for piece in pieces for slot in piece.slots(piece.start)], device=x.device)
        spec, row, alone = model.spec, 0, list[Alone]()
        together = spec.attention_softcap is None and not spec.attention_sinks
        self.reads: list[_Read] = []
        for piece in pieces:
            for start, count in _queries(piece):
                if together and start >= piece.prompt:
                    alone.append(Alone(row, piece.table, start + 1))
                else:
                    self.reads.append(_read(piece, row, start, count, model, x))
                row += count
        self.full = batches(model, x, alone, pages.slots, None) if alone else []
        self.sliding = self.full
        if spec.sliding_window is not None and any(token.keys > spec.sliding_window for token in alone):
            self.sliding = batches(model, x, alone, pages.slots, spec.sliding_window)

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """k and v as they are: the core puts them into the cache."""
        return k, v

    def advance(self, count: int) -> None:
        """Nothing: rows are counted by who made the pieces."""


def _queries(piece: Piece) -> list[tuple[int, int]]:
    """(start, count) of the queries that are attended at once."""
    of_prompt = max(0, min(piece.end, piece.prompt) - piece.start)
    head = [(piece.start, of_prompt)] if of_prompt else []
    return head + [(token, 1) for token in range(piece.start + of_prompt, piece.end)]


def _read(piece: Piece, row: int, start: int, count: int, model: Decoder, x: Tensor) -> _Read:
    spec, length, rows = model.spec, start + count, slice(row, row + count)
    blocks = piece.table[: -(-length // BLOCK)]
    side_by_side = all(b - a == 1 for a, b in pairwise(blocks))
    begin = blocks[0] * BLOCK
    where: slice | Tensor = slice(begin, begin + length)
    if not side_by_side:
        where = torch.tensor(Piece(piece.table, 0, length, 0).slots(), device=x.device)
    if count > 1 or spec.positions == "alibi":
        return _Read(rows, where, _seen(*views_after(spec, start, count, x, model.heads)))
    window, first = spec.sliding_window, 0
    if window is not None and length > window:
        first = start - start % window if spec.window_chunks else length - window
    return _Read(rows, where, PLAIN, first)


class PagedCore(nn.Module):
    """In the place of a layer's core: puts its k and v into the cache, and gives the core each row's own."""

    def __init__(self, core: nn.Module, number: int, latent: int | None) -> None:
        super().__init__()
        self.core, self.number, self.latent = core, number, latent
        self.scale = float(core.scale)  # type: ignore[arg-type]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, context: Context, sinks: Tensor | None = None) -> Tensor:
        """q [1, H, N, K], k [1, G, N, K], v [1, G, N, W] of a flat forward -> [1, H, N, W]."""
        step = context.cache
        if not isinstance(step, PagedStep):
            return self.core(q, k, v, context, sinks)  # type: ignore[no-any-return]
        keys, values = step.pages.write(self.number, step.slots, k, None if self.latent else v)
        sliding, width, of_rows = self.core.sliding, v.shape[-1], q[0].transpose(0, 1)
        out = q.new_zeros(len(of_rows), q.shape[1], width)
        # which thread has a head changes nothing of it; for one query their meeting takes longer than its work
        for read in step.reads:
            first, several = read.first if sliding else 0, read.rows.stop - read.rows.start > 1
            with threads(step.pages.threads if several else 1):
                got = self.core(q[:, :, read.rows], _rows(keys, read.where, first), _rows(values, read.where, first),
                                read.context, sinks)  # fmt: skip
            out[read.rows] = got[0].transpose(0, 1)[..., :width]
        for batch in step.sliding if sliding else step.full:
            with threads(step.pages.threads if len(batch.added) > 1 else 1):
                batch.attend(of_rows, keys, values, self.scale, out)
        return out.transpose(0, 1)[None]


def _rows(store: Tensor, where: slice | Tensor, first: int) -> Tensor:
    """Keys or values of one row, [1, G, T, K], of all slots': a view where its blocks lie side by side."""
    if isinstance(where, slice):
        own = store[where.start + first : where.stop]
    else:
        own = store.index_select(0, where[first:])
    return own.transpose(0, 1)[None]


def paged_forward(model: Decoder, pages: Pages, tokens: Sequence[int], pieces: Sequence[Piece], rows: int) -> Tensor:
    """Hidden states [rows, D], after the final norm, of the pieces' tokens, and behind them of zeros."""
    device = next(model.parameters()).device
    flat = torch.tensor([[*tokens, *[0] * (rows - len(tokens))]], device=device)
    positions = _positions(pieces, rows, device)
    x = model.embedded_tokens(flat, positions)
    return model.run(x, _context(model, pages, x, pieces, positions))[0][0]


def paged_prediction(
    model: Decoder, pages: Pages, hidden: Tensor, tokens: Sequence[int], pieces: Sequence[Piece]
) -> Tensor:
    """The first prediction module's hidden [rows, D], from that of the pieces' tokens and the tokens after them."""
    more = len(hidden) - len(tokens)
    flat = torch.tensor([[*tokens, *[0] * more]], device=hidden.device)
    x = hidden[None]
    positions = _positions(pieces, len(hidden), hidden.device)
    return model.predict(0, x, flat, _context(model, pages, x, pieces, positions))[0]


def _positions(pieces: Sequence[Piece], rows: int, device: torch.device) -> Tensor:
    """Those of the pieces' tokens, and zeros, [1, rows]."""
    places = [place for piece in pieces for place in range(piece.start, piece.end)]
    return torch.tensor([[*places, *[0] * (rows - len(places))]], device=device)


def _context(model: Decoder, pages: Pages, x: Tensor, pieces: Sequence[Piece], positions: Tensor) -> Context:
    """What all blocks share, for x [1, rows, D]."""
    ropes, heat = _ropes(model.spec, positions, pieces), temperature_of(model.spec, positions)
    return Context(positions, None, *ropes, View(), View(), PagedStep(pages, pieces, model, x), heat)


def _ropes(spec: ModelSpec, positions: Tensor, pieces: Sequence[Piece]) -> tuple[Any, Any]:
    """Rotary tables; where they depend on the longest position, of each piece by itself."""
    if spec.positions != "rope" or spec.rope.scaling is None or spec.rope.scaling.kind != "dynamic":
        return rope_of(spec, positions)
    sizes = [piece.count for piece in pieces]
    sizes.append(positions.shape[1] - sum(sizes))  # of padding
    parts = [rope_of(spec, part) for part in torch.split(positions, sizes, dim=1) if part.shape[1]]
    joined = []
    for tables in zip(*parts, strict=True):
        cos, sin = zip(*tables, strict=True)
        joined.append((torch.cat(cos, dim=1), torch.cat(sin, dim=1)))
    return joined[0], joined[1]
