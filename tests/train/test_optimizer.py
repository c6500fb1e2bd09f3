"""Updates against plain formulas and torch's own, and the state that a checkpoint takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from parts import Factored
from runs import rows, run, run_data
from scalewright.model.moe import Stack
from scalewright.parallel.weights import Weights, hold
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.optimizers import OPTIMIZERS, Optimizer
from scalewright.spec.placement import place_plain
from scalewright.spec.run import OptimizerSpec, PythonRef
from scalewright.train.network import describe, load_python
from scalewright.train.optimizer import BUILDERS, base_rate, build_optimizer, set_rate
from scalewright.train.state.optimizer_state import (
    check_first_states,
    check_states,
    gather_numbers,
    read_states,
    write_states,
)
from worlds import one_rank


def small(seed: int = 0) -> tuple[nn.Module, Weights]:
    """A linear layer with a bias: one tensor that is decayed, one that isn't."""
    torch.manual_seed(seed)
    module = nn.Linear(5, 3)
    mesh, layout = one_rank()
    return module, hold(module, place_plain(describe(module), layout), mesh)


def build(weights: Weights, **keys: Any) -> torch.optim.Optimizer:
    return build_optimizer(OptimizerSpec.parse(keys), weights, load_python, one_rank()[0])


def train(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 1) -> None:
    """Steps with gradients that are a function of `seed` and the step alone."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def gradients(steps: int, seed: int = 1) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(shape, generator=generator, dtype=torch.float32).double() for shape in ((3, 5), (3,))]
        for _ in range(steps)
    ]


def formula(kind: str, values: list[torch.Tensor], steps: int, lr: float, decay: float) -> list[torch.Tensor]:
    """The textbook, one tensor at a time, in fp64."""
    out = []
    for index, value in enumerate(values):
        w, m, v = value.double(), torch.zeros_like(value).double(), torch.zeros_like(value).double()
        wd = decay if index == 0 else 0.0  # biases are not decayed
        for step, grads in enumerate(gradients(steps), 1):
            g = grads[index]
            if kind == "adamw":
                m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
                update = (m / (1 - 0.9**step)) / ((v / (1 - 0.95**step)).sqrt() + 1e-8) + wd * w
            elif kind == "lion":
                update = torch.sign(0.9 * m + 0.1 * g) + wd * w
                m = 0.95 * m + 0.05 * g
            else:
                g = g + wd * w
                m = g if step == 1 else 0.7 * m + g
                update = m
            w = w - lr * update
        out.append(w)
    return out


@pytest.mark.parametrize("kind", ["adamw", "lion", "sgd"])
def test_updates_are_the_textbooks(kind):
    module, weights = small()
    before = [p.detach().clone() for p in module.parameters()]
    momentum = {"momentum": 0.7} if kind == "sgd" else {}
    train(module, build(weights, name=kind, lr=0.01, weight_decay=0.1, **momentum), steps=5)
    for mine, wanted in zip(module.parameters(), formula(kind, before, 5, lr=0.01, decay=0.1), strict=True):
        # five fp32 updates of numbers near 1: 5 x 6e-8, and AdamW's division once more
        torch.testing.assert_close(mine.detach().double(), wanted, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_states_are_the_tables(name):
    """What torch keeps of a weight after a step is the record's, tensor by tensor and byte by byte."""
    record = OPTIMIZERS[name]
    module, weights = small()
    momentum = 0.9 if name == "momentum" else 0.0
    optimizer = build(weights, name=record.written, momentum=momentum)
    train(module, optimizer, steps=1)
    for parameter in module.parameters():
        state = {kind: x for kind, x in optimizer.state[parameter].items() if x is not None}
        same = {kind for kind, x in state.items() if x.shape == parameter.shape}
        outer = record.outer_states is not None and parameter.dim() == 1
        assert same == set(record.outer_states or () if outer else record.states)
        wide = torch.bfloat16 if record.width == 2 else torch.float32  # bytes are for larger tensors
        assert all(state[kind].dtype == wide for kind in same)
        steps = record.step_bytes if outer or record.outer_states is None else 0
        assert sum(x.nbytes for kind, x in state.items() if kind not in same) == steps
    packed = {name for name, record in OPTIMIZERS.items() if record.packed}  # test_packed_adamw.py
    assert {*BUILDERS, "muon", *packed} == set(OPTIMIZERS)


def test_a_record_and_a_builder_are_a_new_optimizer(monkeypatch):
    """CONTRIBUTING.md's recipe, with Adagrad; tests/test_how_to_add.py plans it."""
    record = Optimizer(name="adagrad", written="sgd", states=("sum",), update=20, source="Duchi et al. 2011")
    monkeypatch.setitem(OPTIMIZERS, "adagrad", record)
    monkeypatch.setitem(BUILDERS, "adagrad", lambda groups, spec, fused: torch.optim.Adagrad(groups))
    module, weights = small()
    spec = OptimizerSpec().model_copy(update={"name": "adagrad"})  # not validated against the words
    optimizer = build_optimizer(spec, weights, load_python, one_rank()[0])
    train(module, optimizer, steps=1)
    assert all(set(record.states) <= set(optimizer.state[p]) for p in module.parameters())


def test_adamw_is_torchs_bit_for_bit():
    module, weights = small()
    train(module, build(weights, name="adamw", lr=0.01, weight_decay=0.1), steps=5)
    plain, _ = small()
    groups = [{"params": [plain.weight], "weight_decay": 0.1}, {"params": [plain.bias], "weight_decay": 0.0}]
    train(plain, torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8, fused=True), steps=5)
    assert torch.equal(module.weight, plain.weight)
    assert torch.equal(module.bias, plain.bias)


def test_biases_of_experts_are_not_decayed():
    """They lie stacked in a matrix, and are no weights."""
    module, (mesh, layout) = nn.Module(), one_rank()
    module.experts = Stack(4, 3, 5, bias=True)
    weights = hold(module, place_plain(describe(module), layout), mesh)
    decays = {
        w.name: group["weight_decay"]
        for group in build(weights, name="adamw", lr=0.01, weight_decay=0.1).param_groups
        for w in weights
        if any(w.master is parameter for parameter in group["params"])
    }
    assert decays == {"experts.weight": 0.1, "experts.bias": 0.0}


def test_the_rate_is_set_in_proportion():
    module, weights = small()
    optimizer = build(weights, name="sgd", lr=0.1)
    optimizer.param_groups[1]["lr"] = 0.3  # a group with a rate of its own
    for rate in (0.05, 0.1, 0.0):
        set_rate(optimizer, 0.1, rate)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([rate, 3 * rate])
    assert base_rate(OptimizerSpec(lr=0.1), optimizer) == 0.1
    assert len(list(module.parameters())) == 2


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "adamw", "lr": 0.01},
        {"name": "lion", "lr": 0.01},
        {"name": "sgd", "lr": 0.01, "momentum": 0.9},
        {"name": "sgd", "lr": 0.01},
    ],
    ids=["adamw", "lion", "momentum", "sgd"],
)
def test_state_out_and_in_again_is_the_same_run(keys):
    """Bitwise: 3 updates, state out, into a new optimizer, 3 more == 6 updates."""
    module, weights = small()
    optimizer = build(weights, **keys)
    train(module, optimizer, 3)
    tensors, numbers = read_states(optimizer, weights)
    numbers, by_rank = gather_numbers(numbers, weights, one_rank()[0])
    assert by_rank == []
    saved = {f"{kind}/{name}": t.clone() for name, by in tensors.items() for kind, t in by.items()}
    other, other_weights = small(seed=9)
    other.load_state_dict(module.state_dict())
    fresh = build(other_weights, **keys)
    kinds = sorted({key.split("/")[0] for key in saved})
    write_states(fresh, other_weights, kinds, lambda k, w: saved.get(f"{k}/{w.name}"), numbers)
    train(module, optimizer, 3, seed=2)
    train(other, fresh, 3, seed=2)
    for mine, wanted in zip(other.parameters(), module.parameters(), strict=True):
        assert torch.equal(mine, wanted)
    if keys["name"] == "adamw":
        assert numbers == {"step": {"*": 3.0}}


def test_state_that_can_not_be_cut_is_refused():
    module, weights = small()
    optimizer = Factored(module.parameters(), lr=0.1)
    train(module, optimizer, 1)
    with pytest.raises(UserError, match="optimizer state 'row' of 'weight' has another shape"):
        read_states(optimizer, weights)
    optimizer.state[module.weight] = {"history": []}
    with pytest.raises(UserError, match="'history' of 'weight' is a list"):
        read_states(optimizer, weights)


def test_states_are_looked_at_after_the_first_update_and_only_then():
    module, weights = small()
    optimizer = Factored(module.parameters(), lr=0.1)
    check_first_states(optimizer, lambda: check_states(optimizer, weights))
    with pytest.raises(UserError, match=r"'row' of 'weight' has another shape .*checkpoint.every=0"):
        train(module, optimizer, 1)
    train(module, optimizer, 1)


def test_a_state_that_can_not_be_saved_ends_a_run_that_saves_in_its_first_step(tmp_path):
    data = run_data(tmp_path, optimizer={"python": "parts:Factored", "lr": 0.1}, train={"steps": 3})
    assert run(data).step == 3
    with pytest.raises(UserError, match=r"'row' of .* has another shape"):
        run({**data, "out_dir": str(tmp_path / "saves"), "checkpoint": {"at_end": True}})
    assert rows(tmp_path / "saves") == []


def test_a_run_that_saves_nothing_and_is_asked_to_stop_says_why_it_could_not(tmp_path):
    data = run_data(tmp_path, optimizer={"python": "parts:Interrupted", "lr": 0.1}, train={"steps": 30})
    with pytest.raises(RunError, match=r"'row' of .* has another shape"):
        run(data)
    assert 1 <= len(rows(tmp_path / "out")) < 30


def test_an_optimizer_that_is_none():
    _, weights = small()
    with pytest.raises(UserError, match="gave a list"):
        build_optimizer(PythonRef(python="builtins:sorted"), weights, lambda ref: lambda groups: [], one_rank()[0])
    with pytest.raises(UserError, match="can't be called so"):
        build_optimizer(PythonRef.parse({"python": "parts:momentum"}), weights, load_python, one_rank()[0])
