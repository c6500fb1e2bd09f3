"""Attention of some of a query's keys, with the logarithm of their weights' sum, so that parts can be merged.

    s = scale q k, capped, masked       lse = log sum over these keys of exp(s)       out = sum exp(s - lse) v

    two parts   lse = log(exp(lse_1) + exp(lse_2))     out = exp(lse_1 - lse) out_1 + exp(lse_2 - lse) out_2

The backward of a part takes the lse and the output of all parts: its weights are then exp(s - lse), and what
it gives is its share of the gradients (Liu et al. 2023, arXiv 2310.01889 §3; Dao 2023, 2307.08691 §2.3).

A sink, a learned logit of each head that joins the softmax but has no value (gpt-oss; Xiao et al. 2023,
arXiv 2309.17453 §3.3), is one part more, of lse `sink` and out 0: it changes the sum alone. Its gradient is

    - sum over queries of exp(sink - lse) (gradient of out . out)

No tensor of all queries by all keys is made, forward or backward: where more than causality hides keys, a part is done
tile by tile (visible.py), and a tile's mask is made for it and dropped. PyTorch's fused kernels are used where they
take the case: the CPU's with or without a mask, a GPU's flash without one, in 16 bits. Else a tile's scores are made in
fp32, of at most ROWS queries and about AT_ONCE numbers. A mask hides by a large finite number: a query that sees no key
of a part has then an lse that merges to nothing, where -inf would give NaN or, from the CPU's kernel, 0.

On a CPU oneDNN makes a kernel for every shape of a 16-bit product that it meets, in about a quarter of a millisecond,
and keeps the last 1,024 of them, at 0.3 to 1 MiB each. Sizes that depend on data (documents of a row, tokens of an
expert) are therefore rounded up, with zeros that change no sum, and kernels are met again. What is left of other sizes,
such as prompts', `keep_few_kernels` bounds (launch/settings.py).

    B batch  H query heads  G key-value heads  Q queries  T keys  K head dim  W of values: K but in MLA
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from scalewright.model.visible import Span, Tile, Visible, hidden_score, tiles

ROWS = 512  # queries whose scores, or whose mask, exist at once
AT_ONCE = 1 << 24  # scores, or numbers of a mask: 64 MiB in fp32
FEWEST = 16  # queries, however long their rows are
_aten: Any = torch.ops.aten


class Part(NamedTuple):
    """Queries of this rank and keys of one rank that may see each other."""

    queries: slice
    keys: slice
    causal: bool = False  # key i is visible from query i on; else all are
    visible: Visible | None = None  # in the place of both


class Scores(NamedTuple):
    """What scores are multiplied by, and the limit that they are held within."""

    scale: float
    cap: float | None = None


def attend(q: Tensor, k: Tensor, v: Tensor, part: Part, scores: Scores) -> tuple[Tensor, Tensor]:
    """q [B, H, Q, K], k [B, G, T, K], v [B, G, T, W] -> out [B, H, Q, W] in their dtype, lse [B, H, Q].

    The lse is in fp32, in fp64 for that. A query that sees no key has 0 and a very low lse.
    """
    if part.visible is None and _is_fused(q, scores):
        return _attend(q, k, v, part.causal, None, scores)
    (visible, plan), wide = _plan(q, k, part, scores), _wide(q.dtype)
    out = q.new_zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]).transpose(1, 2)
    lse = torch.full(q.shape[:3], hidden_score(wide), dtype=wide, device=q.device)
    for tile in plan:
        queries, keys, causal, mask, more = _tile(visible, tile, q)
        of_q, of_k, of_v = _filled(q[queries], more.queries), _filled(k[keys], more.keys), _filled(v[keys], more.keys)
        of_out, of_lse = _attend(of_q, of_k, of_v, causal, mask, scores)
        out[queries], lse[queries] = _own(of_out, more.queries), _own(of_lse, more.queries)
    return out, lse


def attend_backward(
    grad_output: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, part: Part, scores: Scores
) -> tuple[Tensor, Tensor, Tensor]:
    """This part's share of the gradients of q, k and v; `out` and `lse` are those of all parts together."""
    if part.visible is None and _is_fused(q, scores):
        return _attend_backward(grad_output, q, k, v, out, lse, part.causal, None, scores)
    (visible, plan), wide = _plan(q, k, part, scores), _wide(q.dtype)
    grad_q = torch.zeros_like(q)
    grad_k, grad_v = torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)
    for tile in plan:
        queries, keys, causal, mask, more = _tile(visible, tile, q)
        of_grad, of_q, of_out = (_filled(x[queries], more.queries) for x in (grad_output, q, out))
        of_k, of_v = _filled(k[keys], more.keys), _filled(v[keys], more.keys)
        of_lse = F.pad(lse[queries], (0, more.queries)) if more.queries else lse[queries].contiguous()
        of_q, of_k, of_v = _attend_backward(of_grad, of_q, of_k, of_v, of_out, of_lse, causal, mask, scores)
        grad_q[queries] = _own(of_q, more.queries)
        grad_k[keys] += _own(of_k, more.keys)
        grad_v[keys] += _own(of_v, more.keys)
    return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype)


def merge(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> None:
    """Adds a part to the sum so far, in place: out [B, H, Q, K] and lse [B, H, Q], both fp32."""
    joined = torch.logaddexp(lse, more_lse)
    out.mul_((lse - joined).exp_()[..., None])
    out.add_(more * (more_lse - joined).exp_()[..., None])
    lse.copy_(joined)


def add_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> None:
    """Adds the sinks [H] to the sum so far, in place: out [B, H, Q, W] and lse [B, H, Q] in fp32 or fp64."""
    joined = torch.logaddexp(lse, sinks.to(lse.dtype)[:, None])
    out.mul_((lse - joined).exp_()[..., None].to(out.dtype))
    lse.copy_(joined)


def sinks_gradient(grad_output: Tensor, out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """The gradient of the sinks [H], from the output and the lse of all parts with them."""
    delta = (grad_output.to(lse.dtype) * out.to(lse.dtype)).sum(dim=-1)  # [B, H, Q]
    return -((sinks.to(lse.dtype)[:, None] - lse).exp_() * delta).sum(dim=(0, 2)).to(sinks.dtype)


def widened(v: Tensor, width: int) -> Tensor:
    """v [..., W] with zeros up to `width`; itself where it has that width."""
    return F.pad(v, (0, width - v.shape[-1])) if v.shape[-1] < width else v


def _plan(q: Tensor, k: Tensor, part: Part, scores: Scores) -> tuple[Visible, list[Tile]]:
    """The tiles of a part, and what its masks are made of."""
    visible = part.visible or _unmasked(q.shape[2], k.shape[2], part.causal, q.device)
    fused, biased = _is_fused(q, scores), visible.slopes is not None
    alone = fused and not biased and q.device.type == "cpu"  # a mask for all heads, in a fused kernel
    numbers = k.shape[2] * (1 if alone else q.shape[0] * q.shape[1])
    most = max(FEWEST, min(ROWS, AT_ONCE // numbers))
    return visible, tiles(visible.span, most, whole=fused, masked=biased)


def _unmasked(queries: int, keys: int, causal: bool, device: torch.device) -> Visible:
    """Queries that see every key, or key i from query i on."""
    start = 0 if causal else keys
    index = torch.arange(start, start + queries, device=device), torch.arange(keys, device=device)
    host = np.arange(start, start + queries), np.arange(keys)
    first = torch.zeros((1, queries), dtype=torch.int64, device=device)
    return Visible(*index, first, None, Span(*host, np.zeros((1, queries), np.int64)))


_At = tuple[slice, slice, slice]


def _tile(visible: Visible, tile: Tile, q: Tensor) -> tuple[_At, _At, bool, Tensor | None, _More]:
    """A tile's queries and keys in tensors [B, heads, T, ...]; if it is causal; its mask; its padding."""
    numbers = [part.stop - part.start for part in (tile.queries, tile.keys)]
    more = _More(*(-number % EVEN if costs_by_shape(q) else 0 for number in numbers))
    mask = visible.mask(tile, _wide(q.dtype)) if tile.kind == "masked" else None
    if mask is None and tile.kind == "all" and more.keys:
        mask = torch.zeros(1, 1, *numbers, dtype=_wide(q.dtype), device=q.device)
    if mask is not None and any(more):
        mask = F.pad(mask, (0, more.keys, 0, more.queries), value=hidden_score(mask.dtype))
    at = (tile.rows, slice(None))
    return (*at, tile.queries), (*at, tile.keys), tile.kind == "causal", mask, more


class _More(NamedTuple):
    """Zeros behind a tile's queries and behind its keys, which are hidden, so that tiles have few shapes."""

    queries: int
    keys: int


def _filled(x: Tensor, more: int) -> Tensor:
    """x [B, heads, T, K] with so many zeros behind its T."""
    return F.pad(x, (0, 0, 0, more)) if more else x


def _own(x: Tensor, more: int) -> Tensor:
    """x [B, heads, T, ...] without what the zeros gave."""
    return x[:, :, : x.shape[2] - more]


def _attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, scores: Scores
) -> tuple[Tensor, Tensor]:
    """Output and lse of one tile. Both kernels take values as wide as keys: narrower ones get zeros."""
    width = v.shape[-1]
    if _by_cpu_kernel(q, scores):
        out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, widened(v, q.shape[-1]), 0.0, causal, attn_mask=mask, scale=scores.scale
        )
        return out[..., :width], lse
    if mask is None and _by_flash(q, scores):
        out, lse = _aten._scaled_dot_product_flash_attention(
            q, k, widened(v, q.shape[-1]), 0.0, causal, return_debug_mask=False, scale=scores.scale
        )[:2]
        return out[..., :width], lse
    raw, _ = _scores(q, k, causal, mask, scores)
    lse = raw.logsumexp(dim=-1)
    out = raw.sub_(lse[..., None]).exp_().to(v.dtype) @ v[:, :, None]
    return out.flatten(1, 2), lse.flatten(1, 2)


def _attend_backward(
    grad_output: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    causal: bool, mask: Tensor | None, scores: Scores,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    width = v.shape[-1]
    by_flash = mask is None and _by_flash(q, scores)
    if by_flash or _by_cpu_kernel(q, scores):
        grad_output, v, out = (widened(x, q.shape[-1]) for x in (grad_output, v, out))
    if _by_cpu_kernel(q, scores):
        grads = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_output, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scores.scale
        )
        return grads[0], grads[1], grads[2][..., :width]
    if by_flash:
        unused = torch.empty(2, dtype=torch.uint64, device=q.device)  # the dropout's random state
        grads = _aten._scaled_dot_product_flash_attention_backward(
            grad_output, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal,
            unused, unused[:0], scale=scores.scale,
        )  # fmt: skip
        return grads[0], grads[1], grads[2][..., :width]
    wide, groups = _wide(q.dtype), (k.shape[1], -1)
    raw, slope = _scores(q, k, causal, mask, scores)
    grad = torch.unflatten(grad_output, 1, groups)  # [B, G, H/G, Q, W]
    delta = (grad * torch.unflatten(out, 1, groups)).to(wide).sum(dim=-1, keepdim=True)
    weights = raw.sub_(torch.unflatten(lse, 1, groups)[..., None]).exp_()
    grad_v = (weights.to(v.dtype).transpose(-1, -2) @ grad).to(wide).sum(dim=2)
    of_weights = (grad @ v[:, :, None].transpose(-1, -2)).to(wide)
    of_scores = weights.mul_(of_weights.sub_(delta)).mul_(scores.scale)
    of_scores = (of_scores if slope is None else of_scores.mul_(slope)).to(q.dtype)
    grad_q = (of_scores @ k[:, :, None]).flatten(1, 2)
    grad_k = (of_scores.transpose(-1, -2) @ torch.unflatten(q, 1, groups)).to(wide).sum(dim=2)
    return grad_q, grad_k, grad_v


def _scores(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None, scores: Scores) -> tuple[Tensor, Tensor | None]:
    """Masked scores of a tile, [B, G, H/G, Q, T] in fp32 or fp64, and the cap's slope there."""
    queries = torch.unflatten(q, 1, (k.shape[1], -1))
    raw = (queries @ k[:, :, None].transpose(-1, -2)).to(_wide(q.dtype)).mul_(scores.scale)
    slope = None
    if scores.cap is not None:
        bent = raw.div_(scores.cap).tanh_()
        raw, slope = bent * scores.cap, 1.0 - bent.square()
    if causal:
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu_(1)
        raw = raw.masked_fill_(later, hidden_score(raw.dtype))
    if mask is not None:
        raw += mask[:, :, None] if mask.shape[1] == 1 else torch.unflatten(mask, 1, (k.shape[1], -1))
    return raw, slope


def _is_fused(q: Tensor, scores: Scores) -> bool:
    """Whether a kernel takes tiles that need no mask."""
    return _by_cpu_kernel(q, scores) or _by_flash(q, scores)


def _by_cpu_kernel(q: Tensor, scores: Scores) -> bool:
    return q.device.type == "cpu" and scores.cap is None


def _by_flash(q: Tensor, scores: Scores) -> bool:
    half = q.dtype in (torch.bfloat16, torch.float16)
    return scores.cap is None and q.is_cuda and half and q.shape[-1] % 8 == 0


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What scores and sums are held in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


EVEN = 64  # queries and keys of a tile are a multiple of that


def costs_by_shape(x: Tensor) -> bool:
    """Whether each new shape of a product with `x` costs time and memory."""
    return x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16)


def even_rows(number: int) -> int:
    """A number of rows rounded up, by 12.5% or to 16 at most: eight sizes between two powers of two.

    >>> [even_rows(number) for number in (0, 1, 100, 300, 5000)]
    [0, 16, 112, 320, 5120]
    """
    step = max(16, 1 << max(0, number.bit_length() - 4))
    return -(-number // step) * step
