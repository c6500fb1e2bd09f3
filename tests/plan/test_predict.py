"""A layout alone and in a table has the same prediction, and its parts add up."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.plan.fitting.runs import MEASURED, read_table
from scalewright.plan.predict import predict, predict_rows, predict_table
from scalewright.plan.request import from_layout
from scalewright.plan.rows.rows import request_of
from scalewright.plan.stages import stages
from scalewright.spec.errors import UserError
from scalewright.spec.flops import flops_per_token, recompute_flops
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec
from scalewright.spec.schedule import StageCost, idle_time

LLAMA, H100 = load_model_spec("llama-3.1-8b"), load_cluster("dgx-h100")
KEYS = {
    "model", "layout", "fits", "step_time_s", "tokens_per_s", "tokens_per_s_per_device", "tflops_per_device",
    "flops_convention", "mfu", "hfu", "memory_gib", "memory_kind", "memory_reserved_gib",
    "memory_smi_gib", "memory_p10_p90_gib", "risk",
    "time_breakdown_s", "comm_bytes", "bottleneck", "assumed",
}  # fmt: skip


def layout(**changes: object) -> Layout:
    return Layout.parse({"devices": 64, "zero_stage": 1, "global_batch": 128, **changes})


def seconds(**changes: object) -> float:
    return predict(LLAMA, H100, layout(**changes), 4096, framework="megatron").step_time_s


def test_a_row_is_the_same_alone_and_in_a_table() -> None:
    rows = read_table(MEASURED)[::97]
    requests = [request_of(row) for row in rows]
    together = predict_table(requests)
    for index, request in enumerate(requests):
        alone = predict_table([request])
        assert alone.p50[0] == pytest.approx(together.p50[index], rel=1e-12)
        assert alone.p10[0] == pytest.approx(together.p10[index], rel=1e-12)
        assert alone[0].peak_gib == pytest.approx(together[index].peak_gib, rel=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tp": 4},
        {"tp": 2, "pp": 4, "schedule": "interleaved", "virtual_stages": 2},
        {"cp": 2},
        {"zero_stage": 3},
        {"pp": 4, "schedule": "zbv"},
        {"recompute": "full"},
        {"recompute": {"every": 2}},
        {"offload": "optimizer"},
    ],
)
def test_an_answer_adds_up(changes: dict[str, object]) -> None:
    answer = predict(LLAMA, H100, layout(**changes), 4096).dump()
    assert set(answer) == KEYS | ({"host_memory_gib"} if "offload" in changes else set())
    assert sum(answer["time_breakdown_s"].values()) == pytest.approx(answer["step_time_s"]["p50"], rel=1e-9)
    parts = dict(answer["memory_gib"])
    assert parts.pop("peak") == pytest.approx(sum(parts.values()), rel=1e-9)
    assert answer["step_time_s"]["p10"] < answer["step_time_s"]["p50"] < answer["step_time_s"]["p90"]
    assert 0 < answer["mfu"] <= answer["hfu"] < 1


def test_recomputation_tp_pipelines_and_batch_take_time() -> None:
    assert seconds(recompute="full") > 1.2 * seconds()
    assert seconds(tp=8) > seconds(tp=1)
    assert seconds(pp=8, global_batch=128) > seconds(pp=8, schedule="interleaved", virtual_stages=2)
    assert seconds(global_batch=256) == pytest.approx(2 * seconds(global_batch=128), rel=0.1)


def test_bytes_are_counted_as_users_count_them() -> None:
    params = 8_030_261_248
    none, one, three = (
        predict(LLAMA, H100, layout(zero_stage=stage), 4096, framework="nanotron").comm_bytes["dp"]
        for stage in (0, 1, 3)
    )
    assert none == pytest.approx(4 * params)  # all-reduce: the tensor, once, in fp32
    assert one == pytest.approx((4 + 2) * params)  # reduce-scatter's input, all-gather's output
    assert three == pytest.approx(2 * (2 * 2 + 4) * params)  # two micro-batches, each gathered twice
    tp = predict(LLAMA, H100, layout(tp=4), 4096, framework="megatron").comm_bytes["tp"]
    stream = 4096 * 4096 * 2
    micros = 128 // 16
    # twice a block, forward and backward, gather and scatter
    assert tp == pytest.approx(2 * 2 * 2 * 32 * micros * stream)


@pytest.mark.parametrize(
    ("kind", "chunks"),
    [
        ("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 4), ("zb-h1", 1),
        ("zb-interleaved", 2), ("zbv", 2), ("dualpipev", 2), ("dualpipe", 2), ("pipedream", 1),
    ],
)  # fmt: skip
def test_bubbles_are_those_of_the_schedules(kind: str, chunks: int) -> None:
    """With nearly equal ranks: 96 blocks and a small head."""
    model = LLAMA.replace(num_hidden_layers=96, vocab_size=512)
    shape = layout(devices=4, pp=4, schedule=kind, virtual_stages=chunks, global_batch=32)
    prediction = predict(model, H100, shape, 2048, framework="megatron")
    inner = stages(prediction)[1]["seconds"]
    cost = StageCost(inner["forward"], inner["backward_input"], inner["backward_weight"])
    bubble = prediction.breakdown["pp_bubble"]
    assert bubble == pytest.approx(idle_time(kind, 4, chunks, 32, cost), rel=0.03)


@pytest.mark.parametrize("recompute", ["none", "selective", "full", {"every": 2}])
def test_hardware_flops_are_model_flops_and_recomputation(recompute: object) -> None:
    shape = layout(devices=8, global_batch=8, recompute=recompute)
    answer = predict(LLAMA, H100, shape, 4096).dump()
    again = recompute_flops(LLAMA, shape, 4096) / (4096 * flops_per_token(LLAMA, 4096))
    assert answer["hfu"] / answer["mfu"] == pytest.approx(1 + again, rel=1e-9)


def test_mixtures_and_latent_attention_are_priced() -> None:
    model, cluster = load_model_spec("deepseek-v3"), load_cluster("hgx-h800")
    wide = layout(devices=2048, pp=16, ep=64, schedule="dualpipev", global_batch=15360, micro_batch=1, precision="fp8")
    prediction = predict(model, cluster, wide, 4096, framework="megatron")
    assert prediction.comm_bytes["ep"] > 0
    assert prediction.breakdown["ep_exposed"] > 0
    assert 1 < prediction.step_time_s < 120


def test_a_cluster_too_small_is_one_line() -> None:
    with pytest.raises(UserError, match="devices are asked for"):
        predict(LLAMA, load_cluster({"like": "dgx-h100", "nodes": 1}), layout(), 4096)


def test_a_bad_row_gives_its_reason_and_the_others_answers() -> None:
    good = dict(read_table(MEASURED)[0])
    answers = predict_rows([good, {**good, "id": "x", "tp": "3"}, {**good, "id": "y", "device": "H1000"}])
    assert "step_time_s" in answers[0]
    assert answers[1]["id"] == "x"
    assert "does not divide" in answers[1]["error"]
    assert "H1000" in answers[2]["error"]


def test_a_trainer_that_is_not_known_has_a_wider_band() -> None:
    known, unknown = (
        predict_table([from_layout(LLAMA, H100, layout(), 4096, name)]) for name in ("megatron", "nobody's")
    )
    # band.trainer beside band.base: sqrt(0.105^2 + 0.08^2) is a quarter more than 0.105
    assert np.log(unknown.p90 / unknown.p10)[0] > 1.2 * np.log(known.p90 / known.p10)[0]
