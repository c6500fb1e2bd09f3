"""What a rank keeps where: widths of numbers, what is offloaded, FSDP's padding.

    of n numbers      parameters                                      gradients        optimizer (AdamW)
    alone, fp32       4 n                                             4 n              8 n
    replicated        4 n; bf16: 6 n, a copy beside fp32 masters      4 n              8 n
    sharded           4 n / ranks, in fp32 whatever is computed in    4 n / ranks      8 n / ranks

Sharded tensors are padded to a multiple of the ranks, in their rows, as FSDP does; states have no padding.
Tensors that a ZeRO stage keeps whole from a step's first forward to its end are `spec/volumes.py`'s.
In fp16: 2 + 2 + 12 bytes (Rajbhandari et al. 2020 §3.1).

States of other optimizers: optimizers.py; what PowerSGD keeps of compressed gradients: compress.py.
"""

from __future__ import annotations

from math import prod

from scalewright.spec.layout import Layout

FP32, BF16 = 4, 2


def offloads_parameters(layout: Layout) -> bool:
    """Whether parameter shards are kept on the host."""
    return layout.offload in ("parameters", "all")


def offloads_optimizer(layout: Layout) -> bool:
    """Whether the host has extra master weights (offloaded parameters are masters already)."""
    return layout.offload == "optimizer"


def offloads_activations(layout: Layout) -> bool:
    """Whether activations that blocks save for the backward are kept on the host."""
    return layout.offload in ("activations", "all")


def is_sharded(layout: Layout) -> bool:
    """Whether FSDP shards the parameters; ZeRO over one rank is replication, unless they are offloaded."""
    return bool(layout.zero_stage) and (layout.dp_shard * layout.cp > 1 or offloads_parameters(layout))


def padded_rows(shape: tuple[int, ...], ranks: int) -> int:
    """Elements of a tensor whose rows are padded to a multiple of the ranks."""
    return -(-shape[0] // ranks) * ranks * prod(shape[1:])
