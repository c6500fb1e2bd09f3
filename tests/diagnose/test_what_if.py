"""What-ifs: a replay with a cost changed takes as long as the job that truly has that cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.job import Job, simulate, write

from scalewright.diagnose.ranks import read_ranks
from scalewright.diagnose.what_if import what_if
from scalewright.spec.errors import UserError

JOB = Job(kernel=100.0, collective=200.0, steps=2)
LATE = JOB.without(compute_of={2: 1.5})


def effects(job: Job, folder: Path, *texts: str) -> list[dict[str, Any]]:
    write(job, folder)
    return what_if(read_ranks(sorted(folder.iterdir())), texts)


@pytest.mark.parametrize(
    ("job", "text", "changed"),
    [
        (JOB, "compute=0.5", JOB.without(kernel=50.0)),
        (JOB, "compute=2", JOB.without(kernel=200.0)),
        (JOB, "matrix product=0.5", JOB.without(kernel=50.0)),
        (JOB, "transfer=0.25", JOB.without(collective=50.0)),
        (JOB, "default_pg=3", JOB.without(collective=600.0)),
        (JOB, "host=8", JOB.without(host=200.0)),
        (LATE, "stragglers=0", JOB),
        (LATE, "rank2.compute=0.6667", JOB),
        (LATE, "rank2.matrix product=0.6667", JOB),
        (JOB.without(sync=True), "waits=0", JOB),
        (JOB.without(data=20_000.0), "data=0", JOB),
    ],
    ids=lambda some: some if isinstance(some, str) else "",
)
def test_a_changed_cost_takes_as_long_as_the_job_that_has_it(job: Job, text: str, changed: Job, tmp_path: Path) -> None:
    """5%: where host and device are as fast, the replay keeps an order that the true job would change."""
    (effect,) = effects(job, tmp_path, text)
    assert effect["window_s"] * 1e6 == pytest.approx(simulate(changed)[1], rel=0.05)
    assert abs(effect["gain_pct"]) > 3


def test_several_changes_are_shown_alone_and_together(tmp_path: Path) -> None:
    first, second, both = effects(JOB, tmp_path, "compute=0.5", "transfer=0")
    assert both["change"] == "compute=0.5, transfer=0"
    assert both["gain_pct"] > max(first["gain_pct"], second["gain_pct"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("compute", "no NAME=FACTOR"),
        ("compute=-1", "no NAME=FACTOR"),
        ("compute=nan", "no NAME=FACTOR"),
        ("=2", "no NAME=FACTOR"),
        ("softmax=0.5", "take compute, memcpy, .*matrix product"),
        ("rank9.compute=0.5", "no trace of rank 9"),
        ("rank2.transfer=0.5", "nothing in the trace has the name 'transfer'"),
        ("waits=2", "write `waits=0`"),
    ],
)
def test_a_wrong_change_is_one_sentence_with_the_way_out(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=problem):
        effects(JOB, tmp_path, text)
