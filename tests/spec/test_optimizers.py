"""The table of optimizers: its names are the run file's, and every record can be written in one."""

from __future__ import annotations

import pytest

from scalewright.spec.errors import UserError
from scalewright.spec.optimizers import ADAMW, NAMES, OPTIMIZERS, find_optimizer
from scalewright.spec.run import OptimizerSpec


def test_every_record_is_a_run_files() -> None:
    assert {record.written for record in OPTIMIZERS.values()} == set(NAMES)
    specs = [OptimizerSpec.parse({"name": name, "momentum": m}) for name in NAMES for m in (0.0, 0.9)]
    assert {spec.record.name for spec in specs} == set(OPTIMIZERS)
    assert all(spec.record.written == spec.name for spec in specs)
    assert OptimizerSpec().record is ADAMW


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_an_update_moves_at_least_gradient_weight_and_states(name: str) -> None:
    record = OPTIMIZERS[name]
    assert record.name == name
    assert record.update >= 4 + 8 + 2 * record.width * len(record.states)
    assert record.source


def test_names_are_looked_up_without_momentum() -> None:
    assert [find_optimizer(name).name for name in NAMES] == list(NAMES)
    for unknown in ("adam", "momentum", "AdamW"):
        with pytest.raises(UserError, match=f"unknown optimizer '{unknown}'.*: use one of adamw, sgd, lion, muon, "):
            find_optimizer(unknown)
