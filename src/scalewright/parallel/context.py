"""Context parallelism: the ranks of `cp` share every row; each has T/cp of its tokens, and all weights.

    kind         tokens of rank r of c        keys and values                              in a forward
    ring         chunks r and 2c-1-r of 2c    pass from rank to rank beside the core       c-1 messages
    allgather    the same                     are gathered before the core                 an all-gather
    ulysses      chunk r of c                 whole rows of H/c heads, there and back      two all-to-alls

(Liu et al. 2023, arXiv 2310.01889; Dubey et al. 2024, 2407.21783 §3.3.2; Jacobs et al. 2023, 2309.14509 §3.)
An early chunk beside a late one gives every rank the same work under the causal mask. Of its own keys a rank
then sees those before; of an earlier rank's keys all queries see the first half, of a later rank's the second
half of the queries sees all:

    cp 2, keys of      rank 0   rank 1                  turn 0     rank's own        causal
    rank 0, queries    a3       -  b                    turn t     rank r - t >= 0   all queries, first half
    of chunks 0, 3     a0       -                                  else              second half, all keys

Weights' gradients are sums over `fsdp` (dp_shard x cp) or `gradient`, as over other ranks with other tokens. The model
stays plain: `apply_context` puts another core into every attention, and describes the parts of a forward once for all
layers: which keys each query sees, in a few numbers a token; the core makes masks of it tile by tile (model/attend.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scalewright.model.attend import Part, Scores
from scalewright.model.attention import Attention, Core
from scalewright.model.cache import Cache
from scalewright.model.context import Context, View, rope_of, temperature_of
from scalewright.model.decoder import Decoder
from scalewright.model.gpu_rows import Packing
from scalewright.model.latent_attention import LatentAttention
from scalewright.model.torch_private import not_compiled
from scalewright.model.visible import Span, Visible, first_keys, local_slopes
from scalewright.parallel.functions import AxisGroup, axis_group, local_part, swap
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.ring import attend_parts
from scalewright.spec.layout import Layout
from scalewright.spec.zigzag import SequenceCut


@dataclass
class RankContext(Context):
    """One forward's shared values, for the queries of this rank."""

    parts: tuple[Part | None, ...] = ()  # of every turn; none where a window hides all its keys
    window_parts: tuple[Part | None, ...] = ()


def apply_context(decoder: Decoder, layout: Layout, mesh: Mesh) -> None:
    """Makes a decoder, or a pipeline's cut of one, compute with this rank's tokens of each row, in place.

    Its forward then takes tokens [B, T/cp] (later stages: hidden), their `positions`, and the `documents` of
    whole rows [B, T]. After `apply_tensor`, whose cut of the heads it reads.
    """
    if mesh.size("cp") == 1:
        return
    group = axis_group(mesh, "cp")
    cut = SequenceCut(layout.cp_kind, group.size, group.index)
    decoder.sequence_cut = cut
    heads = cut.kind == "ulysses"
    if heads:
        share = len(decoder.heads) // group.size
        first = decoder.heads.start + group.index * share
        decoder.heads = range(first, first + share)
    for block in decoder.blocks:
        attention = block.attention
        assert isinstance(attention, Attention | LatentAttention)
        assert isinstance(attention.core, Core)
        plain = attention.core
        core: nn.Module = HeadsCore(plain, group) if heads else PartsCore(plain, cut, group)
        attention.core = core  # type: ignore[assignment]
    make = _whole_context if heads else _parts_context
    decoder.context = partial(make, decoder, decoder.context, cut)  # type: ignore[method-assign]


class PartsCore(nn.Module):
    """Attention of this rank's queries to the keys of all ranks, one rank's after the other."""

    def __init__(self, core: Core, cut: SequenceCut, group: AxisGroup) -> None:
        super().__init__()
        self.scores, self.sliding = Scores(core.scale, core.softcap), core.sliding
        self.passes, self.group = cut.kind == "ring", group

    @not_compiled()  # messages go on while it computes: a graph would wait for them
    def forward(self, q: Tensor, k: Tensor, v: Tensor, context: RankContext, sinks: Tensor | None = None) -> Tensor:
        """q [B, H, T/cp, K], k [B, G, T/cp, K], v [B, G, T/cp, W], sinks [H] -> [B, H, T/cp, W]."""
        parts = context.window_parts if self.sliding else context.parts
        return attend_parts(q, k, v, parts, self.scores, self.group, passes=self.passes, sinks=sinks)


class HeadsCore(nn.Module):
    """Attention of some heads to whole rows: q, k and v change hands, and so does the output."""

    def __init__(self, core: Core, group: AxisGroup) -> None:
        super().__init__()
        self.core, self.group = core, group

    def forward(self, q: Tensor, k: Tensor, v: Tensor, context: Context, sinks: Tensor | None = None) -> Tensor:
        """q [B, H, T/cp, K], k [B, G, T/cp, K], v [B, G, T/cp, W], sinks [H] -> [B, H, T/cp, W].

        Where cp doesn't divide the key-value heads they are repeated first: to cp of them, or to H.
        """
        size, heads = self.group.size, k.shape[1]
        if heads % size:
            repeats = (size if size % heads == 0 else q.shape[1]) // heads
            k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        if v.shape[-1] == k.shape[-1]:
            q, k, v = self._whole_rows(q, k, v)
        else:
            (q, k), (v,) = self._whole_rows(q, k), self._whole_rows(v)
        part = None if sinks is None else local_part(sinks, 0, self.group)
        return swap(self.core(q, k, v, context, part), 2, 1, self.group)

    def _whole_rows(self, *several: Tensor) -> tuple[Tensor, ...]:
        """Each [B, H, T/cp, K] -> [B, H/cp, T, K], in one exchange."""
        by_rank = [torch.unflatten(x, 1, (self.group.size, -1)) for x in several]
        counts = [x.shape[2] for x in by_rank]
        packed = torch.cat(by_rank, dim=2).flatten(1, 2)  # [B, cp (h + ...), T/cp, K]: each rank's together
        return torch.split(swap(packed, 1, 2, self.group), counts, dim=1)


def _whole_context(
    decoder: Decoder, plain: Any, cut: SequenceCut, x: Tensor, length: int, positions: Tensor | None,
    documents: Tensor | None, cache: Cache | None, packing: Packing | None = None,
) -> Context:  # fmt: skip
    """Whole rows, for this rank's heads; rotation by this rank's positions."""
    assert positions is not None, "a rank's tokens need their positions"
    context: Context = plain(x, length * cut.ranks, positions, documents, cache, packing)
    return context


def _parts_context(
    decoder: Decoder, plain: Any, cut: SequenceCut, x: Tensor, length: int, positions: Tensor | None,
    documents: Tensor | None, cache: Cache | None, packing: Packing | None = None,
) -> RankContext:  # fmt: skip
    """Parts, with which keys are visible where the model or the rows need that."""
    assert positions is not None, "a rank's tokens need their positions"
    assert cache is None, "a cache holds whole rows"
    spec = decoder.spec
    rope, local_rope = rope_of(spec, positions)
    makers = _Parts(decoder, cut, length * cut.ranks, x.device, documents, packing)
    parts = window_parts = makers.make(None)
    if spec.sliding_window is not None and any(spec.window_pattern) and length * cut.ranks > spec.sliding_window:
        window_parts = makers.make(spec.sliding_window)
    return RankContext(
        positions, documents, rope, local_rope, View(), View(),
        temperature=temperature_of(spec, positions), parts=parts, window_parts=window_parts,
    )  # fmt: skip


@dataclass
class _Parts:
    decoder: Decoder
    cut: SequenceCut
    length: int  # of whole rows
    device: torch.device
    documents: Tensor | None  # [B, T]
    packing: Packing | None

    def make(self, window: int | None) -> tuple[Part | None, ...]:
        """The parts of all turns; none of a turn whose keys a window hides from all queries."""
        spec = self.decoder.spec
        if window is None and self.documents is None and spec.positions != "alibi":
            return tuple(Part(*self._slices(turn), causal=turn == 0) for turn in range(self.cut.ranks))
        index = torch.arange(self.length, device=self.device)
        chunks = spec.window_chunks
        first = first_keys(index, self.documents, window, chunks)
        host = first_keys_on_host(first, self.documents, self.packing, window=window, chunks=chunks)
        slopes = None
        if spec.positions == "alibi":
            slopes = local_slopes(spec.num_attention_heads, self.decoder.heads, self.device)
        return tuple(self._part(turn, first, host, slopes) for turn in range(self.cut.ranks))

    def _slices(self, turn: int) -> tuple[slice, slice]:
        """Of this rank's tokens as queries, and of the source's as keys: those that may see each other."""
        source, half = self._source(turn), self.length // self.cut.ranks // 2
        queries = slice(half, None) if source > self.cut.rank else slice(None)
        return queries, slice(0, half) if source < self.cut.rank else slice(None)

    def _source(self, turn: int) -> int:
        return (self.cut.rank - turn) % self.cut.ranks

    def _part(self, turn: int, first: Tensor, host: NDArray[np.int64] | None, slopes: Tensor | None) -> Part | None:
        queries, keys = self._slices(turn)
        query = self.cut.tokens(self.length)[queries]
        key = self.cut.tokens(self.length, self._source(turn))[keys]
        known = None if host is None else host[:, query]
        if known is not None and not _any_visible(query, key, known):
            return None
        on_device = _on_device(query, self.device), _on_device(key, self.device)
        visible = Visible(*on_device, first[:, on_device[0]], slopes, Span(query, key, known))
        return Part(queries, keys, visible=visible)


def first_keys_on_host(
    first: Tensor, documents: Tensor | None, packing: Packing | None, *, window: int | None, chunks: bool
) -> NDArray[np.int64] | None:
    """First visible keys on the host, where they are there without waiting for the device.

    `first` [B or 1, T] are the same on the device.
    """
    if documents is None or packing is not None:
        index = torch.arange(first.shape[-1], device="cpu")
        numbers = None if packing is None else torch.from_numpy(packing.documents)
        return first_keys(index, numbers, window, chunks).numpy()
    return None if first.device.type != "cpu" else first.numpy()


def _any_visible(query: NDArray[np.int64], key: NDArray[np.int64], first: NDArray[np.int64]) -> bool:
    """Whether any query sees a key: its last one that isn't after it isn't before its first visible one."""
    last = np.searchsorted(key, query, side="right") - 1
    nearest = np.where(last >= 0, key[np.maximum(last, 0)], -1)
    return bool((nearest >= first).any())


def _on_device(index: NDArray[np.int64], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(index)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
