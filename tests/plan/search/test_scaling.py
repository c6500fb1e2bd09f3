"""Strong scaling: every count has its best layout, and the curve is Amdahl's."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.plan.search.scaling import counts_between, fit_amdahl, scaling
from scalewright.plan.search.search import search
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.presets import load_model_spec

LLAMA, H100 = load_model_spec("llama-3.1-8b"), load_cluster("dgx-h100")


def test_a_range_doubles_and_ends_where_it_says() -> None:
    assert counts_between(8, 64) == [8, 16, 32, 64]
    assert counts_between(8, 48) == [8, 16, 32, 48]
    with pytest.raises(UserError, match="goes nowhere"):
        counts_between(64, 8)


def test_amdahls_law_is_found_again() -> None:
    n = np.array([1.0, 8.0, 64.0, 512.0])
    assert fit_amdahl(n, 0.25 + 100 / n) == pytest.approx((0.25, 100), rel=1e-9)
    assert fit_amdahl(n, 100 / n**1.1)[0] == 0.0, "faster than linear has no serial part"


def test_the_curve() -> None:
    found = scaling(LLAMA, H100, [1, 8, 64, 512, 4096], seq_len=4096, global_batch=512)
    times = [row.choice.prediction.step_time_s for row in found.rows if row.choice]
    assert times == sorted(times, reverse=True)
    assert found.rows[1].choice is not None
    alone = search(LLAMA, H100, devices=8, seq_len=4096, global_batch=512).best[0]
    assert found.rows[1].choice.score == pytest.approx(alone.score, rel=1e-12)
    efficiency = [row.efficiency for row in found.rows if row.efficiency is not None]
    assert efficiency[0] == 1.0
    assert efficiency[-1] < 0.9
    assert found.serial_share is not None
    assert 0 < found.serial_share < 0.01
    assert found.limit is not None
    assert found.what
    assert sum(part["share"] for part in found.what) == pytest.approx(1, abs=0.1)
    dumped = found.dump()
    assert {"rows", "serial_share", "serial_part", "global_batch"} <= set(dumped)


def test_counts_without_a_layout_say_why() -> None:
    found = scaling(LLAMA, H100, [8, 4093], seq_len=4096, global_batch=64)
    assert found.rows[1].choice is None
    assert "4093 devices" in str(found.rows[1].problem)
    with pytest.raises(UserError, match="no count has a layout"):
        scaling(LLAMA, H100, [4093], seq_len=4096, global_batch=64)
