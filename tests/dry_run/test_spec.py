"""Dry runs against `spec/` and the planner: bytes held and bytes sent must be the same to the byte.

    parameters, gradients, optimizer     spec/memory.py: state_bytes          <->  live tensors
    every collective of every axis       spec/volumes.py: transfers        <->  what passed
    bytes of the busiest rank by axis    plan/cost/volumes.py, as priced      <->  what passed
    FLOPs                                spec/operators.py                        <->  what ran

`control` (the loss's and the norm's scalars) is traffic that the spec leaves out. Everything else is in, and
there is no tolerance; the planner's floats are averages over blocks, right to the last bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.few_logits import few_logits
from tests.rank_states import state_bytes, unit_bytes
from tests.rank_traffic import step_traffic

from scalewright.dry_run.dry_run import Group, dry_run
from scalewright.plan.predict import predict
from scalewright.spec.flops import forward_flops, recompute_flops
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.memory import is_sharded
from scalewright.spec.model import ModelSpec

SEQ_LEN = 16
CLUSTER = load_cluster({"like": "dgx-h100", "nodes": 64})
AXES = {
    "dp": ("dp_shard", "dp_replicate"), "tp": ("tp", "kv", "etp"), "cp": ("cp",), "ep": ("ep",),
    "pp": ("pp", "tie"),
}  # fmt: skip
SMALL: dict[str, Any] = {
    "vocab_size": 67,  # a prime: every cut of it is uneven
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,  # fewer than tp 4: copies
    "context": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "gpt, tied, biases": {
        **SMALL, "num_key_value_heads": 4, "norm_type": "layernorm", "mlp_type": "gelu", "qkv_bias": True,
        "o_bias": True, "mlp_bias": True, "positions": "learned", "learned_positions": 64,
        "tie_word_embeddings": True,
    },
    "gemma, tied, norms on both sides": {
        **SMALL, "norm_position": "both", "qk_norm": "head", "mlp_type": "geglu", "num_hidden_layers": 5,
        "logit_softcap": 30.0, "sliding_window": 8, "window_pattern": [True, False],
        "tie_word_embeddings": True,
    },
    "olmo, full norms, parallel": {**SMALL, "qk_norm": "full", "residual": "parallel", "qkv_bias": True},
}  # fmt: skip
# Prediction modules: a stage's lookups and heads more, a copy of the embedding, a root with the head in it.
PREDICTING = {**SMALL, "mtp_layers": 2}
# Parts that one layout or two of these show: sinks, and windows side by side with layers without positions.
PARTS: dict[str, dict[str, Any]] = {
    "sinks": {
        **SMALL, "attention_sinks": True, "sliding_window": 8, "window_pattern": [True, False],
        "qkv_bias": True, "o_bias": True, "mlp_bias": True, "mlp_type": "swiglu_clamped",
    },
    "windows side by side": {
        **SMALL, "sliding_window": 8, "window_chunks": True, "window_pattern": [True, False], "qk_norm": "l2",
        "rope_every_not": 2, "attention_temperature": {"floor_scale": 4},
    },
}  # fmt: skip
LAYOUTS: list[dict[str, Any]] = [
    {"devices": 1, "global_batch": 2},
    {"devices": 4, "zero_stage": 0, "global_batch": 12},
    {"devices": 4, "zero_stage": 0, "precision": "bf16"},
    {"devices": 4, "zero_stage": 1, "global_batch": 16},
    {"devices": 4, "zero_stage": 2, "global_batch": 16},
    {"devices": 4, "zero_stage": 2, "precision": "bf16", "global_batch": 16},
    {"devices": 4, "zero_stage": 0, "offload": "optimizer", "precision": "bf16"},
    {"devices": 16, "dp_replicate": 4, "zero_stage": 1, "global_batch": 32},
    {"devices": 4, "zero_stage": 3, "offload": "all", "global_batch": 8},
    {"devices": 64, "zero_stage": 3, "precision": "bf16"},
    {"devices": 4, "tp": 4, "sp": False, "precision": "bf16"},
    {"devices": 8, "tp": 2, "zero_stage": 1, "recompute": {"every": 2}},
    {"devices": 4, "cp": 4, "zero_stage": 3, "precision": "bf16"},
    {"devices": 4, "cp": 2, "cp_kind": "allgather", "zero_stage": 1, "recompute": {"every": 2}},
    {"devices": 4, "cp": 2, "tp": 2, "cp_kind": "ulysses", "global_batch": 2},
    {"devices": 32, "pp": 2, "cp": 2, "tp": 2, "dp_replicate": 2, "schedule": "zbv", "global_batch": 32},
    {"devices": 2, "pp": 2, "schedule": "gpipe", "global_batch": 8},
    {"devices": 8, "pp": 2, "schedule": "interleaved", "zero_stage": 2, "global_batch": 32},
    {"devices": 8, "pp": 2, "zero_stage": 3, "global_batch": 32},
    {"devices": 8, "pp": 2, "schedule": "zb-h1", "zero_stage": 3, "global_batch": 32},
    {"devices": 512, "pp": 4, "tp": 4, "dp_replicate": 2, "zero_stage": 3, "global_batch": 256},
    {"devices": 16, "pp": 2, "tp": 2, "dp_replicate": 2, "zero_stage": 3, "global_batch": 32},
    {"devices": 8, "pp": 2, "schedule": "zbv", "zero_stage": 1, "global_batch": 32},
    {"devices": 8, "pp": 2, "schedule": "dualpipev", "zero_stage": 3, "global_batch": 16},
]
PREDICTED: list[dict[str, Any]] = [
    {"devices": 4, "zero_stage": 0, "global_batch": 12},
    {"devices": 4, "zero_stage": 2, "precision": "bf16", "global_batch": 16},
    {"devices": 4, "zero_stage": 3, "global_batch": 8},
    {"devices": 4, "tp": 4, "sp": False, "precision": "bf16"},
    {"devices": 8, "tp": 2, "zero_stage": 1, "recompute": {"every": 2}},
    {"devices": 4, "cp": 2, "tp": 2, "cp_kind": "ulysses", "global_batch": 2},
    {"devices": 8, "pp": 2, "zero_stage": 3, "global_batch": 32, "recompute": "full"},
    {"devices": 8, "pp": 2, "schedule": "zb-h1", "zero_stage": 2, "global_batch": 32},
    {"devices": 8, "pp": 2, "tp": 2, "schedule": "interleaved", "zero_stage": 1, "global_batch": 16},
    {"devices": 8, "pp": 2, "schedule": "zbv", "zero_stage": 3, "global_batch": 32},
]
# These also with rows of several documents, which is what users get, on every stage.
MASKED: list[dict[str, Any]] = [
    {"devices": 2, "tp": 2},
    {"devices": 16, "tp": 4, "global_batch": 8, "recompute": "full"},
    {"devices": 2, "cp": 2},
    {"devices": 2, "cp": 2, "cp_kind": "ulysses"},
    {"devices": 8, "pp": 4, "zero_stage": 0, "global_batch": 24},
    {"devices": 4, "zero_stage": 3, "global_batch": 16},
    {"devices": 16, "dp_replicate": 4, "zero_stage": 3},
    {"devices": 32, "pp": 2, "tp": 4, "zero_stage": 3, "precision": "bf16", "global_batch": 32},
    {"devices": 8, "pp": 2, "schedule": "dualpipev", "tp": 2, "global_batch": 16},
]


DEFAULT = {7: 1, 14: 2, 23: 3}  # layout -> model: replicas; context and tensor parallelism; a V of both ends


def cases() -> Iterator[Any]:
    """Every layout with every model; by default three layouts with one of them each, the others are slow.

    Of those that are masked every second one is tried by default; without the mask they are slow. The order of the
    lists gives the largest layouts to the smallest models.
    """
    for place, keys in enumerate(LAYOUTS + MASKED):
        often = keys in MASKED
        turn = place / 2 % len(MODELS) if often else DEFAULT.get(place)
        for index, name in enumerate(MODELS):
            for masked in (False, True) if often else (False,):
                default = turn == index and masked == often
                title = f"{name} masked {keys}" if masked else f"{name} {keys}"
                yield pytest.param(name, keys, masked, id=title, marks=[] if default else [pytest.mark.slow])
    for index, name in enumerate(PARTS):
        for turn, keys in enumerate(({"devices": 4, "tp": 4, "sp": False}, {"devices": 4, "cp": 2, "zero_stage": 3})):
            marks = [] if turn == index else [pytest.mark.slow]
            yield pytest.param(name, keys, False, id=f"{name} {keys}", marks=marks)


def play(name: str, keys: dict[str, Any], *, masked: bool) -> tuple[ModelSpec, Layout, tuple[Group, ...]]:
    """The model, the layout and the groups of their dry run; `masked`: rows hold several documents."""
    keys_of = {**MODELS, **MIXTURES, **PARTS, "predicting": PREDICTING}
    model, layout = ModelSpec.parse(keys_of[name]), Layout.parse({"precision": "fp32", **keys})
    data = {"train": "nowhere", "seq_len": SEQ_LEN, "document_mask": masked}
    return model, layout, dry_run({"model": model.dump(), "layout": layout.dump(), "data": data}).groups


MOE: dict[str, Any] = {"num_experts": 8, "top_k": 2, "moe_intermediate_size": 20}
MIXTURES: dict[str, dict[str, Any]] = {
    "mixture": {**SMALL, "moe": MOE},
    "mixture, shared, biases": {**SMALL, "mlp_bias": True, "moe": {**MOE, "num_shared_experts": 2}},
    "mixture, full norms": {**SMALL, "qk_norm": "full", "moe": MOE},
}
# Tokens are spread evenly: what a rank sends is to the byte what the formulas have.
MIXTURE_LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("mixture", {"devices": 4, "ep": 4, "zero_stage": 3, "global_batch": 8}),
    ("mixture", {"devices": 8, "ep": 2, "dp_replicate": 2, "zero_stage": 1, "precision": "bf16"}),
    ("mixture", {"devices": 8, "ep": 4, "zero_stage": 0, "recompute": {"every": 2}}),
    ("mixture", {"devices": 8, "pp": 2, "ep": 4, "schedule": "zbv", "zero_stage": 3, "global_batch": 16}),
    ("mixture", {"devices": 2, "tp": 2, "sp": False, "zero_stage": 0}),
    ("mixture, shared, biases", {"devices": 4, "tp": 2, "etp": 2, "zero_stage": 3, "recompute": "full"}),
    ("mixture, shared, biases", {"devices": 16, "tp": 2, "cp": 2, "ep": 4, "etp": 2, "pp": 2, "sp": False}),
    ("mixture, shared, biases", {"devices": 8, "ep": 8, "zero_stage": 3, "recompute": "full"}),
    ("mixture, shared, biases", {"devices": 4, "ep": 4, "tp": 2, "recompute": "selective"}),
    ("mixture, full norms", {"devices": 8, "tp": 2, "ep": 2, "zero_stage": 2, "global_batch": 8}),
]


@pytest.mark.parametrize(("name", "keys", "masked"), list(cases()))
def test_bytes_held_and_sent(name: str, keys: dict[str, Any], masked: bool) -> None:
    compare(*play(name, keys, masked=masked))


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(keys, id=str(keys), marks=[] if turn == 9 else [pytest.mark.slow])
        for turn, keys in enumerate(PREDICTED)
    ],
)
def test_bytes_with_prediction_modules(keys: dict[str, Any]) -> None:
    compare(*play("predicting", keys, masked=False))


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        pytest.param(*case, id=f"{case[0]} {case[1]}", marks=[] if turn == 6 else [pytest.mark.slow])
        for turn, case in enumerate(MIXTURE_LAYOUTS)
    ],
)
def test_bytes_of_mixtures(name: str, keys: dict[str, Any]) -> None:
    compare(*play(name, keys, masked=False))


def by_axis(group: Group) -> dict[tuple[str, str], tuple[int, int]]:
    """Calls and bytes of each kind; experts go over other groups of the same axis."""
    sent: dict[tuple[str, str], tuple[int, int]] = {}
    for (axis, kind, _), (count, size) in group.step.traffic.items():
        if axis != "control":
            before = sent.get((axis, kind), (0, 0))
            sent[axis, kind] = before[0] + count, before[1] + size
    return sent


def compare(model: ModelSpec, layout: Layout, groups: tuple[Group, ...]) -> None:
    """Every group of ranks with the spec, the busiest with the planner."""
    assert sorted(rank for group in groups for rank in group.ranks) == list(range(layout.devices))
    bf16 = layout.precision == "bf16"
    for group in groups:
        sent = by_axis(group)
        for rank in (group.ranks[0], group.ranks[-1]):
            expected = step_traffic(model, layout, SEQ_LEN, rank, bf16=bf16)
            assert sent == {key: (traffic.count, traffic.bytes) for key, traffic in expected.items()}
            kept = state_bytes(model, layout, rank, bf16=bf16)
            held = group.step.most
            assert held["parameters"] == kept.parameters
            # ZeRO-1 sums micro-batches whole. In a pipeline embedding and head wait for one another's part, besides.
            several = layout.accumulation > 1 and is_sharded(layout)
            sums = several and layout.zero_stage == 1
            gradients = state_bytes(model, layout.replace(zero_stage=0), rank, bf16=bf16).gradients if sums else 0
            most = 0 if layout.pp == 1 else 4 * model.vocab_size * model.hidden_size // layout.tp
            if several and (sums or layout.pp > 1 or layout.dp_replicate > 1):
                # The last micro-batch's is there before the sum of the others is let go of, in each stage's backward.
                most += unit_bytes(model, layout, rank) * (layout.virtual_stages or 1)
            assert 0 <= held["gradients"] - max(gradients, kept.gradients) <= most
            assert held["optimizer"] == kept.optimizer
    planned = predict(model, CLUSTER, layout, SEQ_LEN).comm_bytes
    for axis, parts in AXES.items():
        most = max(sum(size for (on, _, _), (_, size) in group.step.traffic.items() if on in parts) for group in groups)
        assert planned[axis] == pytest.approx(most, rel=1e-12), axis


@pytest.mark.parametrize("name", ["llama", "gemma, tied, norms on both sides"])  # a head of its own, a tied one
def test_every_chunk_of_a_loss_sends_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two numbers a token in every gather, with the head in chunks as with whole logits."""
    few_logits(34 * 5, put=monkeypatch.setattr)
    keys = {"devices": 2, "tp": 2, "micro_batch": 2, "global_batch": 4}
    model, layout, groups = play(name, keys, masked=False)
    for group in groups:
        sent = {(a, k): value for (a, k, _), value in group.step.traffic.items() if a != "control"}
        expected = step_traffic(model, layout, SEQ_LEN, group.ranks[0], bf16=False)
        assert sent == {key: (traffic.count, traffic.bytes) for key, traffic in expected.items()}
        assert expected["tp", "all_gather"].count > 2 * 7  # chunks of 32 tokens, twice


@pytest.mark.parametrize(
    ("name", "recompute", "blocks", "masked"),
    [
        ("predicting", "none", 0, True),
        ("llama", "none", 0, True),
        pytest.param("llama", {"every": 2}, 2, False, marks=pytest.mark.slow),
        ("gpt, tied, biases", "full", 4, False),
        pytest.param("sinks", "none", 0, False, marks=pytest.mark.slow),
        pytest.param("windows side by side", "none", 0, True, marks=pytest.mark.slow),
    ],
)
def test_flops(name: str, recompute: Any, blocks: int, masked: bool) -> None:
    keys = {"devices": 2, "global_batch": 8, "recompute": recompute}
    model, layout, groups = play(name, keys, masked=masked)
    forward = forward_flops(model, SEQ_LEN, causal=False, mtp=True)
    again = recompute_flops(model, layout, SEQ_LEN, causal=False)
    # torch's checkpoint stops when it has the last tensor that the backward needs: `down` doesn't run again
    again -= blocks * 2 * SEQ_LEN * model.intermediate_size * model.hidden_size
    assert groups[0].step.flops == 4 * (3 * forward + again)


def test_flops_of_all_stages_and_parts_together() -> None:
    model, _, groups = play("llama", {"devices": 4, "pp": 2, "tp": 2, "global_batch": 6}, masked=False)
    forward = forward_flops(model, SEQ_LEN, causal=False)
    padded = 2 * SEQ_LEN * model.hidden_size  # 67 columns of the head are 2 x 34
    assert sum(len(group.ranks) * group.step.flops for group in groups) == 6 * 3 * (forward + padded)
