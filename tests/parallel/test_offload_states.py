"""Offload of the optimizer and of parameters: the numbers of a layout without it, and where things lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from loss_function import cross_entropy
from parallel.small_steps import ROWS, assert_same, build, micros, own_rows, train, zero
from parallel.test_shard import LAYOUTS
from runs import MODEL
from scalewright.dry_run.watch import Watch
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.offload_states import HostMasters, is_host
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import OptimizerSpec
from scalewright.train.network import load_python
from scalewright.train.optimizer import build_optimizer
from scalewright.train.step import Step
from worlds import one_rank, run_world


@pytest.fixture(scope="module")
def control() -> dict[str, Any]:
    mesh, _ = one_rank()
    return train(mesh, Layout.parse({"micro_batch": 2}))


@pytest.fixture(scope="module")
def bf16_control() -> dict[str, Any]:
    mesh, _ = one_rank()
    return train(mesh, Layout.parse({"micro_batch": 1}), bf16=True)


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["optimizer", "parameters"])
def test_one_device(control, bf16_control, kind, bf16):
    """No other rank to add anything in another order: the losses are the same bits."""
    layout = {"offload": kind, "micro_batch": 1 if bf16 else 2, "global_batch": ROWS}
    (result,) = run_world(train, {"devices": 1, **layout}, bf16)
    expected = bf16_control if bf16 else control
    assert_same([result], expected, 1e-7, 1e-7)


@pytest.mark.parametrize(
    ("kind", "layout", "bf16"),
    [
        ("optimizer", zero(0), False),
        ("optimizer", zero(0), True),
        ("optimizer", LAYOUTS["zero1"], True),
        pytest.param("optimizer", LAYOUTS["hsdp2"], False, marks=pytest.mark.slow),
        ("optimizer", LAYOUTS["zero3"], False),
        pytest.param("parameters", LAYOUTS["zero3"], False, marks=pytest.mark.slow),
        ("parameters", LAYOUTS["zero3"], True),
        ("parameters", LAYOUTS["hsdp3"], False),
        pytest.param("parameters", zero(3, dp_replicate=2), False, marks=pytest.mark.slow),  # groups of one rank
        ("all", zero(3, 4, recompute="full"), False),
    ],
)
def test_a_layout_trains_as_one_process_does(control, bf16_control, kind, layout, bf16):
    """The tolerances of the same layouts without offload."""
    results = run_world(train, {**layout, "offload": kind}, bf16)
    if bf16:
        assert_same(results, bf16_control, 1e-3, 1e-2)
    else:
        assert_same(results, control, 2e-6, 2e-6)


def look(mesh: Mesh, layout: Layout, bf16: bool) -> dict[str, Any]:
    """Where masters, states and gradients lie after two steps, and a step's peak of device memory by kind."""
    parallel = build(mesh, layout, bf16)
    weights = parallel.weights
    optimizer = build_optimizer(OptimizerSpec(), weights, load_python, mesh)
    step = Step(parallel, optimizer, lambda lo, t: cross_entropy(lo, t, 0.0), mesh, 1.0)
    rows = own_rows(mesh)
    with Watch(mesh) as watch:
        watch.register(weights, optimizer)
        step(*micros(0, rows, layout.micro_batch))
        window = watch.live.open()
        step(*micros(1, rows, layout.micro_batch))
        watch.live.close(window)
    states = [optimizer.state[w.master][key] for w in weights for key in ("exp_avg", "exp_avg_sq")]
    return {
        "masters": sorted({is_host(w.master) for w in weights}),
        "states": sorted({is_host(state) for state in states}),
        "gradients": sorted({is_host(w.master.grad) for w in weights if w.master.grad is not None}),
        "computes": sorted({is_host(w.resident) for w in weights}),
        "numbers": sum(w.master.numel() for w in weights),
        "most": window.most,
    }


@pytest.mark.parametrize(
    ("zero_stage", "bf16"),
    [(0, True), (1, False), *(pytest.param(*c, marks=pytest.mark.slow) for c in [(0, False), (1, True), (3, True)])],
)
def test_masters_and_states_leave_the_device(zero_stage, bf16):
    """Masters and both of AdamW's states; with ZeRO 1 to 3 FSDP keeps shards of its own in fp32."""
    layout = {"devices": 2, "zero_stage": zero_stage, "global_batch": ROWS}
    for held, moved in zip(
        run_world(look, layout, bf16), run_world(look, {**layout, "offload": "optimizer"}, bf16), strict=True
    ):
        assert (held["masters"], held["states"], held["gradients"], held["computes"]) == ([False],) * 4
        assert (moved["masters"], moved["states"], moved["gradients"]) == ([True],) * 3
        assert moved["computes"] == [False]
        assert held["most"]["optimizer"] >= 8 * held["numbers"]
        assert moved["most"]["optimizer"] == 0
        saved = held["most"]["parameters"] - moved["most"]["parameters"]
        assert saved == (4 * held["numbers"] if bf16 and zero_stage == 0 else 0)


def test_offloaded_parameters_leave_nothing_at_rest():
    layout = {"devices": 2, "zero_stage": 3, "global_batch": ROWS}
    for result in run_world(look, {**layout, "offload": "parameters"}, True):
        assert (result["masters"], result["states"], result["gradients"], result["computes"]) == ([True],) * 4
        assert result["most"]["parameters"] == result["most"]["optimizer"] == result["most"]["gradients"] == 0
        assert result["most"]["buffers"] > 0


def test_masters_are_rounded_into_the_compute_copies():
    mesh, _ = one_rank()
    layout = Layout.parse({"offload": "optimizer"})
    parallel = build(mesh, layout, bf16=True)
    assert isinstance(parallel.weights.host, HostMasters)
    with torch.no_grad():
        for weight in parallel.weights:
            weight.master.add_(1.0)
    parallel.weights.publish()
    for weight in parallel.weights:
        assert torch.equal(weight.compute, weight.master.to(torch.bfloat16))


def test_parameters_go_with_zero_3_alone():
    layout = Layout.parse({"devices": 2, "zero_stage": 1, "offload": "parameters"})
    with pytest.raises(UserError, match=r"offload parameters needs zero_stage 3 but it is 1.*use zero_stage 3"):
        check_layout(layout, ModelSpec.parse(MODEL))
    assert Layout.parse({"offload": "parameters"}).zero_stage == 3
    assert Layout.parse({"offload": "optimizer"}).zero_stage == 0
