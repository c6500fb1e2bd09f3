"""Attention of some of a query's keys, with the logarithm of their weights' sum, so that parts can be merged.

    s = scale q k, capped, masked       lse = log sum over these keys of exp(s)       out = sum exp(s - lse) v

    two parts   lse = log(exp(lse_1) + exp(lse_2))     out = exp(lse_1 - lse) out_1 + exp(lse_2 - lse) out_2

The backward of a part takes the lse and the output of all parts: its weights are then exp(s - lse), and what
it gives is its share of the gradients (Liu et al. 2023, arXiv 2310.01889 §3; Dao 2023, 2307.08691 §2.3).

A sink of each head is one part more, of lse `sink` and out 0: it changes the sum alone. Its gradient is

    -sum over queries of exp(sink - lse) (gradient of out . out)

PyTorch's fused kernels are used where they take the case: the CPU's with or without a mask, a GPU's flash
without one, in 16 bits. Else blocks of ROWS queries, in fp32. A mask hides by a large finite number: a
query that sees no key of a part has then an lse that merges to nothing, where -inf would give NaN or, from
the CPU's kernel, 0.

    B batch  H query heads  G key-value heads  Q queries  T keys  K head dim  W of values: K but in MLA
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from scalewright.model.attention import widened

ROWS = 512  # queries whose scores exist at once, without a fused kernel
_aten: Any = torch.ops.aten


class Part(NamedTuple):
    """Queries of this rank and keys of one rank that may see each other."""

    queries: slice
    keys: slice
    causal: bool = False  # key i is visible from query i on
    mask: Tensor | None = None  # [B or 1, H or 1, Q, T], added to the scores


class Scores(NamedTuple):
    """What scores are multiplied by, and the limit that they are held within."""

    scale: float
    cap: float | None = None


def hidden_score(dtype: torch.dtype) -> float:
    """What a mask adds for a key that isn't visible."""
    return torch.finfo(dtype).min / 2


def attend(q: Tensor, k: Tensor, v: Tensor, part: Part, scores: Scores) -> tuple[Tensor, Tensor]:
    """q [B, H, Q, K], k [B, G, T, K], v [B, G, T, W] -> out [B, H, Q, W] in their dtype, lse [B, H, Q], fp32.

    Both kernels take values as wide as keys: narrower ones get zeros at their end.
    """
    width = v.shape[-1]
    if _by_cpu_kernel(q, scores):
        out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, widened(v, q.shape[-1]), 0.0, part.causal, attn_mask=part.mask, scale=scores.scale
        )
        return out[..., :width], lse
    if _by_flash(q, part, scores):
        out, lse = _aten._scaled_dot_product_flash_attention(
            q, k, widened(v, q.shape[-1]), 0.0, part.causal, return_debug_mask=False, scale=scores.scale
        )[:2]
        return out[..., :width], lse
    outs, sums = [], []
    for start in range(0, q.shape[2], ROWS):
        raw, _ = _scores(q, k, part, scores, start)
        lse = raw.logsumexp(dim=-1)
        outs.append(((raw - lse[..., None]).exp().to(v.dtype) @ v[:, :, None]).flatten(1, 2))
        sums.append(lse.flatten(1, 2))
    return torch.cat(outs, dim=2), torch.cat(sums, dim=2)


def attend_backward(
    grad_output: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, part: Part, scores: Scores
) -> tuple[Tensor, Tensor, Tensor]:
    """This part's share of the gradients of q, k and v; `out` and `lse` are those of all parts together."""
    width = v.shape[-1]
    if _by_cpu_kernel(q, scores) or _by_flash(q, part, scores):
        grad_output, v, out = (widened(x, q.shape[-1]) for x in (grad_output, v, out))
    if _by_cpu_kernel(q, scores):
        grads = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_output, q, k, v, out, lse, 0.0, part.causal, attn_mask=part.mask, scale=scores.scale
        )
        return grads[0], grads[1], grads[2][..., :width]
    if _by_flash(q, part, scores):
        unused = torch.empty(2, dtype=torch.uint64, device=q.device)  # the dropout's random state
        grads = _aten._scaled_dot_product_flash_attention_backward(
            grad_output, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, part.causal,
            unused, unused[:0], scale=scores.scale,
        )  # fmt: skip
        return grads[0], grads[1], grads[2][..., :width]
    grad_q, grad_k, grad_v = (
        [],
        torch.zeros_like(k, dtype=torch.float32),
        torch.zeros_like(v, dtype=torch.float32),
    )
    for start in range(0, q.shape[2], ROWS):
        rows, groups = slice(start, start + ROWS), (k.shape[1], -1)
        raw, slope = _scores(q, k, part, scores, start)
        grad = torch.unflatten(grad_output[:, :, rows], 1, groups)  # [B, G, H/G, rows, K]
        delta = (grad * torch.unflatten(out[:, :, rows], 1, groups)).float().sum(dim=-1, keepdim=True)
        weights = raw.sub_(torch.unflatten(lse[:, :, rows], 1, groups)[..., None]).exp_()
        grad_v += (weights.to(v.dtype).transpose(-1, -2) @ grad).float().sum(dim=2)
        of_weights = (grad @ v[:, :, None].transpose(-1, -2)).float()
        of_scores = weights * (of_weights - delta) * (scores.scale if slope is None else scores.scale * slope)
        of_scores = of_scores.to(q.dtype)
        grad_q.append((of_scores @ k[:, :, None]).flatten(1, 2))
        grad_k += (of_scores.transpose(-1, -2) @ torch.unflatten(q[:, :, rows], 1, groups)).float().sum(dim=2)
    return torch.cat(grad_q, dim=2), grad_k.to(k.dtype), grad_v.to(v.dtype)


def merge(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> None:
    """Adds a part to the sum so far, in place: out [B, H, Q, K] and lse [B, H, Q], both fp32."""
    joined = torch.logaddexp(lse, more_lse)
    out.mul_((lse - joined).exp_()[..., None])
    out.add_(more * (more_lse - joined).exp_()[..., None])
    lse.copy_(joined)


def add_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> None:
    """Adds the sinks [H] to the sum so far, in place: out [B, H, Q, W] and lse [B, H, Q], both fp32."""
    joined = torch.logaddexp(lse, sinks.float()[:, None])
    out.mul_((lse - joined).exp_()[..., None])
    lse.copy_(joined)


def sinks_gradient(grad_output: Tensor, out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """The gradient of the sinks [H], from the output and the lse of all parts with them."""
    delta = (grad_output.float() * out.float()).sum(dim=-1)  # [B, H, Q]
    return -((sinks.float()[:, None] - lse).exp() * delta).sum(dim=(0, 2)).to(sinks.dtype)


def _scores(q: Tensor, k: Tensor, part: Part, scores: Scores, start: int) -> tuple[Tensor, Tensor | None]:
    """Masked scores of a block of queries, fp32 [B, G, H/G, rows, T], and the cap's slope there."""
    rows = slice(start, start + ROWS)
    queries = torch.unflatten(q[:, :, rows], 1, (k.shape[1], -1))
    raw, slope = (queries @ k[:, :, None].transpose(-1, -2)).float() * scores.scale, None
    if scores.cap is not None:
        bent = torch.tanh(raw / scores.cap)
        raw, slope = bent * scores.cap, 1.0 - bent.square()
    if part.causal:
        number = torch.arange(k.shape[2], device=q.device)
        later = number[None, :] > start + torch.arange(queries.shape[3], device=q.device)[:, None]
        raw = raw.masked_fill(later, hidden_score(raw.dtype))
    if part.mask is not None:
        mask = part.mask[:, :, rows]
        raw = raw + (mask[:, :, None] if mask.shape[1] == 1 else torch.unflatten(mask, 1, (k.shape[1], -1)))
    return raw, slope


def _by_cpu_kernel(q: Tensor, scores: Scores) -> bool:
    return q.device.type == "cpu" and scores.cap is None


def _by_flash(q: Tensor, part: Part, scores: Scores) -> bool:
    plain = scores.cap is None and part.mask is None and q.shape[-1] % 8 == 0
    return plain and q.is_cuda and q.dtype in (torch.bfloat16, torch.float16)
