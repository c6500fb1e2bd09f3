"""Memory: micro-batches under way as the schedules say, shares as ZeRO says."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.plan.cost.activations import under_way
from scalewright.plan.cost.table import table
from scalewright.plan.predict import Prediction, predict
from scalewright.plan.request import from_layout
from scalewright.plan.stages import stages
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec
from scalewright.spec.schedule import peak_activations, schedule

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
        devices=ranks,
        pp=ranks,
        schedule=kind,
        virtual_stages=chunks,
        micro_batch=1,
        global_batch=micros,
        zero_stage=0,
    )
    rows = table([from_layout(MODEL, CLUSTER, layout, 2048, "megatron")])
    plan = schedule(kind, ranks, chunks, micros)
    # in whole ranks' worth: dualpipe's two stages are two ranks', and each has half of the micro-batches
    held = np.array(peak_activations(plan)) / (1 if kind == "dualpipe" else chunks)
    assert [under_way(rows, np.array([float(rank)]))[0] for rank in range(ranks)] == pytest.approx(held)


def run(**changes: object) -> Prediction:
    layout = Layout.parse({"devices": 8, "micro_batch": 1, "global_batch": 8, **changes})
    return predict(MODEL, CLUSTER, layout, 2048, framework="megatron")


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


def test_schedules_that_keep_several_weights() -> None:
    sizes = {"devices": 4, "pp": 4, "global_batch": 16, "zero_stage": 0}
    one = run(**sizes).memory_gib["parameters"]
    assert run(**sizes, schedule="pipedream").memory_gib["parameters"] == pytest.approx(4 * one)
    # two stages on every rank: the first and the last one on one
    both = [stage["memory_gib"]["parameters"] for stage in stages(run(**sizes))]
    twice = run(**sizes, schedule="dualpipe").memory_gib["parameters"]
    assert twice == pytest.approx(both[0] + both[-1])
