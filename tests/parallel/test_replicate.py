"""Replicas: gradients in flat buckets, summed in one order, and sent while the backward still runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalewright.parallel import replicate
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.replicate import GradientBuckets
from scalewright.parallel.weights import hold
from scalewright.spec.layout import Layout
from scalewright.spec.placement import place_plain
from scalewright.train.network import describe
from worlds import one_rank, run_world

TWO = {"devices": 2, "zero_stage": 0}
DIM = 8


class Chain(nn.Module):
    """Linear layers in a row; `skip` leaves some unused."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(layers))

    def forward(self, x: Tensor, skip: frozenset[int] = frozenset()) -> Tensor:
        for index, layer in enumerate(self.layers):
            if index not in skip:
                x = layer(x).tanh()
        return x


def build(mesh: Mesh, layout: Layout, bucket_bytes: int, dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    module = Chain().to(dtype)
    weights = hold(module, place_plain(describe(module), layout), mesh)
    with torch.no_grad():
        for weight in weights:
            weight.master.copy_(weight.compute.float())
    return module, weights, GradientBuckets(weights, mesh, bucket_bytes)


def inputs(rank: int, micro: int) -> Tensor:
    return torch.randn(3, DIM, generator=torch.Generator().manual_seed(10 * rank + micro))


def sums(skips: dict[int, frozenset[int]], micros: int, ranks: range) -> dict[str, Tensor]:
    """The sum over ranks and micro-batches by plain autograd."""
    torch.manual_seed(0)
    module = Chain()
    for rank in ranks:
        for micro in range(micros):
            module(inputs(rank, micro), skips.get(rank, frozenset())).sum().backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in module.named_parameters()}


def train_on_rank(mesh: Mesh, layout: Layout, skips: list[list[int]], micros: int, bucket: int) -> Any:
    """Two steps (the second must forget the first); the gradients, and how many buckets there are."""
    module, weights, buckets = build(mesh, layout, bucket)
    for _ in range(2):
        buckets.clear()
        for micro in range(micros):
            buckets.begin(0, last=micro == micros - 1)
            module(inputs(mesh.rank, micro), frozenset(skips[mesh.rank])).sum().backward()
        buckets.finish()
    gradients = dict(zip((w.name for w in weights), weights.take_gradients(), strict=True))
    return {name: grad.tolist() for name, grad in gradients.items()}, len(buckets.buckets)


@pytest.mark.parametrize(
    ("skips", "micros", "bucket", "count"),
    [
        ([[], []], 1, 10**9, 1),
        ([[], []], 3, 288, 4),
        ([[1], [1]], 2, 288, 4),
        ([[3], [0]], 2, 288, 4),  # each rank leaves another layer unused: buckets fill in another order
        ([[0, 1, 2], []], 1, 1, 8),
    ],
    ids=["one-bucket", "accumulated", "unused", "unused-elsewhere", "almost-unused"],
)
def test_gradients_are_the_sums_of_all_ranks(skips, micros, bucket, count):
    results = run_world(train_on_rank, TWO, skips, micros, bucket)
    control = sums({rank: frozenset(skip) for rank, skip in enumerate(skips)}, micros, range(2))
    for gradients, buckets in results:
        assert buckets == count
        for name, expected in control.items():
            # two fp32 sums of the same numbers in another order
            torch.testing.assert_close(torch.tensor(gradients[name]), expected, rtol=1e-6, atol=1e-6)
    assert results[0] == results[1]  # bit for bit: replicas must stay equal


def watch_order(mesh: Mesh, layout: Layout) -> list[str]:
    """The events of a step of two micro-batches, in order."""
    module, weights, buckets = build(mesh, layout, 288)
    events: list[str] = []
    original = dist.all_reduce

    def all_reduce(tensor: Tensor, **keywords: Any) -> Any:
        events.append("send")
        assert keywords["async_op"]
        return original(tensor, **keywords)

    for index, layer in enumerate(module.layers):
        layer.weight.register_hook(lambda grad, index=index: events.append(f"layer {index}"))
    replicate.dist.all_reduce = all_reduce  # type: ignore[assignment]
    try:
        buckets.clear()
        for micro in range(2):
            buckets.begin(0, last=micro == 1)
            events.append(f"micro {micro}")
            module(inputs(mesh.rank, micro)).sum().backward()
        events.append("finish")
        buckets.finish()
    finally:
        replicate.dist.all_reduce = original  # type: ignore[assignment]
    assert len(weights) == 8
    return events


def test_sending_begins_before_the_backward_ends():
    """Nothing is sent before the last micro-batch; then layer 3 travels while layer 2 is worked on."""
    for events in run_world(watch_order, TWO):
        first, last = events.index("micro 1"), events.index("finish")
        assert "send" not in events[:first]
        assert events.count("send") == 4
        backward = events[first:last]
        assert backward.index("send") < backward.index("layer 2")
        assert backward.count("send") >= 3
        assert "send" not in events[last:] or events[last:] == ["finish", "send"]


def test_one_rank_alone_in_bf16():
    """Sums of many micro-batches keep what bf16 can't hold."""
    mesh, layout = one_rank()
    module, weights, buckets = build(mesh, layout, 288, torch.bfloat16)
    module.requires_grad_(True)
    buckets.clear()
    control = {name: torch.zeros(p.shape) for name, p in module.named_parameters()}
    for micro in range(16):
        x = inputs(0, micro).to(torch.bfloat16)
        grads = torch.autograd.grad(module(x).float().sum(), list(module.parameters()))
        for name, grad in zip(control, grads, strict=True):
            control[name] += grad.float()
        buckets.begin(0, last=micro == 15)
        module(x).float().sum().backward()
    buckets.finish()
    for weight in weights:
        assert weight.gradient is not None
        assert weight.gradient.dtype == torch.float32
        assert torch.equal(weight.gradient, control[weight.name]), weight.name
        assert weight.compute.grad is None  # freed as soon as it was added
