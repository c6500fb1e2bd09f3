"""This package's own trainer: what a rank holds, and what it sends, is the spec's, to the byte."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rank_states import state_bytes
from tests.rank_traffic import step_traffic

from scalewright.plan.cost.memory import GIB
from scalewright.plan.predict import predict, predict_table
from scalewright.plan.request import from_layout
from scalewright.plan.stages import stages
from scalewright.spec.grid import make_grid
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec

CLUSTER = load_cluster({"like": "dgx-h100", "nodes": 64})
SEQ_LEN = 1024
MODELS = {
    "llama-3.2-1b": load_model_spec("llama-3.2-1b"),  # tied
    "llama-3.1-8b": load_model_spec("llama-3.1-8b"),
    "gpt2-124m": load_model_spec("gpt2-124m"),  # tied, biases, learned positions, 50257 words
    "gemma-3-1b": load_model_spec("gemma-3-1b"),  # tied, four norms a block, heads' norms, one KV head
}
DENSE = tuple(MODELS)
LAYOUTS: list[dict[str, Any]] = [
    {"devices": 1, "global_batch": 4},
    {"devices": 1, "precision": "fp32"},
    {"devices": 8, "zero_stage": 0, "global_batch": 16},
    {"devices": 8, "zero_stage": 0, "precision": "fp32"},
    {"devices": 8, "zero_stage": 1, "global_batch": 32},
    {"devices": 8, "zero_stage": 2, "global_batch": 32},
    {"devices": 8, "zero_stage": 3, "global_batch": 32},
    {"devices": 24, "zero_stage": 3},  # rows aren't multiples of 24
    {"devices": 32, "dp_replicate": 4, "zero_stage": 3, "global_batch": 64},
    {"devices": 32, "dp_replicate": 2, "zero_stage": 1},
    {"devices": 8, "zero_stage": 3, "recompute": "full"},
    {"devices": 8, "zero_stage": 3, "offload": "all"},
    {"devices": 4, "zero_stage": 0, "offload": "optimizer"},
    {"devices": 4, "tp": 4, "zero_stage": 0},
    {"devices": 4, "tp": 2, "sp": False, "zero_stage": 3, "recompute": {"every": 2}},
    {"devices": 16, "tp": 4, "zero_stage": 3, "global_batch": 16},
    {"devices": 4, "cp": 2, "zero_stage": 3, "global_batch": 8},
    {"devices": 4, "cp": 4, "cp_kind": "allgather", "zero_stage": 0, "recompute": "full"},
    {"devices": 8, "cp": 2, "tp": 2, "cp_kind": "ulysses", "recompute": {"every": 2}, "global_batch": 4},
    {"devices": 16, "pp": 2, "cp": 4, "tp": 2, "zero_stage": 1, "global_batch": 8},
    {"devices": 4, "pp": 4, "zero_stage": 0, "global_batch": 8},
    {"devices": 8, "pp": 2, "zero_stage": 3, "global_batch": 32},
    {"devices": 8, "pp": 4, "schedule": "gpipe", "zero_stage": 1, "global_batch": 16},
    {"devices": 8, "pp": 2, "schedule": "interleaved", "zero_stage": 2, "global_batch": 32},
    {"devices": 8, "pp": 4, "schedule": "zb-h1", "zero_stage": 3, "global_batch": 32},
    {"devices": 8, "pp": 2, "schedule": "zbv", "zero_stage": 3, "global_batch": 32},
    {"devices": 16, "pp": 4, "schedule": "dualpipev", "tp": 2, "zero_stage": 1, "global_batch": 32},
    {"devices": 8, "pp": 2, "schedule": "dualpipev", "zero_stage": 3, "global_batch": 16},
    {"devices": 32, "pp": 2, "tp": 4, "dp_replicate": 2, "zero_stage": 3, "global_batch": 32},
]
# All of their blocks have experts: an average one is each. Sixteen experts a rank are padded for FSDP's 24.
MIXTURES: list[tuple[str, dict[str, Any]]] = [
    ("mixtral-8x7b", {"devices": 8, "ep": 8, "zero_stage": 3, "global_batch": 16}),
    ("mixtral-8x7b", {"devices": 16, "tp": 2, "etp": 2, "ep": 4, "zero_stage": 1, "global_batch": 16}),
    ("mixtral-8x7b", {"devices": 8, "tp": 4, "sp": False, "zero_stage": 0, "recompute": "full"}),
    ("mixtral-8x7b", {"devices": 16, "pp": 4, "ep": 2, "schedule": "zb-h1", "zero_stage": 3, "global_batch": 32}),
    ("qwen3-30b-a3b", {"devices": 24, "ep": 8, "dp_replicate": 3, "zero_stage": 0, "recompute": "full"}),
    ("qwen3-30b-a3b", {"devices": 192, "ep": 8, "zero_stage": 3, "recompute": {"every": 2}}),
]
MODELS |= {name: load_model_spec(name) for name in ("mixtral-8x7b", "qwen3-30b-a3b")}
CASES = [
    pytest.param(name, keys, id=f"{name} {keys}")
    for name, keys in [*((n, k) for n in DENSE for k in LAYOUTS), *MIXTURES]
]


def parse(name: str, keys: dict[str, Any]) -> tuple[ModelSpec, Layout]:
    model, layout = MODELS[name], Layout.parse({"precision": "bf16", **keys})
    if layout.tp > 1 and model.num_attention_heads % layout.tp:
        pytest.skip("heads that tp doesn't divide")
    return model, layout


@pytest.mark.parametrize(("name", "keys"), CASES)
def test_states_are_the_specs_on_every_pipeline_rank(name: str, keys: dict[str, Any]) -> None:
    model, layout = parse(name, keys)
    found = predict(model, CLUSTER, layout, SEQ_LEN)
    low = layout.precision == "bf16"
    for stage in stages(found):
        rank = next(r for r in range(layout.devices) if make_grid(layout).coords(r)["pp"] == stage["rank"])
        held = state_bytes(model, layout, rank, bf16=low)
        memory = {kind: value * GIB for kind, value in stage["memory_gib"].items()}
        # sums of integers in floats, through averages over blocks: the last bits alone
        assert memory["parameters"] == pytest.approx(held.parameters, rel=1e-12)
        assert memory["optimizer"] == pytest.approx(held.optimizer, rel=1e-12)
        if layout.zero_stage == 0 and low:  # elsewhere they come and go: test_own_memory.py
            assert memory["gradients"] == pytest.approx(held.gradients, rel=1e-12)


AXES = {
    "dp": ("dp_shard", "dp_replicate"),
    "tp": ("tp", "etp", "kv"),
    "cp": ("cp",),
    "ep": ("ep",),
    "pp": ("pp", "tie"),
}


@pytest.mark.parametrize(("name", "keys"), CASES)
def test_traffic_is_the_specs(name: str, keys: dict[str, Any]) -> None:
    """Of the busiest rank on each axis; and `step_traffic` is what the trainer's dry run counts."""
    model, layout = parse(name, keys)
    found = predict(model, CLUSTER, layout, SEQ_LEN).comm_bytes
    each = layout.devices // layout.pp
    tables = [step_traffic(model, layout, SEQ_LEN, pp * each) for pp in range(layout.pp)]
    for axis, parts in AXES.items():
        most = max(sum(t.bytes for (on, _), t in table.items() if on in parts) for table in tables)
        assert found[axis] == pytest.approx(most, rel=1e-12), axis


def test_a_table_of_all_says_what_each_says_alone() -> None:
    cases = [(MODELS["llama-3.2-1b"], Layout.parse({"precision": "bf16", **keys})) for keys in LAYOUTS]
    asked = [from_layout(model, CLUSTER, layout, SEQ_LEN) for model, layout in cases]
    asked += [from_layout(model, CLUSTER, layout, SEQ_LEN, "megatron") for model, layout in cases]
    together = predict_table(asked)
    for request, found in zip(asked, together, strict=True):
        alone = predict_table([request])[0]
        assert found.memory_gib == pytest.approx(alone.memory_gib, rel=1e-12)
        assert found.comm_bytes == pytest.approx(alone.comm_bytes, rel=1e-12)
        assert found.breakdown == pytest.approx(alone.breakdown, rel=1e-12)
