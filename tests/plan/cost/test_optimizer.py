"""Each optimizer is planned with its own states, and with what its own update moves."""

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
from scalewright.spec.optimizers import ADAMW, OPTIMIZERS, Optimizer
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
def test_the_peak_differs_by_a_ranks_states(
    model: ModelSpec, keys: dict[str, Any], optimizer: Optimizer
) -> None:
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
        if optimizer.outer_states is not None:  # its products: test_matrices.py
            continue
        taken = priced(LLAMA, keys, optimizer).breakdown["optimizer"]
        assert taken == pytest.approx(adamw * (optimizer.update + optimizer.flag) / 28, rel=1e-12)
    cpu = machine(1)
    layout = Layout.parse({"devices": 1, "precision": "fp32"})
    adamw, lion = (
        predict(GPT2, cpu, layout, 256, optimizer=OPTIMIZERS[name]).breakdown["optimizer"]
        for name in ("adamw", "lion")
    )
    assert lion == pytest.approx(adamw * 52 / 28, rel=1e-12)


def test_another_trainers_recipe_is_adamws() -> None:
    keys = {"devices": 8, "zero_stage": 3}
    plain, lion = (
        priced(LLAMA, keys, optimizer, framework="torchtitan") for optimizer in (ADAMW, OPTIMIZERS["lion"])
    )
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
