"""What the watcher counts, against what is known: a module alone, and worlds of two on Gloo."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from tests.worlds import one_rank, run_world
from torch import nn
from torch.utils.checkpoint import checkpoint

from scalewright.dry_run.watch import Watch
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.spec.groups import USED
from scalewright.spec.layout import Layout


def watch() -> Watch:
    return Watch(one_rank()[0])


def test_a_storage_counts_once_and_as_long_as_it_lives() -> None:
    with watch() as watched:
        x = torch.zeros(100)
        y = x.view(10, 10)[2:]
        assert watched.live.now["activations"] == 400
        del x
        assert watched.live.now["activations"] == 400  # the view holds it
        del y
    assert watched.live.total == 0
    assert watched.live.windows[0].peak == 400


def test_what_a_backward_keeps_and_makes() -> None:
    layer = nn.Linear(8, 16, bias=False)
    with watch() as watched:
        watched.live.tag(layer.weight, "parameters")
        hook = layer.weight.register_post_accumulate_grad_hook(watched._gradient)  # type: ignore[no-untyped-call]
        x = torch.ones(4, 8)
        out = layer(x).square()  # keeps x, and the layer's output
        held = 4 * (4 * 8 + 4 * 16 + 4 * 16)
        assert watched.live.now["activations"] == held
        window = watched.live.open()
        out.sum().backward()
        hook.remove()
        assert watched.live.now["gradients"] == 4 * 8 * 16
        assert window.most["other"] >= 4 * 4 * 16  # the gradient of the output, made in the backward
        assert watched.live.now["other"] == 0
        del out, x
        assert watched.live.now["activations"] == 0
    assert watched.flops == 2 * 2 * 4 * 8 * 16  # forward, and the weight's gradient; x needs none


def test_what_is_recomputed_is_an_activation_and_its_flops_count() -> None:
    layer = nn.Linear(8, 16, bias=False)

    def run(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = layer(x)
        return out.square()

    with watch() as watched:
        watched.live.tag(layer.weight, "parameters")
        x = torch.ones(4, 8, requires_grad=True)
        out = checkpoint(run, x, use_reentrant=False)
        assert watched.live.now["activations"] == 4 * (4 * 8 + 4 * 16)  # not the layer's output
        window = watched.live.open()
        out.sum().backward()
        assert window.most["activations"] >= 4 * (4 * 8 + 2 * 4 * 16)
    assert watched.flops == 4 * 2 * 4 * 8 * 16


def test_a_resized_storage() -> None:
    with watch() as watched:
        x = torch.zeros(100)
        x.untyped_storage().resize_(0)
        assert watched.live.total == 0
        x.untyped_storage().resize_(800)
        assert watched.live.total == 800
    x.untyped_storage().resize_(0)  # not watched any more


def test_offloaded_tensors_are_left_out() -> None:
    mesh = one_rank()[0]
    with Watch(mesh, offloaded=lambda tensor: tensor.numel() == 7) as watched:
        kept = [torch.zeros(7), torch.zeros(5)]
    assert watched.live.total == 4 * 5
    del kept


def test_attention_counts_the_same_by_any_kernel() -> None:
    shape = (2, 4, 16, 8)
    square = 2 * 4 * 16 * 16 * 8
    counted = []
    for backend in (nn.attention.SDPBackend.MATH, nn.attention.SDPBackend.FLASH_ATTENTION):
        q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
        with nn.attention.sdpa_kernel(backend), watch() as watched:
            out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            out.sum().backward()  # type: ignore[no-untyped-call]
        counted.append(watched.flops)
    assert counted == [3 * 2 * 2 * square] * 2


def _collectives(mesh: Mesh, layout: Layout) -> Any:
    mesh = make_mesh(mesh.grid, mesh.rank, mesh.device, axes=(*USED, "ep"), share=False)
    x, y = torch.zeros(8), torch.zeros(16)
    with Watch(mesh) as watched:
        group = mesh.group("fsdp")
        dist.all_reduce(x, group=mesh.group("loss"))
        dist.all_reduce(y, group=mesh.group("gradient"))
        dist.all_gather_into_tensor(y, x, group=group)
        dist.reduce_scatter_tensor(x, y, group=group)
        dist.reduce_scatter_tensor(x, y, group=group)
        dist.all_to_all_single(y, y.clone(), group=mesh.group("ep") or group)
        dist.broadcast(x, src=0, group=group)
        works = [dist.isend(x, 1 - mesh.rank, group=group), dist.irecv(y[:8], 1 - mesh.rank, group=group)]
        for work in works:
            assert work is not None
            work.wait()
    return [sent.dump() for sent in watched.collectives]


def test_collectives_by_axis_and_kind() -> None:
    expected = [
        ("control", "all_reduce", 1, 32),
        ("dp_shard", "all_gather", 1, 64),
        ("dp_shard", "all_reduce", 1, 64),
        ("dp_shard", "all_to_all", 1, 64),
        ("dp_shard", "broadcast", 1, 32),
        ("dp_shard", "reduce_scatter", 2, 128),
        ("dp_shard", "send", 1, 32),
    ]
    for answer in run_world(_collectives, {"devices": 2}):
        assert [(c["axis"], c["kind"], c["count"], c["bytes"]) for c in answer] == expected
        assert {c["group_size"] for c in answer} == {2}
