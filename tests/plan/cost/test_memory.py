"""Memory: micro-batches under way as the schedules say, shares as ZeRO says, kinds of numbers, its band."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.plan.cost.activations import under_way
from scalewright.plan.cost.memory import kind_of, risk
from scalewright.plan.cost.table import table
from scalewright.plan.explain import smallest_fix
from scalewright.plan.fitting.runs import MEASURED, read_table, runs_of
from scalewright.plan.fitting.score import memory_of_kind
from scalewright.plan.frameworks import find_framework
from scalewright.plan.predict import Prediction, predict, predict_table, price, together
from scalewright.plan.request import from_layout
from scalewright.plan.rows.rows import request_of
from scalewright.plan.stages import stages
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec
from scalewright.spec.question import Question
from scalewright.spec.run import RunSpec
from scalewright.spec.schedule import peak_activations, schedule
from scalewright.spec.step_parts import RISK_TERMS
from scalewright.spec.tensors import count

MODEL, CLUSTER = load_model_spec("llama-3.1-8b"), load_cluster("dgx-h100")


@pytest.mark.parametrize(
    ("kind", "chunks"),
    [
        ("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 4), ("zb-h1", 1),
        ("zb-interleaved", 2), ("zb-interleaved", 3), ("zbv", 2), ("dualpipev", 2), ("dualpipe", 2),
        ("pipedream", 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("micros", [8, 12, 32])
def test_under_way_is_what_the_schedule_holds(kind: str, chunks: int, micros: int) -> None:
    ranks = 4
    layout = Layout(
        devices=ranks, pp=ranks, schedule=kind, virtual_stages=chunks, micro_batch=1, global_batch=micros, zero_stage=0
    )
    rows = table([from_layout(MODEL, CLUSTER, layout, 2048, "megatron")])
    plan = schedule(kind, ranks, chunks, micros)
    # in whole ranks' worth: dualpipe's two stages are two ranks', and each has half of the micro-batches
    held = np.array(peak_activations(plan)) / (1 if kind == "dualpipe" else chunks)
    assert [under_way(rows, np.array([float(rank)]))[0] for rank in range(ranks)] == pytest.approx(held)


KEYS = {"devices": 8, "micro_batch": 1, "global_batch": 8}


def run(framework: str = "megatron", **changes: object) -> Prediction:
    return predict(MODEL, CLUSTER, Layout.parse({**KEYS, **changes}), 2048, framework=framework)


def test_zero_shares_states_among_ranks() -> None:
    none, one, two, three = (run(zero_stage=stage).memory_gib for stage in (0, 1, 2, 3))
    assert one["optimizer"] == pytest.approx(none["optimizer"] / 8)
    assert two["gradients"] == pytest.approx(one["gradients"] / 8)
    assert three["parameters"] == pytest.approx(two["parameters"] / 8)
    assert none["peak"] > one["peak"] > two["peak"]


def test_recomputation_and_offload_save_memory() -> None:
    assert run(recompute="full").memory_gib["activations"] < 0.5 * run().memory_gib["activations"]
    assert run(offload="optimizer", zero_stage=1).memory_gib["optimizer"] == 0
    assert not run(zero_stage=0).fits  # 8 billion x 18 bytes
    assert run(zero_stage=3, recompute="full").fits


@pytest.mark.parametrize("trainer", ["deepspeed", "huggingface", "megatron-deepspeed", "torchtitan", "scalewright"])
def test_offloaded_parameters_take_gradients_and_states_along(trainer: str) -> None:
    here = run(trainer, zero_stage=3, recompute="full")
    away = run(trainer, zero_stage=3, recompute="full", offload="parameters")
    held = {kind: away.memory_gib[kind] for kind in ("parameters", "optimizer")}
    assert held == {"parameters": 0, "optimizer": 0}
    assert away.step_time_s > here.step_time_s
    assert away.memory_gib["gradients"] < 0.5 * here.memory_gib["gradients"]
    assert away.host_gib[0] > 0 == here.host_gib[0]
    states = run(trainer, zero_stage=3, recompute="full", offload="optimizer")
    assert away.host_gib[0] > states.host_gib[0] > 0
    assert states.memory_gib["parameters"] > 0


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen2.5-32b", "llama-3.1-70b"])
@pytest.mark.parametrize(("offload", "bytes_each"), [("parameters", 18), ("optimizer", 16)])
def test_a_hosts_memory_is_what_deepspeed_estimates(name: str, offload: str, bytes_each: int) -> None:
    """estimate_zero3_model_states_mem_needs of DeepSpeed 0.19.8 (runtime/zero/stage3.py): bytes · 1.5 a node."""
    model = load_model_spec(name)
    layout = Layout.parse({**KEYS, "zero_stage": 3, "recompute": "full", "offload": offload})
    answer = predict(model, CLUSTER, layout, 2048, framework="huggingface")
    assert 8 * answer.host_gib[0] * 2**30 == pytest.approx(1.5 * bytes_each * count(model).total, rel=1e-3)


def test_gradients_stay_where_states_alone_leave() -> None:
    assert run("megatron", offload="optimizer").memory_gib["gradients"] > 0  # HybridDeviceOptimizer
    assert run("deepspeed", zero_stage=2, offload="optimizer").memory_gib["gradients"] == 0  # ZeRO-Offload
    assert run("deepspeed", zero_stage=1, offload="optimizer").memory_gib["gradients"] > 0


def test_a_host_that_is_too_small_is_the_reason() -> None:
    need = run("deepspeed", zero_stage=3, recompute="full", offload="parameters").host_gib[0]
    for memory, fits in ((8 * need * 2**30 * 1.01, True), (8 * need * 2**30 * 0.99, False)):
        cluster = load_cluster({"like": "dgx-h100", "host_memory_bytes": memory})
        layout = Layout.parse({**KEYS, "zero_stage": 3, "recompute": "full", "offload": "parameters"})
        answer = predict(MODEL, cluster, layout, 2048, framework="deepspeed")
        assert (answer.fits, answer.risk == "no") == (fits, not fits)
        assert answer.memory_gib["peak"] < answer.usable_gib
        assert together([smallest_fix(answer)]) == [None]
        assert not any("host" in text for text in answer.dump()["assumed"])


def test_schedules_that_keep_several_weights() -> None:
    sizes = {"devices": 4, "pp": 4, "global_batch": 16, "zero_stage": 0}
    one = run(**sizes).memory_gib["parameters"]
    assert run(**sizes, schedule="pipedream").memory_gib["parameters"] == pytest.approx(4 * one)
    # two stages on every rank: the first and the last one on one
    both = [stage["memory_gib"]["parameters"] for stage in stages(run(**sizes))]
    twice = run(**sizes, schedule="dualpipe").memory_gib["parameters"]
    assert twice == pytest.approx(both[0] + both[-1])


def test_each_kind_holds_more_than_the_one_before() -> None:
    keys = predict(MODEL, load_cluster("dgx-h100"), Layout(devices=64, zero_stage=3), 8192).dump()
    assert keys["memory_kind"] == "allocated"
    assert keys["memory_gib"]["peak"] < keys["memory_reserved_gib"] < keys["memory_smi_gib"]
    assert keys["memory_smi_gib"] < 1.1 * keys["memory_gib"]["peak"] + 2.0  # context, and two groups' buffers


def test_groups_of_ranks_hold_nccls_buffers() -> None:
    def beyond(**changes: int) -> float:
        layout = Layout.parse({"devices": 64, "zero_stage": 1, **changes})
        keys = predict(MODEL, load_cluster("dgx-h100"), layout, 8192).dump()
        return float(keys["memory_smi_gib"] - keys["memory_reserved_gib"])

    assert beyond(tp=8, pp=2) == pytest.approx(beyond() + 2 * 0.2)


def test_a_tpu_has_one_number() -> None:
    keys = predict(MODEL, load_cluster("tpu-v5p"), Layout(devices=64, zero_stage=3), 8192).dump()
    assert keys["memory_gib"]["peak"] == keys["memory_reserved_gib"] == keys["memory_smi_gib"]


@pytest.mark.parametrize(
    ("notes", "kind"),
    [
        ("Mem = max nvidia-smi-style GB on first stage", "smi"),
        ("memory: Primus prints hip mem usage of the device", "smi"),
        ("max reserved 61 GB", "reserved"),
        ("max allocated memory", "allocated"),
        ("GPU memory, allocated or reserved not stated", "allocated"),
    ],
)
def test_a_rows_notes_name_its_kind(notes: str, kind: str) -> None:
    assert kind_of(notes) == kind


def test_risk_follows_from_the_band() -> None:
    assert [risk(usable, 50, 60, 70) for usable in (71, 65, 55, 49)] == list(RISK_TERMS)
    table = predict_table([runs_of(read_table(MEASURED)[::60]).requests[0]])
    held = table.outcome.memory
    assert bool(held.low[0] < held.peak[0] < held.high[0])


def test_spreads_are_those_of_the_measured_peaks() -> None:
    runs = runs_of(read_table(MEASURED))
    error = np.log(runs.memory / memory_of_kind(runs, predict_table(runs.requests)))
    for name in ("nanotron", "megatron", "megatron-deepspeed", "internevo"):
        of_it = np.array([request.framework.name == name for request in runs.requests])
        at = np.isfinite(error) & ~runs.apart & of_it
        spread = float(np.sqrt(np.mean(error[at] ** 2)))
        assert find_framework(name).memory_spread == pytest.approx(spread, abs=0.01), name
        within = (error[at] > -1.2816 * spread) & (error[at] < 1.2816 * spread)
        assert within.mean() > 0.7
    assert find_framework("torchtitan").memory_spread > 0.13, "never measured: wider than most that were"


@pytest.mark.parametrize(
    ("reported", "within", "changes"),
    [
        (82.4, 0.03, {"n_devices": 8, "options": ""}),
        (77.0, 0.03, {"n_devices": 8}),
        (67.0, 0.03, {"n_devices": 128, "options": ""}),
        (62.0, 0.03, {"n_devices": 128}),
        (83.9, 0.04, {"n_devices": 8, "seq": 32768, "mbs": 1, "recompute": "full"}),
        (84.5, 0.04, {"n_devices": 8, "cp": 8, "seq": 262144, "mbs": 1, "recompute": "full"}),
        (71.9, 0.07, {"model": "Llama-3.1-70B", "n_devices": 256, "tp": 8, "mbs": 16, "recompute": "full"}),
        (67.6, 0.07, {"model": "Llama-3.1-70B", "n_devices": 256, "tp": 8, "mbs": 16, "recompute": "full",
                      "options": "compile=1;async_tp=1"}),
    ],
)  # fmt: skip
def test_torchtitan_reserves_what_it_reports(reported: float, within: float, changes: dict[str, object]) -> None:
    """GiB, with TP, CP and checkpointing by operator: benchmarks/llama3_h100_202412_torchtitan.md, tables 1 to 4."""
    cells = {"framework": "torchtitan", "model": "Llama-3.1-8B", "device": "H100-80GB-SXM", "pp": 1, "sharding": "fsdp"}
    cells |= {"mbs": 2, "seq": 8192, "recompute": "selective", "precision": "bf16", "options": "compile=1", **changes}
    cells["gbs"] = int(cells["mbs"]) * int(cells["n_devices"]) // (int(cells.get("tp", 1)) * int(cells.get("cp", 1)))
    rows = [{key: str(value) for key, value in cells.items()}]
    reserved = predict_table(runs_of(rows).requests).outcome.memory.kinds["reserved"][0] / 2**30
    assert reserved == pytest.approx(reported, rel=within)


def row_memory(**cells: object) -> Prediction:
    """The prediction of a row: Llama 3.1 8B in MaxText on eight chips, with these cells."""
    row = {"framework": "MaxText", "model": "Llama-3.1-8B", "device": "TPU-v6e", "n_devices": 8, "dp": 8, "mbs": 3}
    row |= {"seq": 8192, "gbs": 24, "sharding": "fsdp", "recompute": "full", **cells}
    return predict_table(runs_of([{key: str(value) for key, value in row.items()}]).requests)[0]


def test_options_of_a_row_state_what_it_holds() -> None:
    usual, lean = row_memory(), row_memory(options="held=2+2+0")
    assert lean.memory_gib["optimizer"] == 0
    assert lean.memory_gib["parameters"] == pytest.approx(usual.memory_gib["parameters"] / 2)
    chunks = row_memory(options="loss_chunks=16").memory_gib["activations"]
    logits = 3 * 8192 * 128256 * 4 / 2**30  # beside which the head's input and norm are small
    assert usual.memory_gib["activations"] - chunks == pytest.approx(15 / 16 * logits, rel=0.05)
    with pytest.raises(UserError, match="bytes of weights"):
        request_of({"framework": "MaxText", "model": "Llama-3.1-8B", "device": "TPU-v6e", "options": "held=2+4"})


def test_xla_holds_one_weight_whole_at_a_time() -> None:
    """Six bytes of the widest product's weight: it and the next one, and a gradient. A compiled plan fits 31.25 GiB."""
    found = row_memory(options="recompute_share=0.83;offload_layers=32")
    assert found.memory_gib["buffers"] - 0.5 == pytest.approx(6 * 4096 * 14336 / 2**30)
    assert found.fits  # tpu-recipes, Llama3.1-8B-MaxText/v6e-8
    assert found.memory_gib["activations"] < 0.75 * row_memory().memory_gib["activations"]


def test_grouped_products_arent_listed() -> None:
    mixture, cluster = load_model_spec("qwen3-30b-a3b"), load_cluster({"like": "dgx-h100", "nodes": 2})
    layout = Layout.parse({"devices": 16, "ep": 8, "micro_batch": 2, "global_batch": 32, "recompute": "none"})
    kept = {
        kind: predict(mixture, cluster, layout.replace(recompute=kind), 4096, framework="torchtitan")
        for kind in ("none", "selective", "full")
    }
    held = {kind: answer.memory_gib["activations"] for kind, answer in kept.items()}
    assert held["full"] < held["selective"] < 0.5 * held["none"]


@pytest.mark.parametrize(
    ("devices", "checkpoint", "copies"),
    [
        (8, {"memory_every": 1}, 2),
        (16, {"memory_every": 1}, 4),
        (16, {"memory_every": 1, "memory_buddy": 0, "async": True, "every": 50}, 3),
        (8, {"every": 50}, 0),
    ],
)
def test_a_hosts_memory_has_the_snapshots_of_its_ranks(
    devices: int, checkpoint: dict[str, object], copies: int
) -> None:
    """Own steps, a buddy's where there are two nodes of 8, a save under way: 12 bytes a parameter each, in all."""
    layout = {"devices": devices, "global_batch": 16}
    run = {"model": "llama-3.1-8b", "data": {"train": "x", "seq_len": 2048}, "layout": layout, "checkpoint": checkpoint}
    answer = price(Question(RunSpec.parse(run), CLUSTER))
    total = 12 * count(load_model_spec("llama-3.1-8b")).total
    assert devices * answer.host_gib[0] * 2**30 == pytest.approx(copies * total, rel=1e-9)
    assert ("host_memory_gib" in answer.dump()) == bool(copies)
