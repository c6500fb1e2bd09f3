"""A real training step: the trainer on random tokens, and figures of its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.api import train
from scalewright.bench.step import step, summary
from scalewright.spec.errors import UserError


def test_a_preset_trains_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = step(train, "tiny", ("data.seq_len=32",), steps=6)
    assert answer is not None
    assert answer["steps"] == 3
    time = answer["step_time_s"]
    assert 0 < time["p10"] <= time["p50"] <= time["p90"]
    assert answer["tokens_per_s"] == pytest.approx(32 / time["p50"], rel=0.5)
    assert answer["breakdown_s"]["compute"] > 0
    assert list(tmp_path.iterdir()) == []


def test_figures_are_medians() -> None:
    rows = [
        {"step_time_s": seconds, "tokens_per_s": 1 / seconds, "mfu": None, "breakdown_s": {"compute": seconds}}
        for seconds in (1.0, 2.0, 10.0)
    ]
    answer = summary(rows, 3.0)
    assert answer["step_time_s"]["p50"] == 2.0
    assert answer["breakdown_s"] == {"compute": 2.0}
    assert answer["mfu"] is None
    assert answer["predicted_step_time_s"] == 3.0


def test_too_few_steps_and_no_such_model() -> None:
    with pytest.raises(UserError, match="none to time"):
        step(train, "tiny", steps=3)
    with pytest.raises(UserError, match="tinny"):
        step(train, "tinny", steps=5)
