"""Choices of experts that a layout takes over from its control: equal where its own would differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parity.flips import train_with_flips, train_with_ties
from parity.matrix import FP32, MOE
from runs import MODEL, run_data
from scalewright.cli.verbs.parity import show
from scalewright.model.router import Router
from scalewright.parity import compare
from scalewright.parity.compare import Runs, parity, replays_routes
from scalewright.parity.result import Parity
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import RunSpec
from scalewright.train.routes import margin

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
    pytest.param({"devices": 2, "ep": 2, "zero_stage": 3, "micro_batch": 1}, marks=pytest.mark.slow),
    {"devices": 4, "tp": 2, "cp": 2, "ep": 2, "micro_batch": 2, "recompute": "full"},
    pytest.param({"devices": 4, "pp": 2, "tp": 2, "sp": False, "micro_batch": 2}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_given_choices_are_those_of_the_control(
    layout: dict[str, Any], controls: tuple[Path, Runs], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp32, so that what differs is the routing alone, which is planted: every fifth token's."""
    monkeypatch.setattr(compare, "replays_routes", lambda run: True)
    found = compared(controls, layout)
    assert compare.GIVEN in found.notes
    assert found.ok, found.deviation


def test_without_them_the_same_layout_differs(controls: tuple[Path, Runs]) -> None:
    found = compared(controls, {"devices": 2, "ep": 2, "zero_stage": 3, "micro_batch": 1})
    assert compare.GIVEN not in found.notes
    assert found.worst > 100 * FP32
    assert not found.ok
    assert not found.replayed, "every fifth token's experts are no near tie"
    assert max(flip.margin for flip in found.flips) > 1e-3
    assert "more than rounding" in found.notes[-1]


@pytest.mark.parametrize(
    "layout",
    [
        {"devices": 2, "tp": 2, "micro_batch": 2},
        pytest.param({"devices": 2, "ep": 2, "zero_stage": 3, "micro_batch": 1}, marks=pytest.mark.slow),
        pytest.param({"devices": 4, "pp": 2, "cp": 2, "micro_batch": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_near_tie_is_named_and_the_controls_choice_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: dict[str, Any]
) -> None:
    """Two experts tie for every token, and the layout's rounding picks the other one."""
    with Runs(train_with_ties) as runs:
        found = compared((tmp_path, runs), layout)
    assert found.ok, found.deviation
    assert found.worst <= FP32 == found.tolerance
    answer = found.dump()
    assert answer["replayed"] is True
    assert {flip["layer"] for flip in answer["flips"]} == {1, 2}
    assert {flip["step"] for flip in answer["flips"]} == {1, 2}
    assert {flip["sample"] for flip in answer["flips"]} <= set(range(8))
    assert {flip["token"] for flip in answer["flips"]} <= set(range(16))
    assert max(flip["margin"] for flip in answer["flips"]) < 1e-6
    show(found)
    assert "the control's choices were replayed" in capsys.readouterr().out


def test_the_margin_of_a_choice() -> None:
    """In powers of two of the scores, where groups are chosen, too; what no scores explain is far."""
    spec = ModelSpec.parse({**MODEL, "moe": {**MOE, "groups": 2, "top_groups": 1, "top_k": 1}}, "")
    assert spec.moe is not None
    router = Router(spec, spec.moe)
    scores = torch.tensor([0.25, 0.1, 0.25 * (1 + 2**-20), 0.1])
    first, second, third = (torch.tensor([expert]) for expert in (0, 1, 2))
    assert 2**-20 <= margin(router, scores, (first, third)) <= 2**-19
    assert margin(router, scores, (first, second)) > 0.5


def test_a_control_writes_every_steps_choices(controls: tuple[Path, Runs], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all samples and tokens, for each layer of experts: the first layer is dense."""
    monkeypatch.setattr(compare, "replays_routes", lambda run: True)
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
