"""Predictions for this machine's CPU from given curves: sane, ordered, in proportion to the curves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fake_machine import FLOPS, LINK, fake, machine, straight
from scalewright.plan.constants import constants
from scalewright.plan.cost.cpu_kernels import unit_seconds
from scalewright.plan.curves import Curves, beyond_timed, narrow_is_fast
from scalewright.plan.explain import evidence
from scalewright.plan.predict import Prediction, predict, predict_table, together
from scalewright.plan.request import from_layout
from scalewright.spec.flops import flops_per_token
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.hardware.timings import Timings
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.primitives import sizes

SHAPE = {
    "name": "small", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 704,
    "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "context": 256,
}  # fmt: skip
MODEL = ModelSpec.parse(SHAPE)


def price(model: ModelSpec = MODEL, seq_len: int = 256, **layout: Any) -> Prediction:
    keys = {"precision": "fp32", "global_batch": 8, **layout}
    return predict(model, machine(keys.get("devices", 1)), Layout.parse(keys), seq_len)


def seconds(model: ModelSpec = MODEL, seq_len: int = 256, **layout: Any) -> float:
    return price(model, seq_len, **layout).step_time_s


# -- curves ---------------------------------------------------------------------------------------


def test_curve_is_exact_where_measured_flat_below_and_proportional_above() -> None:
    curves = Curves(
        Timings.parse(
            {"processes": 1, "threads": 1, "curves": [{"what": "add", "sizes": [10, 1000], "seconds": [1e-6, 1e-4]}]}
        )
    )
    assert curves("add", np.array([10.0, 1000.0])) == pytest.approx([1e-6, 1e-4])
    assert float(curves("add", 1.0)) == pytest.approx(1e-6)
    assert float(curves("add", 505.0)) == pytest.approx(5.05e-5)  # half way
    assert float(curves("add", 5000.0)) == pytest.approx(5e-4)
    assert float(curves("send", 5000.0)) == 0.0


def test_falling_sizes_are_refused() -> None:
    curve = {"what": "add", "sizes": [1000, 10], "seconds": [1e-4, 1e-6]}
    with pytest.raises(Exception, match="ascending"):
        Timings.parse({"processes": 1, "threads": 1, "curves": [curve]})


def test_auto_is_bf16_only_where_products_are_faster_in_it() -> None:
    assert narrow_is_fast(fake(narrow=2.0))
    assert not narrow_is_fast(fake(narrow=1.1))
    layout = Layout.parse({"global_batch": 8})
    assert from_layout(MODEL, machine(1, narrow=2.0), layout, 256).precision == "bf16"
    assert from_layout(MODEL, machine(1, narrow=0.5), layout, 256).precision == "fp32"


# -- one process ----------------------------------------------------------------------------------


def test_a_step_is_near_what_its_products_alone_take() -> None:
    """The fake machine's products run at one rate; attention is priced over the full square."""
    products = flops_per_token(MODEL, 256) * 256 * 8 / FLOPS
    prediction = price(micro_batch=8)
    assert 1.0 < prediction.breakdown["compute"] / products < 1.7
    assert prediction.step_time_s == pytest.approx(sum(prediction.breakdown.values()))


def test_twice_the_tokens_take_about_twice_the_time() -> None:
    once, twice = seconds(micro_batch=8), seconds(micro_batch=8, global_batch=16)
    assert 1.8 < twice / once < 2.1  # Adam and fixed costs occur once; accumulating gradients is added
    assert 1.9 < seconds(micro_batch=16, global_batch=16) / once < 2.1


def test_more_layers_wider_layers_and_a_larger_vocabulary_take_longer() -> None:
    base = seconds()
    deep = seconds(MODEL.replace(num_hidden_layers=16))
    assert 1.7 < deep / base < 2.0  # embedding and head stay
    assert seconds(MODEL.replace(intermediate_size=1408)) > 1.2 * base
    assert seconds(MODEL.replace(vocab_size=8192)) > 1.2 * base
    assert seconds(seq_len=128) < 0.6 * base


def test_accumulation_costs_a_little() -> None:
    assert 1.0 < seconds(micro_batch=1) / seconds(micro_batch=8) < 1.3


def test_recomputation_costs_at_most_a_forward() -> None:
    none, selective, every, full = (seconds(recompute=kind) for kind in ("none", "selective", {"every": 2}, "full"))
    assert none < selective < full
    assert none < every < full
    assert 1.2 < full / none < 1.34


def test_attention_lies_between_narrow_and_wide_heads() -> None:
    """Heads of 32 at half the rate of 64: the core of a model with heads of 48 costs the mean of both."""
    timings = fake(1)
    slow = [
        straight("attention_narrow", FLOPS / 2 / times, phase=phase, precision="fp32")
        for phase, times in (("forward", 1.0), ("backward", 2.0))
    ]
    changed = timings.replace(curves=[*(curve.dump() for curve in timings.curves), *slow])
    ratios = {}
    for dim in (32, 48, 64):
        model = MODEL.replace(head_dim=dim, num_attention_heads=4, num_key_value_heads=4)
        per_rank = sizes(Layout(), 256)
        before, after = (unit_seconds(model, per_rank, "fp32", timing).parts[0] for timing in (timings, changed))
        ratios[dim] = after / before
    assert ratios == pytest.approx({32: 2.0, 48: 1.5, 64: 1.0}, rel=0.02)


# -- two processes --------------------------------------------------------------------------------

TWO: dict[str, dict[str, Any]] = {
    **{f"zero{stage}": {"zero_stage": stage, "micro_batch": 4} for stage in range(4)},
    "tp": {"tp": 2},
    "tp without sp": {"tp": 2, "sp": False},
    **{
        kind: {"pp": 2, "schedule": kind}
        for kind in ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-interleaved", "zbv", "dualpipev")
    },
}


@pytest.mark.parametrize("name", TWO)
def test_two_processes_take_between_half_and_twice_the_time_of_one(name: str) -> None:
    prediction = price(devices=2, **TWO[name])
    assert 0.5 < prediction.step_time_s / seconds(micro_batch=4) < 2.0
    assert all(value >= 0 and math.isfinite(value) for value in prediction.breakdown.values())
    assert prediction.step_time_s == pytest.approx(sum(prediction.breakdown.values()))


def test_zero_stages_cost_more_the_more_they_send() -> None:
    """Accumulated micro-batches: ZeRO-2 scatters in each, ZeRO-3 gathers in each as well."""
    times = [seconds(devices=2, zero_stage=stage, micro_batch=1) for stage in range(4)]
    assert times[1] < times[2] < times[3]
    exchange = [price(devices=2, zero_stage=stage, micro_batch=1).breakdown["dp_exposed"] for stage in (1, 3)]
    assert 3.0 < exchange[1] / exchange[0] < 8.0  # 4 micro-batches: 12 messages of a block, not 2


def test_tensor_parallel_communication_is_as_the_links_are() -> None:
    """Without sp a block sums its stream four times; embedding and head once each."""
    exposed = price(devices=2, tp=2, sp=False).breakdown["tp_exposed"]
    message = 256 * 256 * 4 / LINK + 3e-4 + constants()["cpu.message"]
    assert exposed == pytest.approx(8 * (4 * 8 + 2) * message, rel=0.1)


def test_a_bubble_shrinks_with_micro_batches() -> None:
    share = [
        price(devices=2, pp=2, global_batch=batch).breakdown["pp_bubble"] / seconds(devices=2, pp=2, global_batch=batch)
        for batch in (2, 8, 32)
    ]
    assert share[0] > 2 * share[1] > 4 * share[2] > 0


def test_a_table_of_rows_equals_each_row_alone() -> None:
    layouts = [Layout.parse({"precision": "fp32", "global_batch": 8, "devices": 2, **keys}) for keys in TWO.values()]
    cluster = machine(2)
    together = predict_table([from_layout(MODEL, cluster, layout, 256) for layout in layouts])
    alone = [predict(MODEL, cluster, layout, 256).step_time_s for layout in layouts]
    assert [prediction.step_time_s for prediction in together] == pytest.approx(alone)


def test_a_cpu_and_a_gpu_in_one_table_keep_their_own_prices() -> None:
    from scalewright.spec.hardware.cluster import load_cluster

    layout = Layout.parse({"global_batch": 8, "precision": "bf16"})
    clusters = [machine(1), load_cluster("dgx-h100")]
    together = predict_table([from_layout(MODEL, cluster, layout, 256) for cluster in clusters])
    alone = [predict(MODEL, cluster, layout, 256).step_time_s for cluster in clusters]
    assert [prediction.step_time_s for prediction in together] == pytest.approx(alone)


def test_a_cluster_with_timings_is_a_file() -> None:
    cluster = machine(2)
    assert ClusterSpec.parse(cluster.dump()) == cluster


def test_the_evidence_is_the_probe() -> None:
    keys = together([evidence(price(devices=2))])[0]
    assert keys["nearest"] == []
    assert keys["probe"].startswith("2 processes of 1 thread timed")
    assert keys["extrapolates"] == []
    assert beyond_timed(fake(1), "fp8", 2) == ["kernels in fp8 (timed: fp32, bf16)", "2 processes (timed: 1 at once)"]
