"""Strong scaling: every device count has its best layout, and Amdahl's law is fitted to their times."""

from __future__ import annotations

import numpy as np
import pytest

from plan.searches import search
from scalewright.plan.search.objective import Goal
from scalewright.plan.search.scaling import fit_amdahl, scaling
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.presets import load_model_spec
from scalewright.spec.question import Question

LLAMA, H100 = load_model_spec("llama-3.1-8b"), load_cluster("dgx-h100")
QUESTION = Question.of(LLAMA, 4096, H100)


def test_the_fit_recovers_amdahls_law() -> None:
    n = np.array([1.0, 8.0, 64.0, 512.0])
    assert fit_amdahl(n, 0.25 + 100 / n) == pytest.approx((0.25, 100), rel=1e-9)
    assert fit_amdahl(n, 100 / n**1.1)[0] == 0.0, "faster than linear has no serial part"


def test_a_curve_of_five_counts() -> None:
    curve = scaling(QUESTION, Goal(1, 512), [1, 8, 64, 512, 4096])
    times = [row["step_time_s"] for row in curve["rows"]]
    assert None not in times or times.index(None) == 0
    found = [seconds for seconds in times if seconds is not None]
    assert found == sorted(found, reverse=True)
    best = search(LLAMA, H100, devices=8, seq_len=4096, global_batch=512).best[0]
    assert curve["rows"][1]["step_time_s"] == pytest.approx(best.prediction.step_time_s, rel=1e-12)
    efficiency = [row["efficiency"] for row in curve["rows"] if row["efficiency"] is not None]
    assert efficiency[0] == 1.0
    assert efficiency[-1] < 0.9
    assert 0 < curve["serial_share"] < 0.01
    assert curve["limit"] == pytest.approx(1 / curve["serial_share"])
    assert sum(part["share"] for part in curve["serial_part"]) == pytest.approx(1, abs=0.1)
    assert curve["global_batch"] == 512


def test_counts_without_a_layout_have_a_reason() -> None:
    told: list[tuple[int, int]] = []
    curve = scaling(QUESTION, Goal(8, 64), [8, 4093], tell=lambda done, total: told.append((done, total)))
    assert told
    assert all(0 <= done <= total for done, total in told)
    assert curve["rows"][1]["prediction"] is None
    assert "4093 devices" in curve["rows"][1]["problem"]
    with pytest.raises(UserError, match="no count has a layout"):
        scaling(QUESTION, Goal(8, 64), [4093])
