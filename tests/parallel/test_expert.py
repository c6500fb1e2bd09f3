"""Experts over `ep` and `etp` give each token what all experts on one rank give it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from parallel.tensor_cases import away, by_name, slices
from scalewright.model.decoder import Decoder
from scalewright.model.init import initialize
from scalewright.model.moe import MoE
from scalewright.parallel import expert
from scalewright.parallel.collectives import all_sum
from scalewright.parallel.expert import apply_expert
from scalewright.parallel.functions import axis_group, exchanged, gathered
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.parallel.tensor import cut_parameters
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import place
from worlds import CPU, run_world

KEYS: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 4, "moe": {"num_experts": 8, "top_k": 2, "moe_intermediate_size": 12},
}  # fmt: skip
SPEC = ModelSpec.parse(KEYS)
SPECS = {
    "plain": SPEC,
    "biases": SPEC.replace(mlp_bias=True, mlp_type="swiglu_clamped"),
    "weighed on the way in": ModelSpec.parse(
        {**KEYS, "moe": {**KEYS["moe"], "score": "sigmoid", "weigh_input": True}, "mlp_bias": True}
    ),
}
# fp32 products in other groups, and sums over etp: 1e-7 of the largest number, a few operators deep
TOLERANCE = 1e-5


def mixture(
    mesh: Mesh, layout: Layout, spec: ModelSpec = SPEC, make_trip: expert.MakeTrip | None = None
) -> tuple[MoE, MoE]:
    """A layer with all experts, and the same with this rank's."""
    whole = Decoder(spec)
    initialize(whole, spec, 0)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in whole.named_parameters():
            if name.endswith(".bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=random))
            else:
                parameter.mul_(10.0)
    with torch.device("meta"):
        decoder = Decoder(spec)
    placements = place(spec, layout)
    cut_parameters(decoder, placements, mesh)
    apply_expert(decoder, layout, mesh, make_trip)
    decoder.to_empty(device="cpu")
    placement_of, values = by_name(placements), dict(whole.named_parameters())
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.copy_(values[name][slices(placement_of[name], mesh)])
    parts = [model.get_submodule("layers.0.mlp") for model in (whole, decoder)]
    assert all(isinstance(part, MoE) for part in parts)
    return parts[0], parts[1]  # type: ignore[return-value]


def on_rank(mesh: Mesh, layout: Layout, name: str, tokens: list[int], fault: str, shared: int = 0) -> dict[str, float]:
    """How far outputs and gradients, of inputs and of this rank's experts, are from those of all experts."""
    spec = SPECS[name]
    assert spec.moe is not None
    spec = spec.replace(moe={**spec.moe.dump(), "num_shared_experts": shared})
    mesh = make_mesh(make_grid(layout, spec.kv_heads), mesh.rank, CPU)
    whole, part = mixture(mesh, layout, spec)
    every = [torch.randn(1, n, 16, generator=torch.Generator().manual_seed(r)) for r, n in enumerate(tokens)]
    for x in every:  # gradients of the experts are sums over all ranks' tokens
        whole(x).square().sum().backward()
    x = every[mesh.rank].clone().requires_grad_()
    expected_x = every[mesh.rank].clone().requires_grad_()
    expected = whole(expected_x)
    (expected_grad,) = torch.autograd.grad(expected.square().sum(), expected_x)
    patch, there = pytest.MonkeyPatch(), expert.AllToAll.there
    if fault == "dropped":  # the last row that came is lost, as where an expert's capacity is full
        patch.setattr(expert.AllToAll, "there", lambda trip, rows: Lost(there(trip, rows)))
    try:
        out = part(x)
        out.square().sum().backward()
    finally:
        patch.undo()
    deviations = {"out": away(out.detach(), expected.detach()), "x": away(x.grad, expected_grad)}
    placement_of = by_name(place(spec, layout))
    for name, parameter in part.experts.named_parameters():
        placement = placement_of[f"layers.0.mlp.experts.{name}"]
        gradient = all_sum(parameter.grad, mesh, "ehsdp")
        for axis in placement.grad_sum:
            gradient = all_sum(gradient, mesh, axis)
        index = slices(placement, mesh)
        deviations[name] = away(gradient, dict(whole.experts.named_parameters())[name].grad[index])
    return deviations


class Lost:
    """Rows on their way of which the last is zero."""

    def __init__(self, coming: expert.Coming) -> None:
        self.coming = coming

    def arrived(self) -> torch.Tensor:
        rows = self.coming.arrived()
        keep = torch.ones(len(rows), 1)
        keep[-1:] = 0.0
        return rows * keep


@pytest.mark.parametrize(
    "axes",
    [{"ep": 2}, {"etp": 2}, {"devices": 4, "ep": 4}, {"devices": 4, "ep": 2, "etp": 2}, {"devices": 4, "ep": 2}],
    ids=str,
)
@pytest.mark.parametrize("name", SPECS)
def test_tokens_find_their_experts_and_come_back(name: str, axes: dict[str, Any]) -> None:
    """Ranks have different numbers of tokens, and one has a single one."""
    layout = {"devices": 2, "zero_stage": 0, **axes}
    tokens = [9, 1, 4, 6][: layout["devices"]]
    for rank, deviations in enumerate(run_world(on_rank, layout, name, tokens, "none")):
        far = {key: value for key, value in deviations.items() if not value < TOLERANCE}
        assert not far, (rank, far)


def test_a_dropped_token_shows() -> None:
    """Nothing drops tokens here: a row that doesn't arrive is an error."""
    layout = {"devices": 2, "zero_stage": 0, "ep": 2}
    ranks = run_world(on_rank, layout, "plain", [9, 5], "dropped")
    assert max(deviations["out"] for deviations in ranks) > 100 * TOLERANCE


@pytest.mark.parametrize("axes", [{"ep": 2}, {"etp": 2}, {"devices": 4, "ep": 2, "etp": 2}], ids=str)
def test_shared_experts_beside_the_exchange_change_nothing(axes: dict[str, Any]) -> None:
    layout = {"devices": 2, "zero_stage": 0, **axes}
    ranks = run_world(on_rank, layout, "plain", [9, 1, 4, 6][: layout["devices"]], "none", 2)
    assert max(max(deviations.values()) for deviations in ranks) < TOLERANCE


def another_way(mesh: Mesh, layout: Layout) -> float:
    """How far a layer's output is from its own when rows travel by a backend of the test's."""
    mesh = make_mesh(make_grid(layout, SPEC.kv_heads), mesh.rank, CPU)
    _, part = mixture(mesh, layout)
    x = torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(mesh.rank))
    _, other = mixture(mesh, layout, SPEC, lambda counts, rows: Gathered(counts, mesh))
    return away(other(x).detach(), part(x).detach())


class Gathered:
    """A `Trip` on which every rank gets all rows and picks its own: another backend behind the interface."""

    def __init__(self, counts: torch.Tensor, mesh: Mesh) -> None:
        self.group, size = axis_group(mesh, "ep"), mesh.size("ep")
        self.all = gathered(counts[None], 0, self.group)  # [ep, E]
        self.mine = self.all.view(size, size, -1)[:, self.group.index]  # [ep, E/ep]
        self.counts = self.mine.sum(0)
        self.experts = torch.arange(len(self.counts)).repeat(size).repeat_interleave(self.mine.flatten())

    def there(self, rows: torch.Tensor) -> expert.Coming:
        most = int(self.all.sum(1).max())
        every = gathered(torch.nn.functional.pad(rows, (0, 0, 0, most - len(rows)))[None], 0, self.group)
        parts = []
        for sent, counts in zip(every, self.all.view(self.group.size, self.group.size, -1), strict=True):
            ends = counts.sum(1).cumsum(0).tolist()
            parts.append(sent[[0, *ends][self.group.index] : ends[self.group.index]])
        return Here(torch.cat(parts))

    def back(self, rows: torch.Tensor, bias: torch.Tensor | None) -> expert.Coming:
        assert bias is None  # nothing cuts an expert's width here
        send = self.mine.sum(1).tolist()
        receive = self.all.view(self.group.size, self.group.size, -1)[self.group.index].sum(1).tolist()
        return Here(exchanged(rows, send, receive, self.group))


class Here:
    """Rows that have come already."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def arrived(self) -> torch.Tensor:
        return self.rows


def test_another_backend_takes_the_place_of_all_to_alls() -> None:
    assert max(run_world(another_way, {"devices": 2, "zero_stage": 0, "ep": 2})) < TOLERANCE


class Order(TorchDispatchMode):
    """The exchanges of rows, the waits for them, and the shared experts' products, in order."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.seen: list[str] = []
        self.rows: set[int] = set()  # storages on their way

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops._c10d_functional.all_to_all_single.default and args[0].is_floating_point():
            self.seen.append("start")
            self.rows.add(result.untyped_storage()._cdata)
        elif func is torch.ops._c10d_functional.wait_tensor.default:
            if args[0].untyped_storage()._cdata in self.rows:
                self.seen.append("wait")
        elif func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            shapes = [tuple(x.shape) for x in (*args, result) if isinstance(x, torch.Tensor)]
            if any(self.width in shape for shape in shapes):
                self.seen.append("shared")
        return result


def in_order(mesh: Mesh, layout: Layout) -> list[list[str]]:
    """What a layer with a shared expert of another width does in its forward, and in its backward."""
    assert SPEC.moe is not None
    shared = {"num_shared_experts": 1, "shared_intermediate_size": 20}
    spec = SPEC.replace(moe={**SPEC.moe.dump(), **shared})
    mesh = make_mesh(make_grid(layout, spec.kv_heads), mesh.rank, CPU)
    _, part = mixture(mesh, layout, spec)
    x = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(mesh.rank)).requires_grad_()
    with Order(20) as forward:
        out = part(x)
    with Order(20) as backward:
        out.square().sum().backward()
    return [forward.seen, backward.seen]


@pytest.mark.parametrize("axis", ["ep", "etp"])
def test_exchanges_travel_while_shared_experts_compute(axis: str) -> None:
    """Forward: gate and up after the dispatch has started, `down` after the combine has; before their waits.

    Backward: two products of `down` beside the combine's gradient, four of gate and up beside the dispatch's.
    """
    for forward, backward in run_world(in_order, {"devices": 2, "zero_stage": 0, axis: 2}):
        assert forward == ["start", "shared", "shared", "wait", "start", "shared", "wait"]
        assert backward == ["start", *["shared"] * 2, "wait", "start", *["shared"] * 4, "wait"]
