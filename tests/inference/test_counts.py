"""What models hold when they serve, against published figures and against the spec's own counts."""

from __future__ import annotations

import pytest

from scalewright.inference.counts import counts
from scalewright.spec.presets import load_model_spec
from scalewright.spec.tensors import count


@pytest.mark.parametrize(
    ("model", "kv_bytes"),
    [
        ("llama-2-13b", 819_200),  # MHA: 2 x 40 heads x 128 x 40 layers x 2 bytes
        ("llama-3-70b", 327_680),  # GQA: the usual 320 KiB
        ("deepseek-v3", 70_272),  # MLA: Insights into DeepSeek-V3, table 1
        ("deepseek-v2", 69_120),
        ("qwen3.5-27b", 65_536),  # 16 of 64 layers keep a cache of 4 heads of 256
    ],
)
def test_cache_of_a_token(model, kv_bytes):
    assert 2 * counts(load_model_spec(model)).kv_elements == kv_bytes


def test_layers_with_a_window_stop_growing():
    n = counts(load_model_spec("gpt-oss-120b"))
    assert n.window == 128
    assert n.full.elements == n.windowed.elements == 18 * 2 * 8 * 64


def test_hybrids_keep_a_state_a_sequence():
    assert counts(load_model_spec("llama-3-8b")).state_bytes == 0
    hybrid = counts(load_model_spec("nemotron-3-nano-30b-a3b"))
    spec = load_model_spec("nemotron-3-nano-30b-a3b").mamba
    layers = hybrid.state_bytes / (4 * spec.inner * spec.state_size)
    assert 23 < layers < 24  # its 23 Mamba layers, and the last inputs of their convolutions


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-2b", "mixtral-8x7b", "deepseek-v3", "qwen3.5-9b"])
def test_parts_add_up_to_all_parameters(model):
    spec = load_model_spec(model)
    n, whole = counts(spec), count(spec)
    ends = whole.embedding + whole.head
    assert n.attention + n.attention_whole + n.mlp + n.experts + n.rest + ends == whole.total
    assert n.head == (whole.head or whole.embedding)
    idle = n.experts * (1 - n.top_k / n.num_experts)
    assert whole.total - idle == pytest.approx(whole.active)


def test_a_layer_of_one_part_has_one_sum_behind_it():
    assert counts(load_model_spec("llama-3-8b")).parts == 64
    assert counts(load_model_spec("nemotron-3-nano-30b-a3b")).parts == 52
