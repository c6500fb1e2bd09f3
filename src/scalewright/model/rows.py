"""Attention of whole rows in which more than causality hides keys, or scores are capped: one operator.

    q, k, v, first [B or 1, T] --attend_rows--> out, lse             kept: these, and nothing of T x T
    grad of out                --attend_rows_backward--> grads       a tile's mask and scores are made again

Documents of packed rows, windows, ALiBi and caps take it; a plainly causal row takes PyTorch's own (attention.py).
`first` is each token's first visible key (visible.py), in the place of a mask. Sinks come after the kernel (attend.py).

It is registered as an operator: compiled blocks hold it as one node, recomputation keeps or repeats it like
PyTorch's kernels, and a dry run counts its outputs but, as of any kernel, not what it allocates for a tile.

    B batch  H query heads  G key-value heads  Q queries: the last of T tokens  K head dim  W of values
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from scalewright.model.attend import Part, Scores, add_sinks, attend, attend_backward, sinks_gradient
from scalewright.model.torch_private import not_compiled
from scalewright.model.visible import Span, Visible

_WHOLE = slice(None)


def attend_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    first: Tensor,
    scores: Scores,
    *,
    host: Tensor | None = None,
    slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """q [B, H, Q, K], k [B, G, T, K], v [B, G, T, W] -> [B, H, Q, W]: query i sees keys first_i to i.

    `first` int64 [B or 1, T], from `visible.first_keys`; `host`: the same in host memory where it is on a
    device, so that invisible keys are skipped; `slopes` fp32 [H] of ALiBi; `sinks` [H].
    """
    return _attend_rows(q, k, v, first, host, slopes, sinks, scores.scale, scores.cap)[0]  # type: ignore[no-any-return]


def _operator(function: Callable[..., Any]) -> Any:
    """Registers a function under its name. As `torch.library.custom_op`, which imports torch's compiler to run it."""
    name = f"scalewright::{function.__name__.lstrip('_')}"
    schema = torch.library.infer_schema(function, mutates_args=())
    torch.library.define(name, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(name, "default", not_compiled()(function))
    return getattr(torch.ops.scalewright, function.__name__.lstrip("_"))


@_operator
def _attend_rows(
    q: Tensor, k: Tensor, v: Tensor, first: Tensor, host: Tensor | None, slopes: Tensor | None, sinks: Tensor | None,
    scale: float, cap: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out, lse = attend(q, k, v, _part(q.shape[2], first, host, slopes), Scores(scale, cap))
    if sinks is not None:
        add_sinks(out, lse, sinks)
    return out, lse


@_operator
def _attend_rows_backward(
    grad_output: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, first: Tensor, host: Tensor | None,
    slopes: Tensor | None, sinks: Tensor | None, scale: float, cap: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    part = _part(q.shape[2], first, host, slopes)
    if grad_output.stride(-1) != 1:
        grad_output = grad_output.contiguous()
    grads = attend_backward(grad_output, q, k, v, out, lse, part, Scores(scale, cap))
    return *grads, q.new_empty(0) if sinks is None else sinks_gradient(grad_output, out, lse, sinks)


def _part(queries: int, first: Tensor, host: Tensor | None, slopes: Tensor | None) -> Part:
    """All keys, and the last tokens as queries."""
    start, length = first.shape[1] - queries, first.shape[1]
    known = first if first.device.type == "cpu" else host
    span = Span(np.arange(start, length), np.arange(length), None if known is None else known.numpy()[:, start:])
    index = torch.arange(length, device=first.device)
    return Part(_WHOLE, _WHOLE, visible=Visible(index[start:], index, first[:, start:], slopes, span))


# -- what autograd, fake tensors and counters of FLOPs need ------------------------------------------


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, first, host, slopes, sinks, ctx.scale, ctx.cap = inputs
    ctx.save_for_backward(q, k, v, *output, first, host, slopes, sinks)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_output: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad_output is None:
        return (None,) * 9
    of_q, of_k, of_v, of_sinks = _attend_rows_backward(grad_output, *ctx.saved_tensors, ctx.scale, ctx.cap)
    return of_q, of_k, of_v, None, None, None, of_sinks if ctx.needs_input_grad[6] else None, None, None


torch.library.register_autograd("scalewright::attend_rows", _backward, setup_context=_keep)


@torch.library.register_fake("scalewright::attend_rows")  # type: ignore[untyped-decorator]
def _fake(
    q: Tensor, k: Tensor, v: Tensor, first: Tensor, host: Any, slopes: Any, sinks: Any, scale: float, cap: Any
) -> tuple[Tensor, Tensor]:
    batch, heads, queries, _ = q.shape
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    out = q.new_empty(batch, queries, heads, v.shape[-1]).transpose(1, 2)
    return out, q.new_empty(batch, heads, queries, dtype=wide)


@torch.library.register_fake("scalewright::attend_rows_backward")  # type: ignore[untyped-decorator]
def _fake_backward(
    grad_output: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, first: Tensor, host: Any,
    slopes: Any, sinks: Tensor | None, scale: float, cap: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    of_sinks = q.new_empty(0) if sinks is None else torch.empty_like(sinks)
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), of_sinks


def _products(q: Any, k: Any, v: Any) -> int:
    """FLOPs of scores and their product with values, over the full square by convention (dry_run/watch.py)."""
    batch, heads, queries, width = q
    return int(2 * batch * heads * queries * k[2] * (width + v[3]))


@register_flop_formula(torch.ops.scalewright.attend_rows)
def _flops(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return _products(q, k, v)


@register_flop_formula(torch.ops.scalewright.attend_rows_backward)
def _flops_backward(grad_output: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return 2 * _products(q, k, v)
