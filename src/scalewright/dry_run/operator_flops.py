"""FLOPs of an operator that runs: matmuls and attention; the rest counts as none, as usual.

    [m, k] @ [k, n]              2 m n k
    attention, forward           2 matmuls over the full square of scores
    attention, backward          4 matmuls: a fused kernel's own recomputation of the scores is not counted

The convention is that of `spec/operators.py` (PaLM, Chowdhery et al. 2022, appendix B), whichever kernel
runs, so that the two can be compared. A recomputed forward is counted: it runs.
"""

from __future__ import annotations

from typing import Any

from torch.utils.flop_counter import flop_registry

_FORWARD = frozenset(
    {
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    }
)
_BACKWARD = frozenset(f"{name}_backward" for name in _FORWARD)


def flops_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, object], result: Any) -> int:
    """FLOPs of one call of an operator."""
    packet = func._overloadpacket
    name = packet.__name__
    if name in _FORWARD:
        return 2 * _square(args[0], args[1], args[2])
    if name in _BACKWARD:  # its first argument is the output's gradient
        return 4 * _square(args[1], args[2], args[3])
    formula = flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=result)) if formula is not None else 0


def _square(query: Any, key: Any, value: Any) -> int:
    """Half of the FLOPs of both matmuls, each 2 x rows x columns x depth: [B,H,T,D] over [B,H,S,D]."""
    batch, heads, rows, depth = query.shape
    return int(batch * heads * rows * key.shape[-2] * (depth + value.shape[-1]))
