"""Each optimizer is planned with its own states, what its update moves, and its products (by hand)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rank_states import state_bytes

from fake_machine import machine
from scalewright.plan.cost.memory import GIB
from scalewright.plan.predict import Prediction, predict
from scalewright.plan.request import from_question
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import ADAMW, OPTIMIZERS, Optimizer, product_flops
from scalewright.spec.presets import load_model_spec
from scalewright.spec.question import Question
from scalewright.spec.run import RunSpec

H100 = load_cluster("dgx-h100")
LLAMA, GPT2 = load_model_spec("llama-3.1-8b"), load_model_spec("gpt2-124m")
LAYOUTS: list[tuple[ModelSpec, dict[str, Any]]] = [
    (LLAMA, {"devices": 8, "zero_stage": 3}),
    (LLAMA, {"devices": 8, "tp": 2, "zero_stage": 1, "global_batch": 16}),
    (GPT2, {"devices": 8, "zero_stage": 0, "global_batch": 64, "micro_batch": 8}),
]
OTHERS = [record for record in OPTIMIZERS.values() if record is not ADAMW]


def priced(model: ModelSpec, keys: dict[str, Any], optimizer: Optimizer = ADAMW, **more: Any) -> Prediction:
    layout = Layout.parse({"precision": "bf16", **keys})
    return predict(model, H100, layout, 1024, optimizer=optimizer, **more)


@pytest.mark.parametrize("optimizer", OTHERS, ids=lambda record: record.name)
@pytest.mark.parametrize(("model", "keys"), LAYOUTS, ids=["zero 3", "tp 2", "replicas"])
def test_the_peak_differs_by_a_ranks_states(model: ModelSpec, keys: dict[str, Any], optimizer: Optimizer) -> None:
    layout = Layout.parse({"precision": "bf16", **keys})
    less = state_bytes(model, layout).optimizer - state_bytes(model, layout, optimizer=optimizer).optimizer
    adamw, other = priced(model, keys).memory_gib, priced(model, keys, optimizer).memory_gib
    assert less > 0
    # Sums of integers in floats: the last bits alone. With so few tokens muon's peak may be its update.
    for kind in ("optimizer",) if optimizer.outer_states else ("peak", "optimizer"):
        assert (adamw[kind] - other[kind]) * GIB == pytest.approx(less, rel=1e-9)


def test_the_update_takes_its_bytes_over_adamws() -> None:
    """On a GPU with those that obeying the flag takes; on the host, where masters are, without."""
    keys = {"devices": 8, "zero_stage": 3}
    adamw = priced(LLAMA, keys).breakdown["optimizer"]
    for optimizer in OTHERS:
        if optimizer.outer_states is not None:  # its products: below
            continue
        taken = priced(LLAMA, keys, optimizer).breakdown["optimizer"]
        assert taken == pytest.approx(adamw * (optimizer.update + optimizer.flag) / 28, rel=1e-12)
    cpu = machine(1)
    layout = Layout.parse({"devices": 1, "precision": "fp32"})
    adamw, lion = (
        predict(GPT2, cpu, layout, 256, optimizer=OPTIMIZERS[name]).breakdown["optimizer"] for name in ("adamw", "lion")
    )
    assert lion == pytest.approx(adamw * 52 / 28, rel=1e-12)


def test_another_trainers_recipe_is_adamws() -> None:
    keys = {"devices": 8, "zero_stage": 3}
    plain, lion = (priced(LLAMA, keys, optimizer, framework="torchtitan") for optimizer in (ADAMW, OPTIMIZERS["lion"]))
    assert plain.dump() == lion.dump()


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ({}, "adamw"),
        ({"name": "lion"}, "lion"),
        ({"name": "sgd"}, "sgd"),
        ({"name": "sgd", "momentum": 0.9}, "momentum"),
        ({"name": "adamw", "momentum": 0.9}, "adamw"),  # a key of SGD alone
        ({"python": "parts:optimizer"}, "adamw"),  # the one that keeps the most
    ],
)
def test_a_run_files_optimizer_is_the_records(written: dict[str, Any], name: str) -> None:
    run = RunSpec.parse({"model": "llama-56m", "data": {"train": "nowhere"}, "optimizer": written})
    assert from_question(Question(run, load_cluster("dgx-h100"))).optimizer is OPTIMIZERS[name]


MUON = OPTIMIZERS["muon"]


def update(keys: dict[str, Any], optimizer: Any = MUON) -> float:
    layout = Layout.parse({"precision": "bf16", "global_batch": 64, **keys})
    return predict(LLAMA, H100, layout, 4096, optimizer=optimizer).breakdown["optimizer"]


def test_flops_of_a_matrix_are_those_of_its_products() -> None:
    """[2, 3]: x x^T and the last product 2 x 2 x 2 x 3 each, the square's own 2 x 2 x 2 x 2; five times."""
    assert product_flops((2, 3)) == product_flops((3, 2)) == 5 * (24 + 16 + 24)
    assert product_flops((7, 2, 3)) == 7 * product_flops((2, 3))


def test_each_matrix_is_computed_once_by_the_ranks_that_share_it() -> None:
    """8B: 6.7e14 FLOPs in all, by 500 to 900 TFLOP/s. More shards have less each, replicas all of it."""
    eight, sixteen, tp, replicas = (
        update(keys) - update(keys, ADAMW)
        for keys in (
            {"devices": 8, "zero_stage": 3},
            {"devices": 16, "zero_stage": 3},
            {"devices": 8, "tp": 8},
            {"devices": 16, "zero_stage": 3, "dp_replicate": 2},
        )
    )
    assert 6.7e14 / 8 / 900e12 < eight < 6.7e14 / 8 / 500e12 + 0.05
    assert eight > 1.6 * sixteen
    assert tp == pytest.approx(eight, rel=0.5)  # at the pace of its blocks, which is another
    assert replicas == pytest.approx(eight, rel=0.1)


def test_a_rank_has_at_least_the_largest_matrix() -> None:
    """On 1,024 shards most ranks have no matrix, and one has a gate of 4,096 x 14,336: 5.5e12 FLOPs."""
    keys = {"devices": 1024, "zero_stage": 3, "global_batch": 1024}
    assert update(keys) > product_flops((4096, 14336)) / 900e12
