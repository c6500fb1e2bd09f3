"""Switches of a run: how they are read, and that each changes the prediction in the right direction."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scalewright.plan.predict import Prediction, predict
from scalewright.plan.switches import NAMES, Switches, check_names, read_switches
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec

DOCS = Path(__file__).resolve().parents[2] / "docs" / "planning.md"
EXPERTS = {"devices": 64, "ep": 32, "zero_stage": 1, "global_batch": 512}


def priced(model: str = "qwen3-30b-a3b", options: str = "", precision: str = "bf16", **keys: Any) -> Prediction:
    layout = Layout.parse({**EXPERTS, "precision": precision, **keys})
    switches = dict(part.split("=") for part in options.split(";") if part)
    return predict(
        load_model_spec(model), load_cluster("dgx-h100"), layout, 4096, framework="megatron", options=switches
    )


def seconds(**keys: Any) -> float:
    return priced(**keys).step_time_s


def test_words_are_read_once_and_typed() -> None:
    read = read_switches({"cuda_graphs": "attn+router", "capacity": "1.25", "ep_overlap": "0", "pp": "8"})
    assert read == Switches(cuda_graphs=frozenset({"attn", "router"}), capacity=1.25, ep_overlap=False)
    assert read_switches({"cuda_graphs": "1"}).cuda_graphs == {"layer"}  # a flag, as older tables have it


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dispatcher": "deep"}, "did you mean 'deepep'"),
        ({"capacity": "none"}, "give a number above 0"),
        ({"ep_overlap": "maybe"}, "write ep_overlap=1 or ep_overlap=0"),
        ({"cuda_graphs": "attn+rooter"}, "did you mean 'router'"),
    ],
)
def test_a_bad_value_is_refused_with_what_it_may_be(options: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        read_switches(options)


def test_an_unknown_switch_is_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'compile'"):
        check_names({"compil": "1"})


def test_the_documentation_lists_every_switch() -> None:
    section = DOCS.read_text(encoding="utf-8").split("### Switches")[1].split("\n## ")[0]
    assert set(re.findall(r"`([a-z0-9_]+)`", section)) >= set(NAMES)


def test_graphs_save_launches() -> None:
    none, part, full = (seconds(options=f"cuda_graphs={word}") for word in ("none", "attn+router", "full"))
    assert full < part < none


def test_a_graph_of_mamba_layers_captures_only_these() -> None:
    plain: dict[str, Any] = {"model": "nemotron-h-8b", "ep": 1, "tp": 8}
    none, mamba, layer = (seconds(options=f"cuda_graphs={word}", **plain) for word in ("none", "mamba", "layer"))
    assert layer < mamba < none
    assert seconds(options="cuda_graphs=mamba") == seconds(options="cuda_graphs=none")  # it has no such layer


def test_a_gather_of_all_tokens_sends_more_than_each_to_its_experts() -> None:
    gather, routed = (priced(options=f"dispatcher={word}") for word in ("allgather", "alltoall"))
    assert gather.step_time_s > routed.step_time_s
    assert gather.comm_bytes["ep"] > 2 * routed.comm_bytes["ep"]  # ep 32 ranks' tokens for 8 experts each


def test_capacity_pads_experts() -> None:
    assert seconds(options="moe=drop;capacity=1") == seconds(options="moe=dropless")  # nothing is padded
    assert seconds(options="moe=drop;capacity=2") > 1.05 * seconds(options="moe=drop;capacity=1")


def test_a_dispatcher_that_sends_a_token_to_a_node_once_is_faster_between_nodes() -> None:
    assert seconds(options="dispatcher=deepep") < seconds(options="dispatcher=alltoall")


def test_overlap_hides() -> None:
    assert seconds(options="ep_overlap=1") < seconds()
    dense: dict[str, Any] = {"model": "llama-3.1-8b", "ep": 1}
    assert seconds(options="dp_overlap=0", **dense) > seconds(options="dp_overlap=1", **dense)


def test_one_kernel_spares_permutations_and_activations_a_pass() -> None:
    assert seconds(options="permute_fusion=0") > seconds(options="permute_fusion=1")
    assert seconds(options="fused_experts=1") < seconds()
    assert seconds(options="grouped_gemm=0") > seconds()


def test_products_in_eight_bits_by_part_and_recipe() -> None:
    linear, every = (seconds(precision="fp8", options=x) for x in ("fp8_parts=linear", ""))
    assert every < linear < seconds()
    assert seconds(precision="fp8", options="fp8_recipe=blockwise") > every


def test_experts_slow_down_with_few_rows() -> None:
    """Twice the sequences in a micro-batch: the same work, in products of twice the rows."""
    few, many = (priced(options="cuda_graphs=full", micro_batch=size).breakdown["compute"] for size in (1, 4))
    assert many < few


@pytest.mark.parametrize(("less", "more"), [("moe_act", "moe"), ("layernorm", "layernorm+moe_act")])
def test_recomputed_modules_free_memory_and_take_time(less: str, more: str) -> None:
    from scalewright.plan.predict import predict_rows

    row = {
        "model": "Qwen3-30B-A3B", "framework": "Megatron-LM", "device": "H100-80GB-SXM", "n_devices": 64,
        "tp": 1, "pp": 1, "ep": 32, "seq": 4096, "mbs": 1, "gbs": 512, "sharding": "zero1",
    }  # fmt: skip
    answers = predict_rows([
        {**row, "recompute": "none"},
        *({**row, "recompute": "selective", "options": f"recompute_modules={word}"} for word in (less, more)),
    ])  # fmt: skip
    kept = [answer["memory_gib"]["activations"] for answer in answers]
    taken = [answer["time_breakdown_s"]["recompute"] for answer in answers]
    assert kept[0] > kept[1] > kept[2]
    assert 0 == taken[0] < taken[1] < taken[2]


def test_selective_means_the_modules_that_are_named() -> None:
    options = ("", "recompute_modules=layernorm+moe_act")
    core, named = (priced(recompute="selective", options=words) for words in options)
    assert named.memory_gib["activations"] < core.memory_gib["activations"]


def test_partitioned_activations_are_cut_over_tp_and_gathered_again() -> None:
    """DeepSpeed's `partition_activations`: a kept input is a tp rank's part of it."""
    layout: dict[str, Any] = {"model": "gpt3-175b", "ep": 1, "tp": 8, "sp": False, "pp": 8, "recompute": "full"}
    whole, parts = (priced(options=words, **layout) for words in ("", "partition_activations=1"))
    assert parts.memory_gib["activations"] < 0.5 * whole.memory_gib["activations"]
    assert parts.breakdown["tp_exposed"] > whole.breakdown["tp_exposed"]


def test_layers_on_the_host_free_memory() -> None:
    held = [priced(options=f"offload_layers={n}").memory_gib["activations"] for n in (1, 24, 48)]
    assert held[0] > held[1] > held[2]
