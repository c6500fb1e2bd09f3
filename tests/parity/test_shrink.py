"""What is made of a layout and a model that don't fit: the same axes and features, small."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scalewright.parity import setup
from scalewright.parity.layouts import by_hand, one_device, smallest
from scalewright.parity.models import fewer_kv_heads, small_model, small_seq_len
from scalewright.parity.setup import MachineLimits, too_large
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec, model_presets
from scalewright.spec.run import RunSpec

ROOM = MachineLimits(ranks=8, rate=2e10, memory=8e9, device_memory=8e9)
LARGE: dict[str, Any] = {
    "devices": 1024, "tp": 8, "pp": 16, "dp_replicate": 2, "schedule": "interleaved", "virtual_stages": 2,
    "global_batch": 512,
}  # fmt: skip


def axes(layout: Layout) -> set[str]:
    """The axes that are there."""
    sizes = {"tp": layout.tp, "pp": layout.pp, "dp_replicate": layout.dp_replicate, "shard": layout.dp_shard}
    sizes |= {"cp": layout.cp, "ep": layout.ep, "etp": layout.etp}
    return {axis for axis, size in sizes.items() if size > 1}


@pytest.mark.parametrize(
    "keys",
    [
        LARGE,
        {"devices": 64, "tp": 8, "zero_stage": 1, "global_batch": 64},
        {"devices": 32, "pp": 8, "schedule": "dualpipev", "global_batch": 64},
        {"devices": 32, "pp": 8, "schedule": "zbv", "global_batch": 32, "recompute": "selective"},
        {"devices": 64, "cp": 4, "tp": 4, "global_batch": 4},
        {"devices": 64, "ep": 8, "tp": 2, "etp": 2, "global_batch": 32},
        {"devices": 12, "tp": 3, "dp_replicate": 2, "global_batch": 4},
    ],
)
def test_the_smallest_layout_has_the_same_axes(keys):
    layout = Layout.parse(keys)
    small = smallest(layout, 96)
    assert axes(small) == axes(layout)
    sizes = (small.tp, small.pp, small.cp, small.dp_replicate, small.ep, small.etp)
    assert max(sizes) == 2
    assert small.devices < layout.devices
    for key in ("schedule", "virtual_stages", "zero_stage", "recompute", "offload", "sp", "micro_batch"):
        assert getattr(small, key) == getattr(layout, key)
    check_layout(small, load_model_spec("llama-3.1-70b")) if small.ep == 1 else None


def test_one_device_keeps_the_batch_and_the_precision():
    layout = Layout.parse({**LARGE, "precision": "bf16", "recompute": "full", "micro_batch": 2})
    control = one_device(layout)
    assert (control.devices, control.global_batch, control.precision) == (1, 512, "bf16")
    assert (control.micro_batch, control.recompute, control.zero_stage) == (2, "none", 0)


@pytest.mark.parametrize(
    ("layers", "stages", "given", "wanted"),
    [(4, 2, (2, 2), [2, 2]), (4, 2, (1, 3), [3, 1]), (5, 4, (1, 3), [2, 1, 1, 1]), (2, 2, (1, 3), [1, 1])],
)
def test_stages_by_hand(layers, stages, given, wanted):
    assert by_hand(layers, stages, given) == wanted


DENSE = [name for name, spec in model_presets().items() if spec.moe is None and spec.mla is None]


@pytest.mark.parametrize("name", DENSE)
def test_a_small_model_has_the_features_of_its_family(name):
    """For every dense preset: what makes it different from others is still there, and it can be cut."""
    model = load_model_spec(name)
    whole = model.mamba is not None and model.mamba.groups == 1  # tensor parallelism can't cut it
    before = Layout.parse({"devices": 16, "tp": 1 if whole else 2, "pp": 2, "global_batch": 16})
    after = smallest(before, model.num_hidden_layers)
    seq_len = small_seq_len(2048, after)
    small = small_model(model, before, after, seq_len)
    check_layout(after, small, seq_len)
    for key in (
        "family", "mlp_type", "norm_type", "norm_position", "residual", "qk_norm", "qkv_bias", "o_bias",
        "mlp_bias", "head_bias", "tie_word_embeddings", "positions", "attention_softcap", "logit_softcap",
        "embedding_norm", "final_norm", "attention_sinks",
    ):  # fmt: skip
        assert getattr(small, key) == getattr(model, key), key
    ratio = model.num_attention_heads // model.kv_heads
    assert (small.num_attention_heads // small.kv_heads > 1) == (ratio > 1)
    assert (model.vocab_size % 2 == 0) == (small.vocab_size % 2 == 0)
    layers = range(small.num_hidden_layers)
    assert any(small.window(n) for n in layers) == any(model.window_pattern)
    assert not too_large(small, after, seq_len, 10, ROOM)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "llama-4-scout", "llama-4-maverick"])
def test_a_small_mixture_has_both_kinds_of_layer(name):
    model = load_model_spec(name)
    before = Layout.parse({"devices": 64, "tp": 2, "pp": 2, "ep": 8, "global_batch": 64})
    after = smallest(before, model.num_hidden_layers)
    seq_len = small_seq_len(2048, after)
    small = small_model(model, before, after, seq_len)
    check_layout(after, small, seq_len)
    layers = range(small.num_hidden_layers)
    assert {small.window(n) is None for n in layers} == {True, False}
    assert {small.has_rope(n) for n in layers} == {model.has_rope(n) for n in range(4)}
    assert {small.is_moe(n) for n in layers} == {model.is_moe(n) for n in range(4)}
    assert small.moe.weigh_input == model.moe.weigh_input
    heat = small.attention_temperature
    assert (heat is None) == (model.attention_temperature is None)
    assert heat is None or heat.floor_scale < seq_len
    assert not too_large(small, after, seq_len, 10, ROOM)


def test_kv_heads_stay_fewer_than_tp():
    """Copies of KV heads are a path of their own: a small tp keeps them."""
    model = ModelSpec(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=16,
        num_key_value_heads=4,
    )  # fmt: skip
    before = Layout.parse({"devices": 16, "tp": 16})
    after = smallest(before, 2)
    assert fewer_kv_heads(model, before, after).kv_heads < after.tp
    assert small_model(model, before, after, 32).kv_heads < after.tp
    cut = Layout.parse({"devices": 16, "tp": 4})
    assert fewer_kv_heads(model, cut, smallest(cut, 2)).kv_heads == 4


def fit(monkeypatch, tmp_path, limits: MachineLimits = ROOM, **changes: Any) -> setup.Setup:
    """The runs that are compared, on a machine of this size."""
    monkeypatch.setattr(setup, "find_limits", lambda device: limits)
    keys = {"model": "llama-3.1-70b", "data": str(tmp_path / "nothing"), "layout": LARGE, **changes}
    return setup.set_up(RunSpec.parse(keys), device="cpu", steps=10)


def test_what_is_shrunk_is_said(monkeypatch, tmp_path):
    made = fit(monkeypatch, tmp_path)
    assert made.layout.layout.devices == 16
    assert axes(made.layout.layout) == {"tp", "pp", "dp_replicate", "shard"}
    for said in ("tp 8 -> 2", "pp 16 -> 2", "devices 1024 -> 16", "num_hidden_layers 80 -> 5", "seq_len 1024"):
        assert any(change.startswith(said) for change in made.shrunk), said
    assert made.notes == (f"random tokens: there is no data at {tmp_path / 'nothing'}",)
    assert made.layout.layout.precision == "fp32"
    assert made.control.layout.devices == 1
    for run in (made.layout, made.control):
        assert run.lr_schedule.kind == "constant"
        assert not run.track.mlflow
        assert run.checkpoint.every == 0


def test_what_fits_is_left_as_it_is(monkeypatch, tmp_path):
    tiny = {"vocab_size": 67, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
            "num_attention_heads": 4}  # fmt: skip
    layout = {"devices": 8, "pp": 2, "tp": 2, "stage_layers": [1, 2], "global_batch": 8}
    (tmp_path / "tokens.npy").touch()
    data = {"train": str(tmp_path / "tokens.npy"), "seq_len": 16}
    made = fit(monkeypatch, tmp_path, model=tiny, layout=layout, data=data)
    assert made.shrunk == made.notes == ()
    assert made.layout.data.dump()["seq_len"] == 16
    assert made.layout.layout.stage_layers == (1, 2)


def test_ranks_that_do_not_fit_leave_a_small_model_alone(monkeypatch, tmp_path):
    tiny = {"vocab_size": 67, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 9,
            "num_attention_heads": 16}  # fmt: skip
    layout = {"devices": 64, "tp": 16, "pp": 4, "stage_layers": [3, 2, 2, 2]}
    made = fit(monkeypatch, tmp_path, model=tiny, layout=layout)
    assert made.layout.layout.stage_layers == (5, 4)
    assert {change.split()[0] for change in made.shrunk} == {"devices", "tp", "pp", "stage_layers"}


def test_gpus_that_are_too_few(monkeypatch):
    limits = replace(ROOM, ranks=4)
    layout = Layout.parse(LARGE)
    with pytest.raises(UserError, match=r"16, and here are 4 GPUs .*--device cpu"):
        setup._fit(load_model_spec("llama-3.1-8b"), layout, 1024, 10, limits, "cuda")


def test_a_layout_that_cannot_be(monkeypatch, tmp_path):
    with pytest.raises(UserError, match="not divisible by tp 7"):
        fit(monkeypatch, tmp_path, layout={"devices": 7, "tp": 7})
