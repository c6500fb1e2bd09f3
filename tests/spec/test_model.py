"""Model specs: nulls derived, impossible shapes refused, layers of different kinds distinguished."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec

DIMS: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}


def test_heads_are_derived() -> None:
    spec = ModelSpec.parse(DIMS)
    assert (spec.kv_heads, spec.dim_per_head) == (4, 16)
    assert ModelSpec.parse({**DIMS, "positions": "learned", "context": 32}).learned_positions == 32
    mla = {"kv_lora_rank": 8, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 8}
    assert ModelSpec.parse({**DIMS, "mla": mla}).dim_per_head == 16


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"hidden_size": 65}, "65 is not divisible by num_attention_heads 4"),
        ({"num_key_value_heads": 3}, "use num_key_value_heads"),
        ({"window_pattern": [True]}, "set sliding_window"),
        ({"head_dim": 15}, "use head_dim 16"),
        ({"moe": {"num_experts": 2, "top_k": 3, "moe_intermediate_size": 8}}, "use top_k 2"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"mlp_type": "swigl"}, "swiglu"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, Any], part: str) -> None:
    with pytest.raises(UserError, match=part):
        ModelSpec.parse({**DIMS, **change})


def test_windows_experts_and_rope_by_layer() -> None:
    spec = ModelSpec.parse({**DIMS, "sliding_window": 8, "window_pattern": [True, True, False]})
    assert [spec.window(layer) for layer in range(4)] == [8, 8, None, 8]
    moe = {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 8, "first_k_dense": 1, "every": 2}
    sparse = ModelSpec.parse({**DIMS, "moe": moe})
    assert [sparse.is_moe(layer) for layer in range(4)] == [False, True, False, True]
    assert [ModelSpec.parse({**DIMS, "rope_every_not": 4}).has_rope(layer) for layer in range(4)] == [
        True,
        True,
        True,
        False,
    ]


def test_layers_of_other_kinds() -> None:
    mamba = {"num_heads": 4, "head_dim": 8, "state_size": 16, "groups": 2}
    moe = {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 8, "dense_layers": [3]}
    pattern = ["mamba", "mlp", "attention", "mlp"]
    spec = ModelSpec.parse({**DIMS, "layer_pattern": pattern, "mamba": mamba, "moe": moe})
    assert [spec.parts(layer) for layer in range(5)] == [
        ("mamba", None), (None, "experts"), ("attention", None), (None, "dense"), ("mamba", None),
    ]  # fmt: skip
    assert not spec.is_moe(0)
    assert spec.kind(0) == spec.kind(4) != spec.kind(2)
    with pytest.raises(UserError, match="has mamba layers but mamba is null"):
        ModelSpec.parse({**DIMS, "layer_pattern": pattern})
    with pytest.raises(UserError, match="not divisible by groups 3"):
        ModelSpec.parse({**DIMS, "mamba": {**mamba, "groups": 3}})
    net = {"num_key_heads": 2, "num_value_heads": 3, "key_head_dim": 4, "value_head_dim": 4}
    with pytest.raises(UserError, match="num_value_heads 3 is not divisible by num_key_heads 2"):
        ModelSpec.parse({**DIMS, "deltanet": net})
    with pytest.raises(UserError, match="layer_pattern is empty"):
        ModelSpec.parse({**DIMS, "layer_pattern": []})


def test_a_spec_round_trips_and_is_frozen() -> None:
    spec = ModelSpec.parse({**DIMS, "rope": {"scaling": {"kind": "yarn", "factor": 4.0}}})
    assert ModelSpec.parse(spec.dump()) == spec
    with pytest.raises(Exception, match="frozen"):
        spec.hidden_size = 128  # type: ignore[misc]
