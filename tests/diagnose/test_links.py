"""Links far below their specification are named, with what a sound link gains; others aren't."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.job import Job, simulate, write

from scalewright.diagnose.links import slow_links
from scalewright.diagnose.ranks import read_ranks
from scalewright.diagnose.verdicts import verdicts

SOUND = Job(overlap=True, kernel=150.0, collective=140.0)  # 180 GB/s of 300


def test_a_slow_link_comes_first_and_its_gain_is_true(tmp_path: Path) -> None:
    length = write(SOUND.without(collective=1500.0), tmp_path)
    first = verdicts(read_ranks(sorted(tmp_path.iterdir())))[0]
    assert first.cause == "link"
    assert "16.78 GB/s of a link's 300 GB/s" in first.evidence[0]
    assert first.gain_p50 == pytest.approx(100 * (1 - simulate(SOUND)[1] / length), rel=0.1)


@pytest.mark.parametrize("job", [SOUND, Job(elements=1 << 12, collective=100.0)])
def test_sound_links_and_small_messages_raise_no_alarm(job: Job, tmp_path: Path) -> None:
    write(job, tmp_path)
    assert slow_links(read_ranks(sorted(tmp_path.iterdir()))) is None


def test_waiting_for_a_late_rank_is_no_slow_link(tmp_path: Path) -> None:
    write(SOUND.without(compute_of={1: 3.0}), tmp_path)
    ranks = read_ranks(sorted(tmp_path.iterdir()))
    assert slow_links(ranks) is None
    assert verdicts(ranks)[0].cause == "straggler"
