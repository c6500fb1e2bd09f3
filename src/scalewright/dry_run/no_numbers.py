"""What a dry run does where a rank looks at a tensor's numbers, or at its memory: fake tensors have neither.

Functions of a real run have no form for fake tensors; here each gets a stand-in for these, where it is looked up. Real
tensors go to the function itself, also those of a run in another thread. And operators as a GPU runs them, for a dry
run on a machine without one: what each keeps for its backward.

    operator         CPU kernel keeps                           CUDA kernel keeps
    rms_norm         x and x / rms(x), both in fp32             x in its own dtype, 1 / rms of each row
    attention of     key heads as they are                      key heads repeated for every query head, where
    plain rows                                                  the dtype is fp32 (or there is a mask)

A CPU's rms_norm is a chain of operators, CUDA's is one kernel (torch >= 2.9, `_fused_rms_norm`). CUDA's flash attention
takes groups of query heads but no mask and no fp32 (model/attention.py). Packed rows, windows, ALiBi
and caps keep q, k, v, the output and its lse on both (model/rows.py, gpu_rows.py). Only shapes, dtypes and lifetimes
are right here. All is read from PyTorch's source and not measured (docs/gpu-claims.md). What both devices do alike
isn't here, such as log_softmax, which copies a bf16 input to fp32 on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scalewright.model import moe
from scalewright.model.torch_private import FakeTensor, collectives, unset_fake_temporarily
from scalewright.parallel import context, functions

FIRST_KEYS = context.first_keys_on_host
HALF = (torch.bfloat16, torch.float16)
RMS_NORM, ATTENTION = F.rms_norm, F.scaled_dot_product_attention


def use_stand_ins() -> None:
    """From now on fake tensors go to the stand-ins below. Once is enough."""
    for module, name, stand_in in STAND_INS:
        function = getattr(module, name)
        if not hasattr(function, "__wrapped__"):
            setattr(module, name, _for_fake_tensors(function, stand_in))


def _for_fake_tensors(function: Callable[..., Any], stand_in: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def choose(tensors: Tensor | Sequence[Tensor], *rest: Any, **more: Any) -> Any:
        first = tensors if isinstance(tensors, Tensor) else tensors[0]
        return (stand_in if isinstance(first, FakeTensor) else function)(tensors, *rest, **more)

    return choose


def _evenly(counts: Sequence[Tensor], totals: Sequence[int]) -> list[list[int]]:
    """Each of `totals`, which the counts add up to, spread evenly over them."""
    ends = [[total * part // len(c) for part in range(len(c) + 1)] for c, total in zip(counts, totals, strict=True)]
    return [[end - start for start, end in pairwise(of_one)] for of_one in ends]


def _all_gather(x: Tensor, group: functions.AxisGroup) -> Tensor:
    """To tensors without memory torch describes the other call as if it made a second output."""
    started: Tensor = collectives.all_gather_into_tensor(x, group.size, group.name)
    return started


def _first_keys_on_host(first: Tensor, documents: Tensor | None, packing: Any, **rule: Any) -> Any:
    """A dry run's own numbers are on the host, but not those of a batch's documents."""
    if documents is not None and packing is None:
        return None
    with unset_fake_temporarily():
        return FIRST_KEYS(first, documents, packing, **rule)


STAND_INS: tuple[tuple[ModuleType, str, Callable[..., Any]], ...] = (
    (moe, "on_host", _evenly),
    (functions, "start_all_gather", _all_gather),
    (context, "first_keys_on_host", _first_keys_on_host),
)


@contextmanager
def gpu_forms() -> Iterator[None]:
    """While it is entered, the operators above keep what CUDA's kernels keep.

    They are replaced where they are looked up: a torch function mode is off inside `backward`, where
    recomputation calls them again.
    """
    for name, (_, form) in _FORMS.items():
        setattr(F, name, form)
    try:
        yield
    finally:
        for name, (original, _) in _FORMS.items():
            setattr(F, name, original)


def _rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """A LayerNorm without a bias: one kernel that keeps x, the weight and two numbers a row.

    It is an operator of torch's, as CUDA's RMSNorm is: a split backward does it in parts, and keeps the
    gradient of its output between them. A Python function has no parts (parallel/backward.py).
    """
    if weight is not None and weight.dtype != x.dtype:  # CUDA has no kernel for two dtypes either
        return RMS_NORM(x, list(normalized_shape), weight, eps)
    return F.layer_norm(x, list(normalized_shape), weight)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    enable_gqa: bool = False,
    **kwargs: Any,
) -> Tensor:
    if enable_gqa and (attn_mask is not None or query.dtype not in HALF):
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        enable_gqa = False
    return ATTENTION(query, key, value, attn_mask, enable_gqa=enable_gqa, **kwargs)


# Names in torch.nn.functional: torch's own, and what stands in for it.
_FORMS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "rms_norm": (RMS_NORM, _rms_norm),
    "scaled_dot_product_attention": (ATTENTION, _attention),
}
