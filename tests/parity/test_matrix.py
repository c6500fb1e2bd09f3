"""Every layout of the matrix computes what one device computes: ten steps of AdamW, ten of SGD. Islands
compute what their simulation in one process does.

A fast part runs in `make test`, all of it in `make parity`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parity.eager import train_eagerly
from parity.matrix import CASES, VARIANTS, Case
from parity.table import Line
from runs import merge, run_data
from scalewright.parity.compare import Runs, parity
from scalewright.parity.result import Parity
from scalewright.spec.run import RunSpec

ADAMW = {"name": "adamw", "lr": 3e-3, "betas": [0.9, 0.95], "weight_decay": 0.1, "clip_norm": 1.0}
FAST_STEPS, STEPS = 3, 10


@pytest.fixture(scope="module")
def compare(tmp_path_factory) -> Iterator[Callable[[Case, int], Parity]]:
    """Compares a case with its variant's control, which is trained once."""
    folder: Path = tmp_path_factory.mktemp("data")
    with Runs(train_eagerly) as runs:

        def one(case: Case, steps: int) -> Parity:
            changes = merge({"layout": case.layout, "optimizer": ADAMW}, VARIANTS[case.variant])
            run = RunSpec.parse(run_data(folder, **changes))
            return parity(run, steps=steps, tolerance=case.tolerance, micro_batch=2, runs=runs)

        yield one


def check(case: Case, found: Parity, lines: list[Line], began: float) -> None:
    """Equal within the tolerance, as it was asked for, and into the table."""
    lines.append(Line.of(case, found, time.perf_counter() - began))
    assert found.shrunk == ()
    wanted = {**case.layout, "precision": found.layout["precision"]}
    assert {key: found.layout[key] for key in wanted if key != "recompute"} == {
        key: value for key, value in wanted.items() if key != "recompute"
    }
    assert found.ok, f"{case.name}: {lines[-1]}, most in {found.deviation.worst_tensor}"


@pytest.mark.parametrize("case", [c for c in CASES if c.fast], ids=lambda c: c.name)
def test_a_layout_computes_what_one_device_computes(case, compare, lines):
    began = time.perf_counter()
    check(case, compare(case, FAST_STEPS), lines, began)


@pytest.mark.parity
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_layout(case, compare, lines):
    began = time.perf_counter()
    check(case, compare(case, STEPS), lines, began)
