"""A user's own module whose ranks and micro-batches use different parameters, under every ZeRO stage."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import parallelize
from scalewright.spec.layout import Layout
from scalewright.spec.placement import place_plain
from scalewright.train.network import describe
from worlds import plain, run_world

MICROS = 2


class Branches(nn.Module):
    """Two ways beside the main one; each is used by some micro-batches of some ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.ways = nn.ParameterList([nn.Parameter(torch.eye(6) * (way + 1)) for way in range(3)])

    def forward(self, x: Tensor, way: int) -> Tensor:
        x = self.first(x)
        out: Tensor = self.last(x + x @ self.ways[way]) if way < 3 else self.last(x)
        return out


def make() -> Branches:
    torch.manual_seed(0)
    return Branches()


def way_of(rank: int, micro: int) -> int:
    """Rank 0: way 0, then none; rank 1: none, then way 1. No rank takes way 2."""
    return {(0, 0): 0, (1, 1): 1}.get((rank % 2, micro), 3)


def data(rank: int, micro: int) -> Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * rank + micro))


def train(mesh: Mesh, layout: Layout, bf16: bool) -> Any:
    """Two steps; the second's local gradients."""
    module = make()
    start = {name: p.detach().clone() for name, p in module.named_parameters()}
    parallel = parallelize(module, place_plain(describe(module), layout), layout, mesh, bf16=bf16)
    with torch.no_grad():
        for weight in parallel.weights:
            rows = slice(weight.box[0][0], weight.box[0][0] + weight.box[1][0])
            weight.master.copy_(start[weight.name][rows])
    parallel.weights.publish()
    for _ in range(2):
        parallel.gradients.clear()
        for micro in range(MICROS):
            parallel.gradients.begin(0, micro == MICROS - 1)
            x = data(mesh.rank, micro).to(torch.bfloat16 if bf16 else torch.float32)
            parallel.model(x, way_of(mesh.rank, micro)).float().sum().backward()
            parallel.gradients.end(0, micro == MICROS - 1)
        parallel.gradients.finish()
    gradients = parallel.weights.take_gradients()
    return {w.name: [w.box, plain(g)] for w, g in zip(parallel.weights, gradients, strict=True)}


FAST = [(0, 1, True), (1, 1, True), (2, 1, False), (3, 2, True)]
ALL = [(s, r, b) for s, r in [(0, 1), (1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 2)] for b in (False, True)]
SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in ALL if case not in FAST]


@pytest.mark.parametrize(("stage", "replicas", "bf16"), [*FAST, *SLOW])
def test_unused_parameters_count_as_zero(stage, replicas, bf16):
    layout = {"devices": 2 * replicas, "zero_stage": stage, "dp_replicate": replicas, "global_batch": 4 * replicas}
    control = make().to(torch.bfloat16 if bf16 else torch.float32)
    sums = {name: torch.zeros(p.shape) for name, p in control.named_parameters()}
    for rank in range(2 * replicas):
        for micro in range(MICROS):
            x = data(rank, micro).to(torch.bfloat16 if bf16 else torch.float32)
            loss = control(x, way_of(rank, micro)).float().sum()
            grads = torch.autograd.grad(loss, list(control.parameters()), allow_unused=True)
            for name, grad in zip(sums, grads, strict=True):
                sums[name] += 0 if grad is None else grad.float()
    assert not sums["ways.2"].any()
    for rank in run_world(train, layout, bf16):
        for name, (box, values) in rank.items():
            rows = slice(box[0][0], box[0][0] + box[1][0])
            # fp32 sums of four to eight numbers in another order
            torch.testing.assert_close(torch.tensor(values), sums[name][rows], rtol=1e-6, atol=1e-5)
