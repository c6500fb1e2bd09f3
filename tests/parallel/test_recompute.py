"""Recomputation: the same bits, less memory, and only the matmuls of each kind run again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from parts import build as build_words
from runs import MODEL
from scalewright.model.decoder import Decoder
from scalewright.model.init import initialize
from scalewright.parallel.blocks import find_blocks
from scalewright.parallel.recompute import apply_recompute
from scalewright.spec.layout import RecomputeEvery
from scalewright.spec.model import ModelSpec

KINDS = ["none", "selective", "full", RecomputeEvery(every=2)]
SPEC = ModelSpec.parse(MODEL)
ARGUMENTS = {"tokens": torch.randint(0, 67, (2, 16), generator=torch.Generator().manual_seed(0))}


class Count(TorchDispatchMode):
    """How often a matrix product ran."""

    def __init__(self) -> None:
        super().__init__()
        self.matmuls = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.matmuls += function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return function(*args, **(kwargs or {}))


def decoder(kind: Any) -> nn.Module:
    model = Decoder(SPEC)
    initialize(model, SPEC, 0)
    apply_recompute(find_blocks(model), kind)
    return model


def gradients(model: nn.Module, **arguments: Tensor) -> tuple[Tensor, list[Tensor], int]:
    """The loss, the gradients, and the matrix products that the backward ran."""
    torch.manual_seed(5)
    loss = model(**arguments).logsumexp(-1).sum()
    with Count() as count:
        loss.backward()
    return loss.detach(), [p.grad for p in model.parameters() if p.grad is not None], count.matmuls


@pytest.mark.parametrize("kind", KINDS[1:], ids=["selective", "full", "every2"])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_equal_bit_for_bit(kind, masked):
    more = {"documents": torch.tensor([[0] * 7 + [1] * 9, [0] * 12 + [1] * 4])} if masked else {}
    loss, control, _ = gradients(decoder("none"), **ARGUMENTS, **more)
    again, recomputed, _ = gradients(decoder(kind), **ARGUMENTS, **more)
    assert torch.equal(again, loss)
    assert len(recomputed) == len(control) == 3 * 9 + 3
    assert all(torch.equal(a, b) for a, b in zip(recomputed, control, strict=True))


def test_each_kinds_products_run_again():
    """A block has 7 products (q, k, v, o, gate, up, down), each with two in its backward; the head has one.

    selective runs none of them again, full all 7 of 3 blocks, every 2 those of blocks 0 and 2. (The last
    product of a block isn't needed by its backward, so torch may stop before it: 6 or 7.)
    """
    counts = [gradients(decoder(kind), **ARGUMENTS)[2] for kind in KINDS]
    none = 2 * (3 * 7 + 1)
    assert counts[0] == none
    assert counts[1] == none
    assert none + 3 * 6 <= counts[2] <= none + 3 * 7
    assert none + 2 * 6 <= counts[3] <= none + 2 * 7


@pytest.mark.parametrize("kind", ["selective", "full"])
def test_dropout_draws_the_same_numbers_again(kind):
    def run(kind: Any) -> tuple[Tensor, list[Tensor], int]:
        torch.manual_seed(0)
        model = build_words(dropout=0.5)
        apply_recompute(find_blocks(model), kind, random=True)
        return gradients(model, tokens=ARGUMENTS["tokens"])

    loss, control, _ = run("none")
    again, recomputed, _ = run(kind)
    assert torch.equal(again, loss)
    assert all(torch.equal(a, b) for a, b in zip(recomputed, control, strict=True))


def test_no_gradient_no_recomputation():
    model = decoder("full")
    with torch.no_grad():
        out = model(**ARGUMENTS)
    assert not out.requires_grad
    assert torch.equal(out, decoder("none")(**ARGUMENTS))


def test_blocks_are_found():
    """The longest run of siblings of one class, in order."""
    assert [type(block).__name__ for block in find_blocks(Decoder(SPEC))] == ["Block"] * 3
    assert [type(block).__name__ for block in find_blocks(build_words(layers=2))] == ["Layer"] * 2
    assert find_blocks(nn.Linear(2, 2)) == []
    mixed = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    assert find_blocks(mixed) == []
