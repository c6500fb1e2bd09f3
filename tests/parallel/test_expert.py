"""Experts over `ep` and `etp` give each token what all experts on one rank give it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parallel.tensor_cases import away, by_name, slices
from scalewright.model.decoder import Decoder
from scalewright.model.init import initialize
from scalewright.model.moe import MoE
from scalewright.parallel import expert
from scalewright.parallel.collectives import all_sum
from scalewright.parallel.expert import apply_expert
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


def mixture(spec: ModelSpec, mesh: Mesh, layout: Layout) -> tuple[MoE, MoE]:
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
    apply_expert(decoder, mesh)
    decoder.to_empty(device="cpu")
    placement_of, values = by_name(placements), dict(whole.named_parameters())
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.copy_(values[name][slices(placement_of[name], mesh)])
    parts = [model.get_submodule("layers.0.mlp") for model in (whole, decoder)]
    assert all(isinstance(part, MoE) for part in parts)
    return parts[0], parts[1]  # type: ignore[return-value]


def on_rank(mesh: Mesh, layout: Layout, name: str, tokens: list[int], fault: str) -> dict[str, float]:
    """How far outputs and gradients, of inputs and of this rank's experts, are from those of all experts."""
    spec = SPECS[name]
    mesh = make_mesh(make_grid(layout, spec.kv_heads), mesh.rank, CPU)
    whole, part = mixture(spec, mesh, layout)
    every = [torch.randn(1, n, 16, generator=torch.Generator().manual_seed(r)) for r, n in enumerate(tokens)]
    for x in every:  # gradients of the experts are sums over all ranks' tokens
        whole(x).square().sum().backward()
    x = every[mesh.rank].clone().requires_grad_()
    expected_x = every[mesh.rank].clone().requires_grad_()
    expected = whole(expected_x)
    (expected_grad,) = torch.autograd.grad(expected.square().sum(), expected_x)
    patch, there = pytest.MonkeyPatch(), expert._Trip.there
    if fault == "dropped":  # the last row that came is lost, as where an expert's capacity is full
        patch.setattr(expert._Trip, "there", lambda trip, rows: lost(there(trip, rows)))
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


def lost(rows: torch.Tensor) -> torch.Tensor:
    """Rows of which the last is zero."""
    keep = torch.ones(len(rows), 1)
    keep[-1:] = 0.0
    return rows * keep


@pytest.mark.parametrize(
    "axes",
    [
        {"ep": 2},
        {"etp": 2},
        {"devices": 4, "ep": 4},
        {"devices": 4, "ep": 2, "etp": 2},
        {"devices": 4, "ep": 2},
    ],
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
