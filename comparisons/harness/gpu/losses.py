"""The head and its loss at a large vocabulary, forward and backward: time and memory of the ways to do it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.gpu.budget import Check
from harness.gpu.clock import time_call
from scalewright.parallel.chunked_loss import head_in_chunks
from scalewright.parallel.cross_entropy import CrossEntropy

Way = Callable[[Tensor, Tensor, Tensor], Tensor]  # hidden [T, D], weight [V, D], targets [T] -> mean loss


def whole(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Ours: all logits at once, in fp32, the gradient in their place."""
    total, _ = CrossEntropy()(F.linear(hidden, weight)[None], targets[None])
    return total / len(targets)


def in_chunks(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Ours where logits outgrow the head's gradient: its product in the loop, gradients in the forward."""
    total, _ = head_in_chunks(hidden, weight, None, targets, CrossEntropy().chunk, keep=True)
    return total / len(targets)


def stock(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The same by torch's own cross-entropy."""
    return F.cross_entropy(F.linear(hidden, weight).float(), targets)


def chunked(rows: int, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Gradients of `rows` tokens at a time, made in the forward: logits of one chunk at most."""
    return _Chunked.apply(hidden, weight, targets, rows)  # type: ignore[no-untyped-call,no-any-return]


class _Chunked(torch.autograd.Function):
    """Plain torch: softmax minus one-hot, then the two products, chunk by chunk."""

    @staticmethod
    def forward(context: Any, hidden: Tensor, weight: Tensor, targets: Tensor, rows: int) -> Tensor:
        d_hidden, d_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float32)
        loss = torch.zeros((), device=hidden.device)
        for start in range(0, len(hidden), rows):
            some, wanted = hidden[start : start + rows], targets[start : start + rows]
            logs = F.linear(some, weight).float().log_softmax(-1)
            loss -= logs.gather(1, wanted[:, None]).sum()
            slope = logs.exp_()
            slope.scatter_add_(1, wanted[:, None], -torch.ones_like(wanted[:, None], dtype=slope.dtype))
            slope = (slope / len(hidden)).to(hidden.dtype)
            d_hidden[start : start + rows] = slope @ weight
            d_weight += slope.t() @ some
        context.save_for_backward(d_hidden, d_weight.to(weight.dtype))
        return loss / len(hidden)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> Any:
        d_hidden, d_weight = context.saved_tensors
        return d_hidden * slopes[0], d_weight * slopes[0], None, None


def compiled(options: dict[str, Any]) -> Way:
    """torch's through inductor; made at the first call, where an option that it lacks is caught."""
    made: list[Way] = []

    def run(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        if not made:
            made.append(torch.compile(stock, dynamic=False, options=options))
        return made[0](hidden, weight, targets)

    return run


def ways(check: Check) -> dict[str, Way]:
    """Those that are here."""
    found: dict[str, Way] = {"whole, as ours": whole, "head in chunks, as ours": in_chunks}
    found["whole, torch's own"] = stock
    if not check.quick:
        found["whole, torch's own, compiled"] = compiled({})
        chunker = {"auto_chunker.enable": True, "auto_chunker.num_chunk": 8}
        found["whole, torch's own, compiled, its chunker in 8"] = compiled(chunker)
    for rows in (32,) if check.quick else (1024, 2048, 4096, 8192):
        found[f"chunks of {rows}, plain torch"] = partial(chunked, rows)
    if hasattr(F, "linear_cross_entropy"):
        found["torch.nn.functional.linear_cross_entropy"] = F.linear_cross_entropy
    if importlib.util.find_spec("liger_kernel") and check.device.type == "cuda":
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        liger = LigerFusedLinearCrossEntropyLoss()
        found["Liger"] = lambda hidden, weight, targets: liger(weight, hidden, targets)
    return found


def losses(check: Check) -> None:
    """Every way on 8,192 tokens, hidden 2,048, vocabulary 128,256."""
    tokens, size, vocabulary = (64, 16, 512) if check.quick else (8192, 2048, 128256)
    device, wanted = check.device, 0.0
    hidden = torch.randn(tokens, size, device=device, dtype=torch.bfloat16, requires_grad=True)
    weight = (torch.randn(vocabulary, size, device=device) * 0.02).bfloat16().requires_grad_()
    targets = torch.randint(vocabulary, (tokens,), device=device)
    floor = 6.0 * tokens * size * vocabulary
    for name, way in ways(check).items():
        if not check.want(name, 3.0):
            continue
        with check.trying(name):

            def run(way: Way = way) -> Any:
                loss = way(hidden, weight, targets)
                return loss.detach(), torch.autograd.grad(loss, (hidden, weight))

            loss = float(run()[0])
            wanted = wanted or loss
            before = _memory(device)
            times = time_call([run], device, 0.02 if check.quick else 0.6, least=5)
            check.note(
                name,
                {
                    "s": times.dump(),
                    "tflops_of_three_products": floor / times.median / 1e12,
                    "loss": loss,
                    "loss_differs_by": abs(loss - wanted) / abs(wanted),
                    "extra_gib": _memory(device, peak=True) - before if device.type == "cuda" else None,
                },
            )


def _memory(device: torch.device, peak: bool = False) -> float:
    """GiB allocated now (from where the peak then counts), or at most since."""
    if device.type != "cuda":
        return 0.0
    if peak:
        return torch.cuda.max_memory_allocated(device) / 2**30
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device) / 2**30
