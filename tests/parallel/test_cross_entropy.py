"""Cross-entropy over a vocabulary that is spread over ranks: one process's numbers, and no full logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from loss_function import cross_entropy
from scalewright.parallel.cross_entropy import VocabularyColumns, make_columns
from scalewright.parallel.functions import AxisGroup
from scalewright.parallel.mesh import Mesh
from scalewright.spec.layout import Layout
from scalewright.spec.run import PythonRef
from scalewright.train.loss import build_loss
from worlds import plain, run_world

ROWS, DIVISOR = (3, 7), 11.0


def sample(vocabulary: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Logits up to 30 and targets; the last token is among them, some are not counted."""
    random = torch.Generator().manual_seed(vocabulary)
    logits = (torch.randn(*ROWS, vocabulary, generator=random) * 10).to(dtype)
    targets = torch.randint(0, vocabulary, ROWS, generator=random)
    targets[0, :3], targets[1, 0], targets[2, 4:] = vocabulary - 1, 0, -100
    return logits, targets


def local(logits: Tensor, columns: VocabularyColumns) -> Tensor:
    """This rank's columns; those that pad the vocabulary hold numbers that must not be read."""
    out = torch.full((*logits.shape[:-1], columns.width), 1e4, dtype=logits.dtype)
    out[..., : columns.true] = logits[..., columns.start : columns.start + columns.true]
    return out.requires_grad_()


Case = tuple[int, str, float]
CASES: list[Case] = [
    (vocabulary, dtype, z_loss)
    for vocabulary in (64, 67, 5)  # cut evenly; unevenly; over 4 ranks, the last has none
    for dtype in ("float32", "bfloat16")
    for z_loss in (0.0, 0.1)
]


def on_rank(mesh: Mesh, layout: Layout) -> list[Any]:
    """Losses and local gradients of every case."""
    results = []
    for vocabulary, dtype, z_loss in CASES:
        logits, targets = sample(vocabulary, getattr(torch, dtype))
        columns = make_columns(mesh, vocabulary)
        part = local(logits, columns)
        total, auxiliary = cross_entropy(part, targets, z_loss, columns)
        assert total.dtype == auxiliary.dtype == torch.float32
        ((total + auxiliary) / DIVISOR).backward()
        assert part.grad is not None
        assert part.grad.dtype == part.dtype
        results.append([plain(total), plain(auxiliary), plain(part.grad.float())])
    return results


@pytest.mark.parametrize("size", [2, 4])
def test_losses_and_gradients_are_one_process_s(size):
    """fp32 roundings: the sums of exponentials are taken in parts; in bf16 the gradient is rounded once."""
    ranks = run_world(on_rank, {"devices": size, "tp": size})
    for index, (vocabulary, dtype, z_loss) in enumerate(CASES):
        logits, targets = sample(vocabulary, getattr(torch, dtype))
        control = logits.clone().requires_grad_()
        total, auxiliary = cross_entropy(control, targets, z_loss)
        ((total + auxiliary) / DIVISOR).backward()
        assert len({tuple(rank[index][:2]) for rank in ranks}) == 1  # to the bit, on all ranks
        assert ranks[0][index][0] == pytest.approx(total.item(), rel=1e-6)
        assert ranks[0][index][1] == pytest.approx(auxiliary.item(), rel=1e-6)
        rounding = 2e-6 if dtype == "float32" else 2 * torch.finfo(torch.bfloat16).eps
        joined = torch.cat([torch.tensor(rank[index][2]) for rank in ranks], dim=-1)
        expected = control.grad.float()
        torch.testing.assert_close(joined[..., :vocabulary], expected, rtol=rounding, atol=1e-6)
        assert not joined[..., vocabulary:].any()  # exactly zero
        assert not joined[targets == -100].any()


class _Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operator made, and every collective."""

    def __init__(self) -> None:
        super().__init__()
        self.elements, self.collectives = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        if "c10d" in str(func) and "wait" not in str(func):
            self.collectives.append((str(func), args[0].numel()))
        return out


def test_nothing_is_larger_than_the_local_logits():
    """On 8 ranks that don't exist; one all-gather of two numbers a token is all that is sent."""
    dist.init_process_group("fake", rank=1, world_size=8)
    try:
        columns = VocabularyColumns(AxisGroup(dist.group.WORLD.group_name, 8, 1), 1001)
        logits = torch.randn(*ROWS, columns.width, requires_grad=True)
        targets = torch.randint(0, 1001, ROWS)
        with _Largest() as seen:
            total, auxiliary = cross_entropy(logits, targets, 0.1, columns)
            (total + auxiliary).backward()
    finally:
        dist.destroy_process_group()
    assert seen.elements == logits.numel() == 21 * 126
    assert seen.collectives == [("_c10d_functional.all_gather_into_tensor_out.default", 2 * 21)]


def test_a_second_backward_is_refused_not_wrong():
    """The gradient lies where the logits were, and is scaled there."""
    dist.init_process_group("fake", rank=0, world_size=2)
    try:
        columns = VocabularyColumns(AxisGroup(dist.group.WORLD.group_name, 2, 0), 64)
        logits, targets = sample(32, torch.float32)
        total, _ = cross_entropy(logits.requires_grad_(), targets, columns=columns)
        total.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            total.backward()
    finally:
        dist.destroy_process_group()


def own_on_rank(mesh: Mesh, layout: Layout) -> Any:
    """A user's loss, and the built-in one, as a run builds them."""
    logits, targets = sample(67, torch.float32)
    columns = make_columns(mesh, 67)
    results = []
    for loss in (PythonRef(python="mine:loss"), "cross_entropy"):
        part = local(logits, columns)
        total, _ = build_loss(loss, 0.1, lambda ref: smoothed, mesh, 67)(part, targets)
        total.backward()
        results.append([plain(total), plain(part.grad)])
    return results


def smoothed(logits: Tensor, targets: Tensor) -> Tensor:
    """Something that reads every logit: label smoothing."""
    assert logits.shape == (*ROWS, 67)
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="sum", label_smoothing=0.1
    )


def test_a_users_own_loss_gets_whole_logits():
    ranks = run_world(own_on_rank, {"devices": 2, "tp": 2})
    for index, loss in enumerate((smoothed, lambda logits, targets: cross_entropy(logits, targets, 0.1)[0])):
        logits, targets = sample(67, torch.float32)
        total = loss(logits.requires_grad_(), targets)
        total.backward()
        for rank in ranks:
            assert rank[index][0] == pytest.approx(total.item(), rel=1e-6)
        joined = torch.cat([torch.tensor(rank[index][1]) for rank in ranks], dim=-1)
        torch.testing.assert_close(joined[..., :67], logits.grad, rtol=2e-6, atol=1e-6)
        assert not joined[..., 67:].any()


def test_the_vocabularys_size_must_be_given():
    """Padded columns look like any other."""

    class Two:
        def size(self, axis: str) -> int:
            return 2

    with pytest.raises(ValueError, match="say how large it is"):
        build_loss("cross_entropy", 0.0, lambda ref: smoothed, Two())  # type: ignore[arg-type]
