"""bf16 gradients summed in fp32 on one rank: the first overwrites, others add, unreached ones are zero."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from scalewright.parallel.mesh import make_mesh
from scalewright.parallel.parallelize import parallelize
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.placement import place_plain
from scalewright.train.network import describe


class Branches(nn.Module):
    """Two ways through; `side` is used by one of them only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.side, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, side: bool) -> Tensor:
        out: Tensor = self.last(self.first(x))
        return out + self.side(x) if side else out


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_sums_are_exact_in_every_step(precision):
    """Bit for bit: each gradient is the same number, and fp32 sums of two in this order are, too."""
    torch.manual_seed(0)
    layout = Layout(precision=precision)
    mesh = make_mesh(make_grid(layout, None), 0, torch.device("cpu"))
    module = Branches()
    parallel = parallelize(module, place_plain(describe(module), layout), layout, mesh, bf16=precision == "bf16")
    for weight in parallel.weights:
        weight.master.data.normal_()
    parallel.weights.publish()
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    for sides in ([True, False], [False, False], [False, True]):
        inputs = [torch.randn(4, 8).to(kind) for _ in sides]
        train(parallel, inputs, sides)
        names = [weight.name for weight in parallel.weights]
        gradients = dict(zip(names, parallel.weights.take_gradients(), strict=True))
        expected = by_hand(parallel.model, inputs, sides)
        for name, gradient in gradients.items():
            assert torch.equal(gradient, expected[name]), (sides, name)


def train(parallel, inputs, sides):
    parallel.gradients.clear()
    for index, (x, side) in enumerate(zip(inputs, sides, strict=True)):
        parallel.gradients.begin(0, last=index == len(inputs) - 1)
        loss(parallel.model, x, side).backward()
    parallel.gradients.finish()


def by_hand(model, inputs, sides):
    parameters = dict(model.named_parameters())
    sums = {name: torch.zeros(p.shape) for name, p in parameters.items()}
    for x, side in zip(inputs, sides, strict=True):
        gradients = torch.autograd.grad(loss(model, x, side), list(parameters.values()), allow_unused=True)
        for name, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                sums[name] += gradient.float()
    return sums


def loss(model, x, side):
    return model(x, side).float().square().sum()
