"""Mamba-2 and DeltaNet: parameters and FLOPs that can be added up by hand, and published ones."""

from __future__ import annotations

import pytest

from scalewright.spec.flops import forward_flops
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import activation_bytes, operators
from scalewright.spec.presets import load_model_spec
from scalewright.spec.primitives import Operator
from scalewright.spec.tensors import count, tensors

D, LENGTH = 8, 32
ONE = Layout(precision="bf16")
PLAIN = {
    "vocab_size": 10,
    "hidden_size": D,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "tie_word_embeddings": True,
}
# 4 heads of 6, which share 2 pairs of B and C
MAMBA = ModelSpec.parse(
    {
        **PLAIN,
        "layer_pattern": ["mamba"],
        "mamba": {"num_heads": 4, "head_dim": 6, "state_size": 5, "groups": 2, "chunk_size": 16},
    }
)
# 2 heads of queries and keys of 3, 4 of values of 5
DELTANET = ModelSpec.parse(
    {
        **PLAIN,
        "layer_pattern": ["deltanet"],
        "deltanet": {
            "num_key_heads": 2,
            "num_value_heads": 4,
            "key_head_dim": 3,
            "value_head_dim": 5,
            "chunk_size": 16,
        },
    }
)
OUTSIDE = 10 * D + 2 * D  # the embedding, the final norm and the layer's


def scan(model: ModelSpec, layout: Layout = ONE) -> Operator:
    return next(o for o in operators(model, layout, LENGTH) if o.kind == "scan")


def test_mamba_adds_up_by_hand() -> None:
    inner, shared, heads = 4 * 6, 2 * 5, 4
    projections = D * (2 * inner + 2 * shared + heads)
    convolutions = (inner + 2 * shared) * (4 + 1)  # four taps and a bias
    of_heads, norm, out = 3 * heads, inner, inner * D  # A, D, dt's bias
    assert count(MAMBA).total == OUTSIDE + projections + convolutions + of_heads + norm + out


def test_deltanet_adds_up_by_hand() -> None:
    keys, values, heads = 2 * 3, 4 * 5, 4
    projections = D * (2 * keys + 2 * values + 2 * heads)
    convolutions = (2 * keys + values) * 4
    of_heads, norm, out = 2 * heads, 5, values * D  # a decay, dt's bias; one norm for all heads
    assert count(DELTANET).total == OUTSIDE + projections + convolutions + of_heads + norm + out


def test_a_scan_s_flops_are_its_chunks_products() -> None:
    """Each chunk of Q tokens, every product at its shape (Dao & Gu 2024 §6.2; Yang et al. 2024 §3.2)."""
    chunks, q = LENGTH // 16, 16
    n, p, heads, groups = 5, 6, 4, 2
    inside = groups * 2 * q * n * q + heads * 2 * q * q * p  # C B^T, and its product with x
    between = heads * (2 * n * q * p + 2 * q * n * p)  # the chunk's state; C times the last one's
    assert scan(MAMBA).flops == chunks * (inside + between)
    k, v = 3, 5
    transform = heads * (2 * q * k * q + q**3 / 3 + 2 * q * q * k + 2 * q * q * v)  # K K^T, T, T K, T V
    products = heads * (2 * q * k * q + 2 * q * q * v + 3 * 2 * q * k * v)  # Q K^T, its product; three of states
    assert scan(DELTANET).flops == pytest.approx(chunks * (transform + products))


def test_a_hybrid_s_flops_are_the_published_ones() -> None:
    """NVIDIA/dgxc-benchmarking, nemotronh/README.md: 2.816e15 a sequence of 8,192, chunks of 256."""
    model = load_model_spec("nemotron-h-56b")
    assert model.mamba is not None
    model = model.replace(mamba=model.mamba.replace(chunk_size=256).dump())
    assert 3 * forward_flops(model, 8192, causal=False) == pytest.approx(2.816e15, rel=2e-4)  # as printed


@pytest.mark.parametrize("model", [MAMBA, DELTANET], ids=["mamba", "deltanet"])
def test_tensor_parallel_ranks_share_the_heads(model: ModelSpec) -> None:
    two = Layout(devices=2, tp=2, precision="bf16")
    assert scan(model, two).flops == scan(model).flops / 2
    assert scan(model, two).saved == scan(model).saved / 2
    mixer = model.layer_pattern[0]
    roles = {t.name.split(".")[3]: t.role for t in tensors(model) if t.name.startswith(f"layers.0.{mixer}.")}
    assert roles.pop("o") == "row"
    assert set(roles.values()) - {"head_norm"} == {"column"}


@pytest.mark.parametrize("model", [MAMBA, DELTANET], ids=["mamba", "deltanet"])
def test_recomputation_keeps_less(model: ModelSpec) -> None:
    kept = [
        activation_bytes(model, Layout.parse({"recompute": kind, "precision": "bf16"}), LENGTH)
        for kind in ("none", "selective", {"budget": 0.6}, "full")
    ]
    assert kept[0] > kept[1] > kept[3]
    assert kept[0] > kept[2] >= kept[3]
