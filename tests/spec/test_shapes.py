"""Shapes of a given size: within 2%, of usual proportions, and split by powers of two when large."""

from __future__ import annotations

import pytest

from scalewright.spec.errors import UserError
from scalewright.spec.huggingface import RUNS, read_huggingface, to_huggingface
from scalewright.spec.shapes import new_preset, styles
from scalewright.spec.tensors import count

DENSE = sorted(family for family, style in styles().items() if family in RUNS and "moe" not in style.keys)


@pytest.mark.parametrize("params", [3.5e6, 3e7, 1.25e8, 1e9, 7e9, 13e9, 7e10, 4e11])
@pytest.mark.parametrize("like", DENSE)
def test_every_family_at_every_size(like: str, params: float) -> None:
    spec = new_preset(params, like, 4096 if params < 1e7 else 32000 if params < 2e8 else 65536)
    assert count(spec).total == pytest.approx(params, rel=0.02)
    assert spec.hidden_size % (128 if params >= 1e9 else 64) == 0
    assert spec.dim_per_head in ((64, 128, 256) if params >= 1e8 else (32, 64, 128, 256))
    assert spec.intermediate_size % (256 if spec.hidden_size >= 1024 else 64) == 0
    assert spec.num_attention_heads % spec.kv_heads == 0
    assert spec.num_hidden_layers < 9 or spec.num_hidden_layers % 2 == 0
    if params >= 3e9 and spec.dim_per_head == 128:
        assert spec.num_attention_heads % 8 == 0
    back = read_huggingface(to_huggingface(spec), name=spec.name)
    layers = range(spec.num_hidden_layers)
    assert [back.window(i) for i in layers] == [spec.window(i) for i in layers]  # few layers cut the pattern
    assert back.replace(window_pattern=spec.window_pattern) == spec


@pytest.mark.parametrize(
    ("like", "params"),
    [
        ("mixtral", 1e9), ("mixtral", 46.7e9), ("qwen3_moe", 30e9), ("qwen3_moe", 235e9), ("olmoe", 6.9e9),
        ("qwen2_moe", 14e9), ("glm4_moe", 106e9), ("deepseek_v2", 16e9), ("deepseek_v3", 671e9),
        ("gpt_oss", 1e9), ("gpt-oss", 20.9e9), ("llama4", 109e9),
    ],
)  # fmt: skip
def test_mixtures(like: str, params: float) -> None:
    spec = new_preset(params, like, 65536)
    counted = count(spec)
    assert counted.total == pytest.approx(params, rel=0.02)
    assert counted.active < counted.total / 2
    assert spec.moe is not None
    assert read_huggingface(to_huggingface(spec)).moe is not None


def test_every_promised_family_has_a_style() -> None:
    assert set(styles()) >= RUNS


def test_large_llamas_have_eight_kv_heads_and_grow_deeper() -> None:
    sizes = [new_preset(p, "llama", 65536) for p in (7e9, 13e9, 7e10, 4e11)]
    assert all(spec.kv_heads == 8 for spec in sizes)
    depths = [spec.num_hidden_layers for spec in sizes]
    assert depths == sorted(depths)
    assert depths[0] < depths[-1]


def test_like_takes_short_names_and_presets() -> None:
    assert new_preset(1e9, "qwen").family == "qwen3"
    assert new_preset(1e9, "mistral-7b-v0.1").family == "mistral"
    with pytest.raises(UserError, match="unknown family 'lama'"):
        new_preset(1e9, "lama")


def test_fine_steps_keep_small_models_in_proportion() -> None:
    specs = [new_preset(p, "llama", 512, fine=True) for p in (2e5, 5e5, 1.2e6, 2.2e6, 4e6)]
    assert all(16 < spec.hidden_size / spec.num_hidden_layers < 50 for spec in specs)
    assert [spec.hidden_size for spec in specs] == sorted(spec.hidden_size for spec in specs)
    assert count(new_preset(2e5, "llama", 512)).total == pytest.approx(2e5, rel=0.02)  # where no coarser one is


def test_sizes_that_no_shape_has() -> None:
    with pytest.raises(UserError, match="the smallest with vocab 65536"):
        new_preset(1e6, "llama", 65536)
    with pytest.raises(UserError, match="must be positive"):
        new_preset(0, "llama")
