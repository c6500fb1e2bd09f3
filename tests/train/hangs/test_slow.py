"""Ranks that are slow for long are named, and left out where that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from runs import events, run, run_data
from scalewright.train.hangs.slow import LONG, WINDOW, behind


def test_each_rank_is_compared_with_the_others_of_its_stage() -> None:
    """A stage that has more to do isn't slow; a rank without a measurement isn't compared."""
    work = [1.0, 1.0, 1.5, 3.0, 3.0, None]
    stages = [0, 0, 0, 1, 1, 1]
    assert behind(work, stages) == {0: (0.8, 1.0), 1: (0.8, 1.0), 2: (1.5, 1.5), 3: (1.0, 3.0), 4: (1.0, 3.0)}
    assert behind([1.0], [0]) == {}
    assert behind([0.003, 0.001], [0, 0])[0] == (pytest.approx(0.15), 0.003)  # too little work to tell


@pytest.mark.slow
@pytest.mark.parametrize("leave_out", [False, True])
def test_a_slow_rank_is_named_and_left_out(tmp_path: Path, leave_out: bool) -> None:
    steps = WINDOW * (LONG + 2)
    data = run_data(
        tmp_path, layout={"devices": 3, "zero_stage": 3, "global_batch": 6, "micro_batch": 1},
        train={"steps": steps}, elastic={"leave_out_slow": leave_out}, checkpoint={"at_end": True},
        loss={"python": "parts:slow_on_one", "rank": 1, "world": 3, "pause": 0.05},
    )  # fmt: skip
    out = run(data).out_dir
    (slow,) = events(out, "slow")
    assert slow["rank"] == 1
    assert slow["times"] > 1.5
    assert slow["step"] == WINDOW * LONG
    resumed = events(out, "resume")
    assert [event["world"] for event in resumed] == ([2] if leave_out else [])
