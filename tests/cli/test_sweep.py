"""The table of a sweep: one table on a terminal of 80 columns, and each error once in full."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.cli.verbs.sweep import _show, _tell
from scalewright.train.sweep import Row, Sweep

ERROR = "stopped at step 5: grad_norm nan, 3 steps in a row; go on from an older checkpoint"


def row(**keys: Any) -> Row:
    values = {"optimizer.lr": "1e-3", "layout.global_batch": "4"}
    numbers = {"loss": 6.9164, "valid_loss": 6.9269, "step": 12, "tokens_per_s": 819.0, "memory_gib": 0.34}
    return Row(**{"run": "a", "values": values, "status": "finished", "out_dir": "", **numbers, **keys})


def test_two_keys_fit_in_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    failed = row(run="b", status="failed", error=ERROR, valid_loss=None)
    _tell(1, 2, failed)
    progress = capsys.readouterr().err
    assert "stopped at step 5: grad_norm nan, 3 steps in a row\n" in progress
    _show(Sweep("s", "runs/s", [row(), failed], best="a"))
    shown = capsys.readouterr().out
    assert shown.count("global_batch") == 1
    assert "optimizer.lr" not in shown
    assert max(map(len, shown.splitlines()[:4])) <= 80
    assert shown.count(ERROR) == 1
