"""Parity on one GPU: recomputation and offload against a control that keeps everything on the device.

The device is a parameter: the CPU's cases run everywhere and show that the tests themselves hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devices import DEVICES
from runs import merge, run_data
from scalewright.parity.compare import Runs, parity
from scalewright.spec.run import RunSpec

LAYOUTS: list[dict[str, Any]] = [
    {"recompute": "full", "offload": "activations"},
    {"recompute": {"budget": 0.5}, "offload": "optimizer"},
    {"offload": "parameters"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One corpus, so that a control serves both layouts."""
    return tmp_path_factory.mktemp("parity")


@pytest.fixture(scope="module")
def controls() -> Iterator[Runs]:
    """Each device's control is trained once."""
    with Runs() as runs:
        yield runs


@pytest.mark.parametrize("layout", LAYOUTS, ids=["activations", "optimizer", "parameters"])
@pytest.mark.parametrize("device", DEVICES)
def test_what_saves_memory_changes_nothing(device: str, layout: dict[str, Any], controls: Runs, folder: Path):
    """Deterministic kernels: a GPU's own sums may have another order in each run without them."""
    base = {"layout": {"micro_batch": 2, "precision": "fp32"}, "deterministic": True}
    run = RunSpec.parse(run_data(folder, **merge(base, {"layout": layout})))
    found = parity(run, steps=3, device=device, micro_batch=2, runs=controls)
    assert found.shrunk == ()
    assert found.ok, found.deviation
