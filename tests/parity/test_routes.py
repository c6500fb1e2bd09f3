"""Choices of experts that a layout takes over from its control: equal where its own would differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.flips import train_with_flips
from parity.matrix import FP32, MOE
from runs import run_data
from scalewright.parity import compare, ranks
from scalewright.parity.compare import parity
from scalewright.parity.ranks import Runs, replays_routes
from scalewright.parity.result import Parity
from scalewright.spec.run import RunSpec

STEPS = 2


@pytest.fixture(scope="module")
def controls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Runs]]:
    """One corpus, and controls that are trained once."""
    with Runs(train_with_flips) as runs:
        yield tmp_path_factory.mktemp("data"), runs


def compared(controls: tuple[Path, Runs], layout: dict[str, Any]) -> Parity:
    folder, runs = controls
    keys = {"global_batch": 8, "precision": "fp32", **layout}
    run = RunSpec.parse(run_data(folder, model={"moe": MOE}, layout=keys))
    return parity(run, steps=STEPS, tolerance=FP32, micro_batch=2, runs=runs)


LAYOUTS = [
    {"devices": 2, "ep": 2, "zero_stage": 3, "micro_batch": 1},
    {"devices": 4, "tp": 2, "cp": 2, "ep": 2, "micro_batch": 2, "recompute": "full"},
    pytest.param({"devices": 4, "pp": 2, "tp": 2, "sp": False, "micro_batch": 2}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_given_choices_are_those_of_the_control(
    layout: dict[str, Any], controls: tuple[Path, Runs], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp32, so that what differs is the routing alone, which is planted: every fifth token's."""
    for module in (ranks, compare):
        monkeypatch.setattr(module, "replays_routes", lambda run: True)
    found = compared(controls, layout)
    assert compare.GIVEN in found.notes
    assert found.ok, found.deviation


def test_without_them_the_same_layout_differs(controls: tuple[Path, Runs]) -> None:
    found = compared(controls, {"devices": 2, "ep": 2, "zero_stage": 3, "micro_batch": 1})
    assert compare.GIVEN not in found.notes
    assert found.worst > 100 * FP32


def test_a_control_writes_every_steps_choices(
    controls: tuple[Path, Runs], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all samples and tokens, for each layer of experts: the first layer is dense."""
    monkeypatch.setattr(ranks, "replays_routes", lambda run: True)
    folder, runs = controls
    run = RunSpec.parse(run_data(folder, model={"moe": MOE}, train={"steps": STEPS}))
    left = runs(run)
    assert left.routes is not None
    written = sorted(path.name for path in (left.routes / left.own.name).iterdir())
    assert written == [f"{step}-{layer}.npy" for step in (1, 2) for layer in (1, 2)]
    experts = np.load(left.routes / left.own.name / "1-1.npy")
    assert experts.shape == (8, 16, 2)
    assert (experts[..., 0] != experts[..., 1]).all()


@pytest.mark.parametrize(
    ("precision", "moe", "given"),
    [("bf16", MOE, True), ("fp16", MOE, True), ("fp32", MOE, False), ("bf16", None, False)],
)
def test_only_rounded_mixtures_need_them(tmp_path: Path, precision: str, moe: Any, given: bool) -> None:
    run = RunSpec.parse(run_data(tmp_path, model={"moe": moe}, layout={"precision": precision}))
    assert replays_routes(run) is given
