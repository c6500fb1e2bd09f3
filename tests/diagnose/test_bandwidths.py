"""Bus bandwidths of generated jobs: bytes over the transfer, by nccl-tests' factors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.job import Job, write

from scalewright.diagnose.bandwidths import Bandwidth, Wire, bandwidths
from scalewright.diagnose.ranks import read_ranks

JOB = Job(ranks=4, steps=1, layers=3, collective=200.0)
BYTES = 16 << 20  # job.py: 2^23 numbers in bf16


def measured(folder: Path) -> list[Bandwidth]:
    ranks = read_ranks(sorted(folder.iterdir()))
    return bandwidths([rank.trace for rank in ranks.ranks], ranks.matched)


def renamed(folder: Path, **changes: Any) -> None:
    for path in folder.iterdir():
        document = json.loads(gzip.decompress(path.read_bytes()))
        for event in document["traceEvents"]:
            if "Collective name" in event["args"]:
                event["args"] |= {name.replace("_", " "): value for name, value in changes.items()}
        path.write_bytes(gzip.compress(json.dumps(document).encode()))


def test_waiting_for_a_late_rank_is_no_part_of_it(tmp_path: Path) -> None:
    write(JOB.without(compute_of={2: 2.0}), tmp_path)
    (rate,) = measured(tmp_path)
    assert (rate.kind, rate.calls, rate.largest, rate.waits) == ("all_reduce", 3, BYTES, False)
    assert rate.algorithm == pytest.approx(BYTES / 200e-6, rel=1e-3)
    assert rate.bus == pytest.approx(BYTES / 200e-6 * 2 * 3 / 4, rel=1e-3)
    assert rate.wire == Wire(300e9)  # A100's NVLink, one way
    assert rate.imbalance == 1


def test_one_ranks_kernels_have_the_waiting_in_them(tmp_path: Path) -> None:
    write(JOB.without(compute_of={2: 2.0}), tmp_path)
    for path in sorted(tmp_path.iterdir())[1:]:
        path.unlink()
    (rate,) = measured(tmp_path)
    assert rate.waits
    assert rate.algorithm < 0.9 * BYTES / 200e-6


@pytest.mark.parametrize(
    ("name", "kind", "factor"),
    [("_allgather_base", "all_gather", 3 / 4), ("_reduce_scatter_base", "reduce_scatter", 3 / 4),
     ("all_to_allv", "all_to_all", 3 / 4), ("broadcast", "broadcast", 1.0)],
)  # fmt: skip
def test_kinds_by_their_names(name: str, kind: str, factor: float, tmp_path: Path) -> None:
    write(JOB, tmp_path)
    renamed(tmp_path, Collective_name=name)
    (rate,) = measured(tmp_path)
    assert rate.kind == kind
    assert rate.bus == pytest.approx(factor * rate.algorithm)


@pytest.mark.parametrize("changes", [{"Collective_name": "wait"}, {"dtype": "Complex"}, {"In_msg_nelems": 0}])
def test_what_is_not_known_is_not_counted(changes: dict[str, Any], tmp_path: Path) -> None:
    write(JOB, tmp_path)
    renamed(tmp_path, **changes)
    assert measured(tmp_path) == []


def test_a_group_over_several_nodes_has_no_link(tmp_path: Path) -> None:
    write(JOB, tmp_path)
    renamed(tmp_path, Process_Group_Ranks="[0, 8, 16, 24]")
    (rate,) = measured(tmp_path)
    assert rate.wire is None
