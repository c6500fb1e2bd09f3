"""What-ifs of pipelines with planted faults: the truth is the same job run without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tests.diagnose.operations.job import Job, rows, write

from scalewright.diagnose.diagnose import diagnose
from scalewright.diagnose.operations.slowdown import what_if
from scalewright.diagnose.operations.table import read_table
from scalewright.spec.errors import UserError


def answer(job: Job, folder: Path) -> dict[str, Any]:
    write(job, folder / "job.parquet")
    return diagnose([folder / "job.parquet"])


@pytest.mark.parametrize("job", [Job(), Job(stages=1, replicas=3), Job(replicas=1, micro_batches=3, uneven=1.0)])
def test_the_clock_gives_the_recorded_times(job: Job, tmp_path: Path) -> None:
    length = write(job, tmp_path / "job.parquet")
    asked = what_if(read_table(tmp_path / "job.parquet"))
    assert asked.time(asked.needs) == pytest.approx(length, rel=1e-9)


def test_a_job_without_a_fault_has_no_verdict(tmp_path: Path) -> None:
    result = answer(Job(), tmp_path)
    assert result["verdicts"] == []
    assert result["slowdown"]["factor"] == pytest.approx(1, abs=0.003)
    assert result["kind"] == "trace"
    assert sum(result["breakdown_pct"].values()) == pytest.approx(100)
    assert len(result["steps"]) == 3


def test_a_slow_worker_is_named_with_its_gain(tmp_path: Path) -> None:
    job = Job(slow={(1, 1): 1.8})
    result = answer(job, tmp_path)
    [verdict] = result["verdicts"]
    assert verdict["cause"] == "straggler"
    assert [straggler["rank"] for straggler in result["stragglers"]] == [101]
    before, after = rows(job)[1], rows(Job())[1]
    assert verdict["gain_pct"]["p50"] == pytest.approx(100 * (1 - after / before), abs=4)
    assert result["slowdown"]["by_worst_workers_pct"] > 90
    assert max(result["slowdown"]["workers"], key=lambda some: some["factor"])["rank"] == 101


def test_a_long_last_stage_is_named(tmp_path: Path) -> None:
    job = Job(longest=1.6)
    [verdict] = answer(job, tmp_path)["verdicts"]
    assert verdict["cause"] == "stage imbalance"
    assert verdict["evidence"][0].startswith("stage 3 computes 0.48")
    even = rows(Job(noise=0))[1] * (1 + 0.6 / 4)  # the same work, spread over four stages
    gain = 100 * (1 - even / rows(job)[1])
    assert verdict["gain_pct"]["p90"] == pytest.approx(gain, abs=2)


def test_uneven_micro_batches_are_told_from_slow_workers(tmp_path: Path) -> None:
    result = answer(Job(uneven=1.0, steps=6), tmp_path)
    assert [verdict["cause"] for verdict in result["verdicts"]] == ["uneven micro-batches"]


def test_a_step_that_lacks_an_operation_is_left_out(tmp_path: Path) -> None:
    table, _ = rows(Job())
    kept = [row for row in table if not (row["step"] == 6 and row["optype"] == "optimizer")]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(kept), tmp_path / "job.parquet")
    result = diagnose([tmp_path / "job.parquet"])
    assert [step["step"] for step in result["steps"]] == [5, 7]
    assert result["warnings"] == ["1 of 3 steps lack an operation: left out"]


def test_other_tables_and_damaged_ones_are_refused_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), path)
    with pytest.raises(UserError, match="it has no column dp_rank"):
        diagnose([path])
    path.write_bytes(b"PAR1" + bytes(range(256)) * 4)
    with pytest.raises(UserError, match="its parquet can't be read"):
        diagnose([path])
    table, _ = rows(Job())
    text = pyarrow.Table.from_pylist([row | {"stage": "first"} for row in table])
    pyarrow.parquet.write_table(text, path)
    with pytest.raises(UserError, match="its parquet can't be read"):
        diagnose([path])


def test_steps_that_share_no_operation_take_no_memory(tmp_path: Path) -> None:
    count = 20_000
    columns = {name: np.arange(count) for name in ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc")}
    table = pyarrow.table({**columns, "optype": ["gc"] * count, "start_ts": [0.0] * count, "duration": [1.0] * count})
    pyarrow.parquet.write_table(table, tmp_path / "job.parquet")
    with pytest.raises(UserError, match="don't hold the same operations"):
        diagnose([tmp_path / "job.parquet"])
