"""Whole runs with their optimizer, or their parameters, in host memory: trained, saved, and gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from runs import assert_same_bits, assert_same_run, rows, run, run_data, weights, worst

ADAMW = {"optimizer": {"name": "adamw", "lr": 3e-3}, "train": {"steps": 6}, "checkpoint": {"every": 3}}


@pytest.fixture(scope="module")
def control(tmp_path_factory) -> Path:
    return Path(run(run_data(tmp_path_factory.mktemp("control"), **ADAMW)).out_dir)


@pytest.mark.parametrize("offload", [pytest.param("optimizer", marks=pytest.mark.slow), "parameters", "all"])
def test_alone(control, tmp_path, offload):
    """One device, no launcher: on a CPU the very same operations, and so the same bits."""
    found = run(run_data(tmp_path, layout={"offload": offload}, **ADAMW)).out_dir
    assert worst(rows(found), rows(control), "loss") == 0.0
    assert worst(rows(found), rows(control), "grad_norm") == 0.0
    for step in (3, 6):
        folder = f"checkpoints/step-{step:08d}"
        assert_same_bits(weights(Path(found) / folder, optimizer=True), weights(control / folder, optimizer=True))


def test_resumed_elsewhere(control, tmp_path):
    """Half of it with the optimizer on one host, the rest with parameters on two."""
    data = run_data(tmp_path, layout={"offload": "optimizer"}, **ADAMW)
    run(data, steps=3)
    data["layout"] = {"devices": 2, "offload": "parameters", "global_batch": 8, "precision": "fp32"}
    assert_same_run(run(data).out_dir, control)
