"""Invalid layouts are refused in one line that names both values, and its fix works."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from scalewright.spec.base import parse_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.schedule import KINDS

MODEL = ModelSpec.parse(
    {
        "vocab_size": 128,
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
    }
)
WIDE = MODEL.replace(num_attention_heads=16, num_key_value_heads=16, intermediate_size=224)
SMALL_VOCABULARY = MODEL.replace(vocab_size=3)
MOE = MODEL.replace(moe={"num_experts": 6, "top_k": 2, "moe_intermediate_size": 30, "num_shared_experts": 1})
HYBRID = MODEL.replace(
    layer_pattern=["mamba", "mlp"], mamba={"num_heads": 8, "head_dim": 12, "state_size": 16, "groups": 2}
)

Keys = dict[str, Any]

# (model, seq_len, layout keys, the values that the message names)
CONFLICTS: dict[str, tuple[ModelSpec, int, Keys, tuple[str, ...]]] = {
    "devices": (MODEL, 64, {"devices": 7, "tp": 2}, ("devices 7", "tp 2")),
    "dp_replicate": (MODEL, 64, {"devices": 8, "dp_replicate": 3}, ("dp_replicate 3", "dp 8")),
    "batch": (MODEL, 64, {"devices": 2, "global_batch": 5}, ("global_batch 5", "dp 2")),
    "micro": (MODEL, 64, {"devices": 4, "micro_batch": 2, "global_batch": 12}, ("12", "micro_batch 2")),
    "heads": (MODEL, 60, {"devices": 5, "tp": 5}, ("num_attention_heads 12", "tp 5")),
    "heads, a batch given": (MODEL, 60, {"devices": 5, "tp": 5, "global_batch": 1}, ("heads 12", "tp 5")),
    "heads, sp given": (MODEL, 60, {"devices": 5, "tp": 5, "sp": True}, ("num_attention_heads 12", "tp 5")),
    "kv heads": (MODEL, 60, {"devices": 6, "tp": 6}, ("num_key_value_heads 4", "tp 6")),
    "intermediate": (
        WIDE.replace(intermediate_size=220), 64, {"devices": 8, "tp": 8}, ("intermediate_size 220", "tp 8")
    ),
    "shared": (MOE, 60, {"devices": 4, "tp": 4}, ("intermediate size 30", "tp 4")),
    "vocabulary": (SMALL_VOCABULARY, 64, {"devices": 4, "tp": 4}, ("vocab_size 3", "tp 4")),
    "sp": (MODEL, 63, {"devices": 2, "tp": 2}, ("seq_len 63", "tp 2")),
    "routers": (MOE, 63, {"devices": 2, "tp": 2, "sp": False}, ("seq_len 63", "tp 2")),
    "cp": (MODEL, 100, {"devices": 4, "cp": 4}, ("seq_len 100", "cp 4")),
    "cp and sp": (MODEL, 100, {"devices": 8, "cp": 2, "tp": 4}, ("seq_len 100", "cp 2", "tp 4")),
    "ulysses": (MODEL, 64, {"devices": 8, "cp": 8, "cp_kind": "ulysses"}, ("heads 12", "tp x cp = 8")),
    "layers": (MODEL, 64, {"devices": 8, "pp": 8}, ("pp 8", "6 layers")),
    "layers, a batch given": (MODEL, 64, {"devices": 8, "pp": 8, "global_batch": 1}, ("pp 8", "6 layers")),
    "virtual": (
        MODEL, 64, {"devices": 4, "pp": 4, "schedule": "interleaved"}, ("pp 4 x virtual_stages 2", "6 layers")
    ),
    "v": (MODEL, 64, {"devices": 4, "pp": 4, "schedule": "zbv"}, ("pp 4 x virtual_stages 2", "6 layers")),
    "entries": (MODEL, 64, {"devices": 2, "pp": 2, "stage_layers": [1, 2, 3]}, ("3 entries", "2 stages")),
    "an empty stage": (MODEL, 64, {"devices": 3, "pp": 3, "stage_layers": [3, 0, 3]}, ("stage 1 0", "between")),
    "fewer than none": (MODEL, 64, {"devices": 2, "pp": 2, "stage_layers": [7, -1]}, ("stage 1 -1", "between")),
    "too many by hand": (MODEL, 64, {"devices": 9, "pp": 9, "stage_layers": "0,1x6,0"}, ("pp 9", "6 layers")),
    "sum": (MODEL, 64, {"devices": 2, "pp": 2, "stage_layers": [1, 2]}, ("sums to 3", "6 layers")),
    "one chunk": (
        MODEL, 64, {"devices": 2, "pp": 2, "schedule": "1f1b", "virtual_stages": 2},
        ("schedule 1f1b", "virtual_stages 1", "it is 2"),
    ),
    "chunks": (
        MODEL, 64, {"devices": 2, "pp": 2, "schedule": "interleaved", "virtual_stages": 1},
        ("schedule interleaved", "virtual_stages 2", "it is 1"),
    ),
    "a v has two": (
        MODEL, 64, {"devices": 2, "pp": 2, "schedule": "zbv", "virtual_stages": 3},
        ("schedule zbv", "virtual_stages 2", "it is 3"),
    ),
    "no pipeline": (MODEL, 64, {"schedule": "zbv"}, ("zbv", "pp is 1")),
    "no pipeline, chunks": (MODEL, 64, {"virtual_stages": 2}, ("virtual_stages 2", "pp is 1")),
    "micro-batches": (
        MODEL, 64, {"devices": 2, "pp": 2, "schedule": "dualpipev", "global_batch": 3},
        ("3 micro-batches", "2 x pp 2 = 4"),
    ),
    "odd ranks": (
        MODEL, 64, {"devices": 3, "pp": 3, "schedule": "dualpipe", "global_batch": 6}, ("dualpipe", "pp 3")
    ),
    "odd halves": (
        MODEL, 64, {"devices": 2, "pp": 2, "schedule": "dualpipe", "global_batch": 5}, ("5 is odd",)
    ),
    "planned": (
        MODEL, 64, {"devices": 2, "pp": 2, "schedule": "pipedream", "global_batch": 4},
        ("pipedream", "planned"),
    ),
    "planned, two ways": (
        MODEL, 64, {"devices": 2, "pp": 2, "schedule": "dualpipe", "global_batch": 4}, ("dualpipe", "planned")
    ),
    "recompute": (
        MODEL, 64, {"devices": 2, "pp": 2, "schedule": "zb-h1", "recompute": "full"}, ("zb-h1", "full")
    ),
    "recompute some": (
        MODEL, 64, {"devices": 2, "pp": 2, "schedule": "zbv", "recompute": {"every": 2}},
        ("zbv", "recompute {every: 2}"),
    ),
    "offload": (
        MODEL, 64, {"devices": 2, "zero_stage": 1, "offload": "parameters"},
        ("offload parameters", "zero_stage 3", "it is 1"),
    ),
    "offload all": (
        MODEL, 64, {"zero_stage": 0, "offload": "all"}, ("offload all", "zero_stage 3", "it is 0")
    ),
    "no tp": (MODEL, 64, {"sp": True}, ("sp is true", "tp is 1")),
    "experts": (MOE, 60, {"devices": 4, "ep": 4}, ("num_experts 6", "ep 4")),
    "expert size": (MOE, 64, {"devices": 4, "etp": 4}, ("moe_intermediate_size 30", "etp 4")),
    "no experts": (MODEL, 64, {"devices": 2, "ep": 2}, ("ep 2", "no experts")),
    "expert ranks": (MOE, 64, {"devices": 8, "ep": 3}, ("ep 3", "= 8")),
    "mamba": (HYBRID, 64, {"devices": 4, "tp": 4}, ("mamba.groups 2", "tp 4")),
    "budget": (MODEL, 64, {"recompute": {"budget": 1.5}}, ("budget 1.5", "1")),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFLICTS)
def test_a_conflict_names_both_values_and_a_fix_that_works(name: str) -> None:
    model, seq_len, keys, values = CONFLICTS[name]
    with pytest.raises(UserError) as caught:
        check_layout(Layout.parse(keys), model, seq_len, train=True)
    for value in values:
        assert value in caught.value.what, caught.value
    assert "\n" not in str(caught.value)
    for fix in _fixes(caught.value):
        fixed = {**keys, **fix}
        fixed_len = fixed.pop("seq_len", seq_len)
        check_layout(Layout.parse(fixed), model, fixed_len, train=True)


@pytest.mark.parametrize(
    ("keys", "how"),
    [
        ({"devices": 8, "tp": 8}, "use tp 4"),
        ({"devices": 8, "tp": 8, "global_batch": 1}, "use tp 4 with global_batch 2"),
        ({"devices": 5, "tp": 5}, "use tp 1"),
        ({"devices": 5, "tp": 5, "sp": True}, "use tp 1 with sp false"),
        (
            {"devices": 2, "pp": 2, "schedule": "dualpipev", "recompute": "full", "global_batch": 4},
            "use schedule 1f1b, or recompute none",
        ),
        ({"devices": 2, "pp": 2, "schedule": "pipedream"}, "use schedule 1f1b"),
    ],
)
def test_a_fix_names_no_key_that_was_left_null(keys: Keys, how: str) -> None:
    with pytest.raises(UserError) as caught:
        check_layout(Layout.parse(keys), MODEL, 120, train=True)
    assert caught.value.how == how


def _fixes(error: UserError) -> list[Keys]:
    """`use sp false, or tp 2 with sp true` as [{"sp": False}, {"tp": 2, "sp": True}]."""
    match = re.match(r"(?:use|set) (.*)", error.how)
    assert match, error
    return [
        {key: parse_yaml(value) for key, value in (part.split(" ", 1) for part in re.split(" with | and ", option))}
        for option in match.group(1).split(", or ")
    ]


@pytest.mark.parametrize("seed", range(4))
def test_following_the_fixes_of_any_layout_ends_in_one_that_works(seed: int) -> None:
    dice = random.Random(seed)
    refused = 0
    for _ in range(150):
        model, keys, seq_len = dice.choice([MODEL, WIDE, MOE]), _random_keys(dice), dice.choice([60, 64, 97])
        for turn in range(12):  # as many as there are checks
            try:
                check_layout(Layout.parse(keys), model, seq_len, train=True)
                break
            except UserError as error:
                refused += turn == 0
                keys = {**keys, **_fixes(error)[0]}
                seq_len = keys.pop("seq_len", seq_len)
        else:
            pytest.fail(f"the fixes end in no valid layout: {keys}")
    assert refused > 50


def _random_keys(dice: random.Random) -> Keys:
    keys: Keys = {name: dice.choice([1, 1, 2, 3, 4]) for name in ("tp", "pp", "cp", "dp_replicate")}
    keys["devices"] = keys["tp"] * keys["pp"] * keys["cp"] * dice.choice([1, 2, 3]) + dice.choice([0, 0, 0, 1])
    keys["schedule"] = dice.choice(list(KINDS)) if keys["pp"] > 1 else "1f1b"
    keys["zero_stage"] = dice.choice([0, 1, 2, 3])
    sometimes: dict[str, list[Any]] = {
        "global_batch": [8, 24, 48],
        "virtual_stages": [1, 2, 3],
        "recompute": ["full", {"every": 2}],
        "offload": ["parameters", "activations"],
        "stage_layers": [[3, 3], [2, 2, 1]],
        "sp": [True, False],
        "ep": [2, 4],
    }
    for name, values in sometimes.items():
        if dice.random() < 0.2:
            keys[name] = dice.choice(values)
    return keys


def test_odd_layouts_are_legal() -> None:
    for keys in (
        {"devices": 4, "pp": 4, "global_batch": 1},  # 6 layers on 4 stages, one micro-batch
        {"devices": 4, "dp_replicate": 4, "zero_stage": 0},  # replicas without shards: plain replication
        {"devices": 2, "pp": 2, "schedule": "zb-h1", "recompute": "none"},
        {"devices": 12, "tp": 12},  # KV heads are copied
    ):
        check_layout(Layout.parse(keys), MODEL, 60, train=True)


def test_too_many_virtual_stages_name_the_most_that_fit() -> None:
    keys = {"devices": 2, "pp": 2, "virtual_stages": 4, "global_batch": 8}
    with pytest.raises(UserError, match=r"or schedule interleaved with virtual_stages 3$"):
        check_layout(Layout.parse(keys), MODEL, 64)  # 1f1b: none was given
    with pytest.raises(UserError, match="or virtual_stages 3"):
        check_layout(Layout.parse({**keys, "schedule": "interleaved"}), MODEL, 64)


def test_schedules_that_are_only_planned_pass_unless_trained() -> None:
    for kind in KINDS:
        layout = Layout.parse({"devices": 2, "pp": 2, "schedule": kind, "global_batch": 4})
        assert (layout.virtual_stages == 2) == KINDS[kind].chunked
        check_layout(layout, MODEL)
    recomputed = {"devices": 2, "pp": 2, "schedule": "zbv", "recompute": "full"}
    check_layout(Layout.parse(recomputed), MODEL)
    with pytest.raises(UserError, match="recompute full"):
        check_layout(Layout.parse(recomputed), MODEL, train=True)


def test_an_end_may_hold_the_embedding_or_the_head_alone() -> None:
    for stages in ([0, 1, 1, 1, 1, 1, 1, 0], [0, 2, 2, 2], [2, 2, 2, 0], [0, 6], [6, 0], "0,1x6,0", "0,6x1,0"):
        many = 8 if isinstance(stages, str) else len(stages)
        keys = {"devices": many, "pp": many, "stage_layers": stages, "global_batch": 8}
        check_layout(Layout.parse(keys), MODEL, 64)


def test_as_many_stages_as_layers_and_ends_are_advised_by_hand() -> None:
    layout = Layout.parse({"devices": 4, "pp": 4, "schedule": "interleaved", "global_batch": 8})
    with pytest.raises(UserError, match="6 layers") as error:
        check_layout(layout, MODEL, 64)
    assert error.value.how.startswith("use stage_layers 0,1x6,0")
    with pytest.raises(UserError) as error:
        Layout.parse({"devices": 4, "pp": 4, "stage_layers": "0,1y6"})
    assert "'0,1y6'" in error.value.what
    assert "0,1x126,0" in error.value.how


def test_two_ways_to_the_same_layout_are_advised_once() -> None:
    layout = Layout.parse({"devices": 2, "pp": 2, "schedule": "1f1b", "virtual_stages": 4})
    with pytest.raises(UserError) as error:
        check_layout(layout, MODEL, 64)
    advice = error.value.how.removeprefix("use ").split(", or ")
    assert len(advice) == len(set(advice)), error.value.how
