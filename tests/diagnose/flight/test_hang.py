"""Hangs in dumps as NCCL and Gloo write them: the rank that it began with is the root."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from scalewright.diagnose.diagnose import diagnose
from scalewright.diagnose.flight.hang import Hang, find_hang, read_dump

GROUPS = {
    "0": ("default_pg", [0, 1, 2, 3]),
    "1": ("tp", [0, 1]),
    "2": ("tp", [2, 3]),
    "3": ("dp", [0, 2]),
    "4": ("dp", [1, 3]),
}
Call = tuple[str, str, bool]  # group, operation, done


def write(
    folder: Path,
    calls: Mapping[int, Sequence[Call]],
    gloo: bool = False,
    shapes: Mapping[int, Any] | None = None,
    outputs: Mapping[int, Any] | None = None,
) -> None:
    """A dump a rank, of calls in order; numbers count within each group."""
    for rank, made in calls.items():
        numbers: dict[str, int] = {}
        entries = []
        for place, (group, name, done) in enumerate(made):
            numbers[group] = numbers.get(group, 0) + 1
            entries.append({
                "frames": [{"name": "all_reduce", "filename": "torch/distributed/distributed_c10d.py", "line":
                1},
                           {"name": "step", "filename": "/home/me/train.py", "line": 31}],
                "process_group": (group, GROUPS[group][0]), "collective_seq_id": numbers[group], "p2p_seq_id":
                0, "profiling_name": f"{'gloo' if gloo else 'nccl'}:{name}", "is_p2p": False, "input_sizes":
                (shapes or {}).get(rank, [[8]]), "output_sizes": (outputs or {}).get(rank),
                "input_dtypes": ["Float"], "state": "scheduled" if gloo else
                "completed" if done else "started", "retired": done, "time_created_ns": place,
            })  # fmt: skip
        config = {
            g: {"name": g, "desc": about, "ranks": str(ranks)} for g, (about, ranks) in GROUPS.items() if rank in ranks
        }
        config = {"": {"name": "", "desc": "", "ranks": "[]"}} if gloo else config
        data = {"version": "2.10", "pg_config": config, "entries": entries}
        (folder / f"trace_rank_{rank}").write_bytes(pickle.dumps(data, 2))


def hang(folder: Path) -> Hang:
    return find_hang([read_dump(path) for path in sorted(folder.iterdir())])


def steps(rank: int, done: bool = True) -> list[Call]:
    tp, dp = ("1" if rank < 2 else "2"), ("3" if rank % 2 == 0 else "4")
    return [(tp, "all_reduce", True), (dp, "all_reduce", True), ("0", "all_reduce", done)]


@pytest.mark.parametrize("gloo", [False, True])
class TestRoot:
    """The same faults in both forms of dumps."""

    def test_all_is_well(self, tmp_path: Path, gloo: bool) -> None:
        write(tmp_path, {rank: steps(rank) for rank in range(4)}, gloo)
        assert hang(tmp_path) == Hang([], (), [])

    def test_a_rank_never_comes(self, tmp_path: Path, gloo: bool) -> None:
        write(tmp_path, {rank: steps(rank, done=False)[: 2 if rank == 3 else 3] for rank in range(4)}, gloo)
        found = hang(tmp_path)
        assert found.root == (3,)
        assert (found.findings[0].kind, found.findings[0].waiting) == ("missing", (0, 1, 2))
        assert found.findings[0].frames == ("step (train.py:31)",)

    def test_a_rank_calls_something_else(self, tmp_path: Path, gloo: bool) -> None:
        calls = {rank: steps(rank, done=False) for rank in range(4)}
        calls[1][2] = ("0", "_allgather_base", False)
        write(tmp_path, calls, gloo)
        assert (hang(tmp_path).root, hang(tmp_path).findings[0].kind) == ((1,), "mismatch")

    def test_a_rank_has_another_shape(self, tmp_path: Path, gloo: bool) -> None:
        write(tmp_path, {rank: steps(rank, done=False) for rank in range(4)}, gloo, {2: [[9]]})
        found = hang(tmp_path)
        assert 2 in found.root
        assert found.findings[0].kind == "mismatch"

    def test_the_root_of_a_chain_is_the_one_that_waits_for_nobody(self, tmp_path: Path, gloo: bool) -> None:
        calls = {
            0: [*steps(0), ("1", "all_reduce", False)],  # waits for 1
            1: [*steps(1), ("4", "all_reduce", False)],  # which waits for 3
            2: [*steps(2), ("2", "all_reduce", False)],  # and so does 2
            3: steps(3),
        }
        write(tmp_path, calls, gloo)
        found = hang(tmp_path)
        assert found.root == (3,)
        assert 3 in found.findings[0].culprits

    def test_ranks_that_cross_wait_in_a_circle(self, tmp_path: Path, gloo: bool) -> None:
        calls = {rank: steps(rank) for rank in range(4)}
        calls[0] += [("3", "all_reduce", False)]
        calls[2] += [("2", "all_reduce", False)]
        calls[3] += [("4", "all_reduce", False)]
        calls[1] += [("1", "all_reduce", False)]
        write(tmp_path, calls, gloo)
        found = hang(tmp_path)
        assert found.root == (0, 1, 2, 3)
        assert {finding.kind for finding in found.findings} == {"crossed"}


def test_a_rank_without_a_dump_is_named(tmp_path: Path) -> None:
    write(tmp_path, {rank: steps(rank, done=False) for rank in range(3)})
    found = hang(tmp_path)
    assert (found.root, found.findings[0].kind, found.warnings) == ((3,), "absent", ["no dump of rank 3"])


def test_the_answer_says_it_in_a_sentence(tmp_path: Path) -> None:
    write(tmp_path, {rank: steps(rank, done=False)[: 2 if rank == 3 else 3] for rank in range(4)})
    answer = diagnose([tmp_path])
    assert (answer["kind"], answer["root_ranks"]) == ("flight_recorder", [3])
    [verdict] = answer["verdicts"]
    assert verdict["evidence"] == [
        "rank 3 never came to default_pg #1 (all_reduce [[8]] Float), in which ranks 0, 1, 2 wait"
    ]


@pytest.mark.parametrize(
    ("sent", "received", "done", "root"),
    [
        ([8, 8, 4, 8], [8, 8, 4, 8], False, (2,)),  # equal parts of half the size
        ([8, 8, 8, 8], [8, 8, 8, 4], False, (3,)),  # more is sent than received
        ([8, 8, 4, 8], [8, 8, 8, 8], False, (2,)),
        ([8, 8, 8, 8], [2, 6, 12, 12], False, ()),  # tokens to experts: uneven, and all that is sent is received
        ([3, 5, 7, 9], [9, 7, 5, 3], False, ()),
        ([8, 8, 4, 8], [8, 8, 4, 8], True, ()),
        ([8, 8, 4, 8], None, False, ()),  # an older dump
    ],
)
def test_sizes_of_all_to_all_disagree(
    tmp_path: Path, sent: list[int], received: list[int] | None, done: bool, root: tuple[int, ...]
) -> None:
    shapes = {rank: [(size, 16)] for rank, size in enumerate(sent)}
    outputs = {rank: [(size, 16)] for rank, size in enumerate(received or [])}
    calls: dict[int, list[Call]] = {rank: [("0", "all_to_all", done)] for rank in range(4)}
    write(tmp_path, calls, shapes=shapes, outputs=outputs)
    assert hang(tmp_path).root == root
