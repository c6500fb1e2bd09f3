"""Bands follow evidence: what was never measured has a wider one, and says so."""

from __future__ import annotations

from math import log

import pytest

from scalewright.plan.explain import never_measured
from scalewright.plan.features import measured
from scalewright.plan.fitting.runs import MEASURED, read_table, runs_of
from scalewright.plan.frameworks import find_framework, framework_names
from scalewright.plan.predict import Prediction, predict
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec

LLAMA = load_model_spec("llama-3.1-8b")


def run(framework: str, cluster: str = "dgx-h100", **options: str) -> Prediction:
    layout = Layout(devices=8, zero_stage=3, micro_batch=2, recompute="selective", precision="bf16")
    return predict(LLAMA, load_cluster(cluster), layout, 8192, framework=framework, options=options or None)


def width(found: Prediction) -> float:
    low, high = found.band_s
    return log(high / low)


def test_the_files_name_what_the_table_holds() -> None:
    runs = runs_of(read_table(MEASURED))
    timed = [request for request, seconds in zip(runs.requests, runs.seconds, strict=True) if seconds > 0]
    trainers = {request.framework.name for request in timed}
    assert trainers == {name for name in framework_names() if find_framework(name).measured}
    assert {request.chip.name for request in timed} == measured().chips


def test_trainers_and_devices_without_a_run_have_wider_bands() -> None:
    for name in ("scalewright", "torchtitan"):
        assert width(run(name)) > 1.4 * width(run("megatron"))
        assert never_measured(run(name).request) == [name]
    assert never_measured(run("megatron").request) == []
    assert width(run("megatron", "l40s")) > width(run("megatron"))
    assert never_measured(run("megatron", "l40s").request) == [run("megatron", "l40s").request.chip.name]


@pytest.mark.parametrize(("compiled", "tokens_per_s"), [("0", 5762), ("1", 6667)])
def test_torchtitans_published_steps_are_in_their_bands(compiled: str, tokens_per_s: int) -> None:
    """8B on 8 H100 of 500 W, FSDP, local batch 2, eager and compiled (its benchmarks, 2024-12)."""
    found = run("torchtitan", "h100-sxm-96-500w", compile=compiled)
    assert found.band_s[0] < 2 * 8192 / tokens_per_s < found.band_s[1]
