"""Real checkpoints: a trainer that this Python has writes its own; what is converted equals its model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from checkpoint.foreign.real import CASES, cases, check

# Rounding: the trainers multiply in another order; the logits are of size 1 to 10, in fp32
LOGITS = 1e-5
ALL = [(trainer, case) for trainer, cases in CASES.items() for case in cases]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("trainer", "case"), ALL)
def test_a_trainers_own_checkpoint(trainer: str, case: str, tmp_path: Path) -> None:
    if find_spec(trainer) is None:
        pytest.skip(f"{trainer} isn't installed in this Python; comparisons/their_checkpoints.py says how to")
    if case not in cases(trainer):
        pytest.skip(f"this version of {trainer} can't make it")
    for checked in check(trainer, case, tmp_path):
        assert checked.tensors > 10
        assert checked.logits is None or checked.logits < LOGITS
