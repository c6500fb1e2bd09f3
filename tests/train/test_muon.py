"""Muon: torch's own on one device, the same run under every cut, and what a checkpoint takes of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runs import assert_same_run, run, run_data, weights
from scalewright.model.decoder import Decoder
from scalewright.parallel.weights import hold
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import OPTIMIZERS, is_matrix
from scalewright.spec.placement import place
from scalewright.spec.run import OptimizerSpec
from scalewright.train.muon import Muon, orthogonal
from scalewright.train.network import load_python
from scalewright.train.optimizer import build_optimizer
from worlds import one_rank

SPEC = ModelSpec.parse(
    {
        "vocab_size": 32, "hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2,
        "moe": {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 24, "first_k_dense": 1},
    }
)  # fmt: skip
KEYS = {"name": "muon", "lr": 0.01, "weight_decay": 0.1}


def built(half: bool = False, **keys: Any) -> tuple[Decoder, Muon]:
    torch.manual_seed(0)
    model, (mesh, layout) = Decoder(SPEC), one_rank()
    weights = hold(model, place(SPEC, layout), mesh)
    optimizer = build_optimizer(OptimizerSpec.parse({**KEYS, **keys}), weights, load_python, mesh, half)
    assert isinstance(optimizer, Muon)
    return model, optimizer


def train(model: nn.Module, optimizers: list[torch.optim.Optimizer], steps: int = 3) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for optimizer in optimizers:
            optimizer.step()


def matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    names = {t.tensor.name for t in place(SPEC, Layout()) if is_matrix(t.tensor)}
    return {name: p for name, p in model.named_parameters() if name in names}


def test_it_is_torchs_with_the_rate_of_adamw_and_adamw_for_the_rest() -> None:
    """torch's takes no stacks: each expert by itself. Its products are in bf16, so ours are here."""
    model, optimizer = built(half=True)
    train(model, [optimizer])
    twin, _ = built()
    mine, theirs = matrices(model), matrices(twin)
    assert {"layers.0.mlp.gate.weight", "layers.1.attention.k.weight"} <= set(mine)
    assert not {"embed.weight", "head.weight", "norm.weight"} & set(mine)
    flat = {name: p for name, p in theirs.items() if p.dim() == 2}
    stacks = {name: [nn.Parameter(e.clone()) for e in p] for name, p in theirs.items() if p.dim() == 3}
    keys: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    muon = torch.optim.Muon([*flat.values(), *(e for stack in stacks.values() for e in stack)], **keys)
    rest = [p for name, p in twin.named_parameters() if name not in theirs]
    groups = [
        {"params": [p for p in rest if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in rest if p.dim() == 1], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8, fused=True)

    class Stacks(torch.optim.Optimizer):
        def __init__(self) -> None:
            super().__init__([nn.Parameter(torch.zeros(1))], {})

        def step(self, closure: Any = None) -> None:
            for name, experts in stacks.items():
                for expert, grad in zip(experts, theirs[name].grad, strict=True):  # type: ignore[arg-type]
                    expert.grad = grad

    train(twin, [Stacks(), muon, adamw])
    for name, parameter in model.named_parameters():
        expected: Tensor = dict(twin.named_parameters())[name]
        if name in stacks:
            expected = torch.stack([expert.detach() for expert in stacks[name]])
        # a bf16 update of 0.01 x 0.2 x sqrt(40) x 1.2 / 4 a number, with 8 bits, three times
        torch.testing.assert_close(parameter.detach(), expected.detach(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", [(8, 8), (24, 8), (8, 24), (3, 6, 10)])
def test_singular_values_end_near_one(shape: tuple[int, ...]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
    made = orthogonal(matrix)
    values = torch.linalg.svdvals(made)
    assert 0.6 < values.min() < values.max() < 1.3  # five steps of these coefficients: 0.68 to 1.13
    turned = u.mT @ made @ vt.mT  # diagonal: the same singular vectors
    off = turned - torch.diag_embed(torch.diagonal(turned, dim1=-2, dim2=-1))
    assert off.abs().max() < 1e-4  # fp32, magnified by 3.4^5 at most where a singular value is near 0


def test_a_flag_leaves_all_as_it_is() -> None:
    model, optimizer = built()
    train(model, [optimizer], steps=1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    states = {id(p): {k: v.clone() for k, v in s.items()} for p, s in optimizer.state.items()}
    optimizer.found_inf = torch.ones(())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))
    optimizer.step()
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    for parameter, state in optimizer.state.items():
        assert all(torch.equal(value, states[id(parameter)][kind]) for kind, value in state.items())


def test_states_are_the_tables() -> None:
    model, optimizer = built()
    train(model, [optimizer], steps=1)
    record = OPTIMIZERS["muon"]
    for name, parameter in model.named_parameters():
        kinds = {kind for kind, value in optimizer.state[parameter].items() if value.shape == parameter.shape}
        assert kinds == set(record.states if name in matrices(model) else record.outer_states or ())


@pytest.mark.parametrize(
    ("optimizer", "layout", "expected"),
    [
        (KEYS, {"offload": "optimizer", "devices": 2}, "offload: optimizer moves them"),
        ({**KEYS, "momentum": 1.0}, {}, "momentum"),
    ],
)
def test_what_it_can_not_do_is_refused(tmp_path, optimizer, layout, expected) -> None:
    with pytest.raises(UserError, match=expected):
        run(run_data(tmp_path, optimizer=optimizer, layout=layout))


def test_two_ranks_end_with_one_devices_weights(tmp_path) -> None:
    """Ten steps; tests/parity has more layouts, tests/train/state/test_resume.py a stop on the way."""
    keys: dict[str, Any] = {"optimizer": {**KEYS, "lr": 3e-3}, "checkpoint": {"at_end": True}}
    one = run(run_data(tmp_path, out_dir=str(tmp_path / "one"), **keys)).out_dir
    layout = {"devices": 2, "zero_stage": 3, "micro_batch": 2}
    two = run(run_data(tmp_path, out_dir=str(tmp_path / "two"), layout=layout, **keys)).out_dir
    assert_same_run(two, one)
    mine, wanted = (weights(folder) for folder in (two, one))
    matrices = {name for name in wanted if ".weight" in name and name.startswith("layers.") and "norm" not in name}
    assert matrices
    for name in matrices:  # AdamW, which has the rest, magnifies the sign of near-zero gradients
        # ten updates of 0.003 a number, each off by rounding that the iteration magnifies up to 480 times
        torch.testing.assert_close(mine[name], wanted[name], rtol=0, atol=1e-6)
