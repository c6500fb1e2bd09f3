"""The planner's arrays hold the spec's operators: the same FLOPs, parameters and activations."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.plan.cost.work import BLOCK, EXTRA, FORWARD, MATMUL, Kernel, RegionKept, Work, work
from scalewright.plan.predict import predict
from scalewright.spec.flops import forward_flops
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.operators import activation_bytes
from scalewright.spec.presets import load_model_spec
from scalewright.spec.primitives import Sizes
from scalewright.spec.tensors import count

MODELS = [
    "llama-3.2-1b",
    "gemma-3-1b",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",
    "gpt2-124m",
    "nemotron-nano-9b-v2",
    "qwen3-next-80b-a3b",
]
ONE = Sizes(1, 1024, 1, False, 1, 1, 1, 2, "fused")


def column(work: Work, name: str) -> np.ndarray:
    return np.asarray(getattr(Kernel(*work.kernels.T), name))


@pytest.mark.parametrize("name", MODELS)
def test_flops_and_parameters_are_the_specs(name: str) -> None:
    model = load_model_spec(name).replace(mtp_layers=0)
    found = work(model, ONE)
    times = np.where(column(found, "region") == BLOCK, model.num_hidden_layers, 1)
    forward = column(found, "phase") == FORWARD
    flops = column(found, "flops") * column(found, "share") * times
    # the same sums in another order: rounding alone
    assert (flops * forward).sum() == pytest.approx(forward_flops(model, 1024, causal=False), rel=1e-9)
    assert flops.sum() == pytest.approx(3 * forward_flops(model, 1024, causal=False), rel=1e-9)
    regions = np.array([1, model.num_hidden_layers, 1, 0])
    held = ((found.dense + found.expert) * regions).sum()
    assert held == pytest.approx(count(model).total, rel=1e-9)


@pytest.mark.parametrize("tp", [2, 4])
def test_activations_are_the_specs(tp: int) -> None:
    model = load_model_spec("llama-3.2-1b")
    found = work(model, Sizes(2, 1024, tp, True, 1, 1, 1, 2, "fused"))
    layout = Layout(devices=tp, tp=tp, zero_stage=1, micro_batch=2, precision="bf16")
    kept = found.kept[:, RegionKept._fields.index("none")] * np.array([1, model.num_hidden_layers, 1, 0])
    assert kept.sum() == pytest.approx(activation_bytes(model, layout, 1024), rel=1e-9)


def test_multi_token_prediction_is_a_region_of_its_own() -> None:
    model = load_model_spec("deepseek-v3")
    found = work(model, ONE)
    extra = column(found, "region") == EXTRA
    assert extra.any()
    assert found.dense[EXTRA] + found.expert[EXTRA] == pytest.approx(count(model).mtp, rel=1e-9)


def test_projections_of_one_input_are_one_product() -> None:
    model = load_model_spec("llama-3.2-1b")
    found = work(model, ONE)
    block = (column(found, "region") == BLOCK) & (column(found, "kind") == MATMUL)
    assert (block & (column(found, "phase") == FORWARD)).sum() == 4  # qkv, o, gate-up, down


def test_biases_of_experts_are_passes_of_their_own() -> None:
    """In trainers in general; this package's own and XLA's add them as they write the products."""
    biased = load_model_spec("gpt-oss-20b")
    layout = Layout(devices=8, ep=8, zero_stage=1, micro_batch=1)
    seconds = {}
    for name, trainer in (("megatron", "megatron"), ("own", "scalewright"), ("xla", "maxtext-gpu")):
        pair = (biased, biased.replace(mlp_bias=False))
        seconds[name] = [predict(m, load_cluster("dgx-h100"), layout, 4096, framework=trainer) for m in pair]
    computing = {name: [p.breakdown["compute"] for p in pair] for name, pair in seconds.items()}
    # 68 bytes of each of 2,880 numbers, four experts a token, over 82% of 3.35 TB/s, in 24 blocks
    passes = 24 * 4096 * 4 * 2880 * 68 / (0.82 * 3.35e12)
    assert computing["megatron"][0] - computing["megatron"][1] == pytest.approx(passes, rel=0.01)  # and two starts
    assert computing["own"][0] == computing["own"][1]
    assert computing["xla"][0] == computing["xla"][1]
