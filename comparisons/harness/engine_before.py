"""Parts of the engine as they were before they were rewritten, to be measured beside those of today.

Each is small, and does what the old one did; `engine_costs.py` runs both in one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scalewright.parallel import functions
from scalewright.parallel.functions import AxisGroup
from scalewright.spec.grid import Grid
from scalewright.spec.groups import APART, EXPERTS, LANES, files
from scalewright.spec.model import ModelSpec

AXES = (
    "world", "control", "pp_down", "pp_up", "dp_replicate", "cp", "tp", "fsdp", "loss", "gradient", "kv",
    "tie", "ep", "etp", "efsdp", "ehsdp",
)  # fmt: skip


def whole_then_box(seed: int, shape: Sequence[int], box: tuple[slice, ...]) -> Tensor:
    """First weights until November 2026: every rank drew every whole tensor, and kept its box."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.empty(tuple(shape)).normal_(0.0, 0.02, generator=generator)[box].clone()


def head_of_whole_logits(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Whole logits, their log-probabilities in fp32 beside them, and the gradient in the place of these."""
    loss: Tensor = _WholeLogits.apply(F.linear(hidden, weight), targets)  # type: ignore[no-untyped-call]
    return loss


class _WholeLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        logs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        ctx.save_for_backward(logs, targets)
        ctx.dtype = logits.dtype
        return F.nll_loss(logs, targets, reduction="sum")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        logs, targets = ctx.saved_tensors
        gradient, target = logs.exp_(), targets[:, None]
        gradient.scatter_add_(1, target, -torch.ones_like(target, dtype=gradient.dtype))
        return gradient.mul_(grad_outputs[0]).to(ctx.dtype), None


def groups_one_by_one(grid: Grid, model: ModelSpec) -> tuple[int, int]:
    """Calls that made a group of NCCL, each a split in all ranks, and the most files of Gloo in a rank.

    Every axis but those of experts and of a tie that the model lacks had groups; control joined all ranks.
    """
    unused = set() if model.moe is not None else set(EXPERTS)
    unused |= set() if model.tie_word_embeddings else {"tie"}
    lanes = LANES if grid.size_of["pp"] > 2 else ()
    made = {(None, tuple(range(grid.world)))}  # torch's own
    for axis in [axis for axis in (*AXES, *lanes) if axis not in unused and axis != "control"]:
        own = axis if axis in APART or axis in LANES else None
        made |= {(own, ranks) for ranks in grid.groups("pp" if axis in LANES else axis) if len(ranks) > 1}
    return len(made) - 1, files(grid.world)


@contextmanager
def moved_dims() -> Iterator[None]:
    """Collectives along a later dim as the eager path has them, when they are compiled too."""
    today = functions.gathered, functions.scattered
    functions.gathered, functions.scattered = _gathered, _scattered
    try:
        yield
    finally:
        functions.gathered, functions.scattered = today


def _gathered(x: Tensor, dim: int, group: AxisGroup) -> Tensor:
    x = x.contiguous()
    started = torch.ops._c10d_functional.all_gather_into_tensor(x, group.size, group.name)
    out: Tensor = torch.ops._c10d_functional.wait_tensor(started)
    return out if dim == 0 else out.view(group.size, *x.shape).movedim(0, dim).flatten(dim, dim + 1)


def _scattered(x: Tensor, dim: int, group: AxisGroup) -> Tensor:
    cut = x.reshape(*x.shape[:dim], group.size, -1, *x.shape[dim + 1 :])
    parts = cut.movedim(dim, 0).flatten(0, 1).contiguous()
    started = torch.ops._c10d_functional.reduce_scatter_tensor(parts, "sum", group.size, group.name)
    out: Tensor = torch.ops._c10d_functional.wait_tensor(started)
    return out
