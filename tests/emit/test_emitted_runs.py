"""Emitted runs, started as they are: losses equal those of `train` on the same weights and samples."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "comparisons"))
from harness.emitted_runs import CASES, TOLERANCE, Case, make_inputs, ours, theirs

STEPS = 8
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def references(inputs: Path) -> dict[bool, dict[int, float]]:
    return {masks: ours(inputs, STEPS, masks) for masks in (True, False)}


@pytest.mark.parametrize("case", CASES, ids=[f"{case.trainer}, {case.title}" for case in CASES])
def test_losses_are_those_of_train(case: Case, inputs: Path, references: dict[bool, dict[int, float]]) -> None:
    for name in case.needs:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    losses = theirs(inputs, STEPS, case)
    reference = references[case.masks]
    assert losses.keys() == reference.keys()
    assert max(abs(losses[step] - reference[step]) for step in reference) <= TOLERANCE
