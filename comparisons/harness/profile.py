"""Where a step's time goes: torch's profiler, its operators sorted into five kinds by name and shape.

matmul      linear layers of the blocks, forward and backward
attention   scores, softmax and sum
head, loss  every operator on a tensor [..., vocabulary], the head's three matmuls among them
optimizer   norm, clipping, update, the copies to bf16
the rest    norms, rotation, gate, residuals, casts, embedding, gradient sums
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

KINDS = ("matmul", "attention", "head and loss", "optimizer", "the rest")
MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::matmul", "aten::linear", "mkldnn::", "aten::mkldnn")
LOSS = ("nll", "softmax", "crossentropy")
OPTIMIZER = (
    "aten::_fused_adamw_",
    "aten::_foreach_norm",
    "aten::linalg_vector_norm",
    "aten::_foreach_mul_",
    "aten::_foreach_copy_",
    "Optimizer.",
)


def shares(run: Callable[[], object], vocab_size: int) -> dict[str, Any]:
    """The share of self CPU time of each kind, and the ten dearest operators, over what `run` does."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    kinds: dict[str, float] = defaultdict(float)
    operators: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages(group_by_input_shape=True):
        kinds[kind_of(event.key, event.input_shapes or [], vocab_size)] += event.self_cpu_time_total
        operators[event.key] += event.self_cpu_time_total
    total = sum(kinds.values())
    dearest = sorted(operators.items(), key=lambda item: -item[1])[:10]
    return {
        "shares": {kind: kinds[kind] / total for kind in KINDS},
        "operators": {name: time / total for name, time in dearest},
        "cpu_s": total / 1e6,
        "torch": str(torch.__version__),
    }


def kind_of(name: str, shapes: Iterable[Any], vocab_size: int) -> str:
    """Which kind an operator is, from its name and its inputs' shapes."""
    if "attention" in name.lower() or "sdpa" in name.lower():
        return "attention"
    if name.startswith(OPTIMIZER):
        return "optimizer"
    sizes = [shape for shape in shapes if isinstance(shape, (list, tuple)) and shape]
    matmul = name.startswith(MATMULS)
    if matmul and any(vocab_size in shape for shape in sizes):
        return "head and loss"
    if matmul:
        return "matmul"
    if any(shape[-1] == vocab_size for shape in sizes) or any(word in name.lower() for word in LOSS):
        return "head and loss"
    return "the rest"
