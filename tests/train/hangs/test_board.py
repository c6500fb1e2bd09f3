"""The side channel: files beside a local launcher's store, or a TCP store that may stop answering.

Who is behind, from positions alone: twelve ways in which ranks stop meeting each other.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import psutil
import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from runs import wait_for
from scalewright.launch.rank import RankContext
from scalewright.train.hangs import board as boards
from scalewright.train.hangs.board import (
    Board,
    BoardSilent,
    FolderBoard,
    Position,
    Process,
    StoreBoard,
    Waiting,
    judge,
    open_board,
)

HOST = """
import time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, None, is_master=True)
print(store.port, flush=True)
time.sleep(600)
"""


def use(first: Board, second: Board) -> None:
    """Two ranks on one board."""
    assert second.read("ask-0") is None
    first.post("ask-0", {"by": 1, "sizes": [3, 4]})
    assert second.read("ask-0") == {"by": 1, "sizes": [3, 4]}
    first.post("verdict-0", None)
    assert second.read("verdict-0") is None
    assert second.claim("verdict-0")
    assert not first.claim("verdict-0")
    assert first.claim("verdict-1")


def test_files_beside_the_launchers_store(tmp_path):
    uri = (tmp_path / "a store").as_uri()
    ranks = [open_board(RankContext(rank, 2, rank, 2, uri, starter="local")) for rank in (0, 1)]
    assert all(isinstance(board, FolderBoard) for board in ranks)
    use(*ranks)
    later = open_board(RankContext(0, 2, 0, 2, uri, meeting="1"))
    assert later.read("ask-0") is None, "an attempt sees nothing of the one before"


@pytest.mark.skipif(sys.platform == "win32", reason="stops a process by a signal")
def test_a_store_and_one_whose_host_is_stopped():
    host = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True)
    try:
        assert host.stdout is not None
        address = f"tcp://127.0.0.1:{int(host.stdout.readline())}"
        first, second = (open_board(RankContext(rank, 2, rank, 2, address)) for rank in (0, 1))
        assert isinstance(first, StoreBoard)
        use(first, second)
        os.kill(host.pid, signal.SIGSTOP)
        stopped = psutil.STATUS_STOPPED  # not at once on a busy machine: it may still answer
        wait_for(lambda: psutil.Process(host.pid).status() == stopped, 30, "the stop")
        start = time.monotonic()
        with pytest.raises(BoardSilent):
            first.read("ask-0")
        with pytest.raises(BoardSilent):
            first.claim("verdict-2")  # at once: its caller is stuck in the other
        assert time.monotonic() - start < 60
        os.kill(host.pid, signal.SIGCONT)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                assert first.read("ask-0") == {"by": 1, "sizes": [3, 4]}
                break
            except BoardSilent:
                time.sleep(0.1)
        else:
            pytest.fail("the store answers again, and nobody hears it")
    finally:
        host.kill()
        host.communicate()


def test_a_store_that_is_not_there_yet_costs_only_the_answers(monkeypatch):
    """No rank fails at its start for a slow connection; no traceback of a helper thread; connected later."""
    monkeypatch.setattr(boards, "CONNECT_S", 0.2)
    uncaught: list[object] = []
    monkeypatch.setattr(threading, "excepthook", uncaught.append)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    late = StoreBoard("127.0.0.1", port, "late")
    for _ in range(2):
        with pytest.raises(BoardSilent):
            late.read("ask-0")
    monkeypatch.setattr(boards, "CONNECT_S", 30.0)
    store = TCPStore("127.0.0.1", port, None, is_master=True, wait_for_workers=False)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            late.post("ask-0", 3)
            assert late.read("ask-0") == 3
            break
        except BoardSilent:  # the call before is still at it
            time.sleep(0.1)
    else:
        pytest.fail("it never connects")
    assert not uncaught
    del store


ALL = (0, 1, 2, 3)
TP = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}


def waits(kind: str, number: int, group: str = "dp", sizes: tuple[int, ...] = (8,), **more: Any) -> Waiting:
    """A rank's wait in a collective of all ranks, or of `members`."""
    members = more.get("members", ALL)
    return Waiting(group, group, kind, number, sizes, more.get("where", f"{kind}.py:1"), members)


def at(rank: int, call: Waiting | None, where: str = "", counts: dict[str, int] | None = None) -> Position:
    """A position; what a rank waits in is the last that it has begun."""
    begun = {**({call.group: call.number} if call else {}), **(counts or {})}
    recent = {call.group: {call.number: (call.kind, call.sizes)}} if call and call.group else {}
    place = where or (call.where if call else "idle.py:1")
    axes = {call.group: call.axis} if call else {}
    return Position(rank, 11, "step", place, call, begun, recent, axes)


def message(rank: int, peer: int, kind: str = "receive") -> Waiting:
    return Waiting("", "pp", kind, 3, (), f"pipeline.py:{rank}", (rank, peer))


REDUCE = waits("all_reduce", 812)
CASES: dict[str, tuple[dict[int, Position | None], int, str]] = {
    "stopped": (
        {0: at(0, REDUCE), 1: at(1, REDUCE), 2: at(2, REDUCE), 3: None},
        3,
        "rank 3 does not answer: its process is stopped, or its machine is gone; ranks 0, 1 and 2 wait in "
        "all_reduce number 812 of dp (all_reduce.py:1)",
    ),
    "in Python": (
        {0: at(0, REDUCE), 1: at(1, None, "loss.py:7", {"dp": 811}), 2: at(2, REDUCE), 3: at(3, REDUCE)},
        1,
        "rank 1 is at loss.py:7 (after step 11, step); ranks 0, 2 and 3 wait in all_reduce number 812",
    ),
    "data loader": (
        {**{r: at(r, REDUCE) for r in (1, 2, 3)}, 0: at(0, None, "scalewright/data/prefetch.py:50")},
        0,
        "rank 0 is at scalewright/data/prefetch.py:50",
    ),
    "skipped": (  # and met the others with its next, which is another
        {**{r: at(r, REDUCE) for r in (0, 1, 3)}, 2: at(2, waits("all_gather", 812, where="x.py:3"))},
        2,
        "rank 2 began all_gather of 8 elements as number 812 of dp (x.py:3) where ranks 0, 1 and 3 began "
        "all_reduce of 8 elements (all_reduce.py:1)",
    ),
    "shape": (
        {**{r: at(r, REDUCE) for r in (0, 2, 3)}, 1: at(1, waits("all_reduce", 812, sizes=(9,)))},
        1,
        "all_reduce of 9 elements",
    ),
    "shape, and on": (  # it has left what the others are still in
        {
            **{r: at(r, REDUCE) for r in (0, 2, 3)},
            1: Position(1, 11, "step", "y.py:1", None, {"dp": 812}, {"dp": {812: ("all_reduce", (9,))}}, {"dp": "dp"}),
        },
        1,
        "all_reduce of 9 elements as number 812 of dp (y.py:1)",
    ),
    "order": (  # rank 3 begins b before a
        {
            **{r: at(r, waits("all_reduce", 5, "a"), counts={"b": 4}) for r in (0, 1, 2)},
            3: at(3, waits("all_reduce", 5, "b"), counts={"a": 4}),
        },
        3,
        "ranks 0, 1 and 2 and rank 3 wait for each other: rank 3 in all_reduce number 5 of b",
    ),
    "through another axis": (  # 0 waits for 1 in tp, 1 waits for 3 in dp, 2 waits for 3 in tp
        {
            0: at(0, waits("all_gather", 7, "tp", members=TP[0])),
            1: at(1, waits("all_reduce", 3, "dp1", members=(1, 3)), counts={"tp": 6}),
            2: at(2, waits("all_gather", 7, "tp2", members=TP[2])),
            3: at(3, None, "sleep.py:2", {"tp2": 6, "dp1": 2}),
        },
        3,
        "rank 3 is at sleep.py:2",
    ),
    "pipeline": (
        {0: at(0, message(0, 1)), 1: at(1, message(1, 2)), 2: at(2, message(2, 3)), 3: at(3, None, "a.py:1")},
        3,
        "ranks 0, 1 and 2 wait in receive number 3 of pp (pipeline.py:2)",
    ),
    "pipeline, stopped": (
        {0: at(0, message(0, 1)), 1: None, 2: at(2, message(2, 1)), 3: at(3, message(3, 2, "send"))},
        1,
        "rank 1 does not answer",
    ),
    "one of two groups": (  # ranks 2 and 3 work on
        {
            0: at(0, waits("broadcast", 9, "tp", members=TP[0])),
            1: at(1, None, "slow.py:4", {"tp": 8}),
            2: at(2, None, "fine.py:1"),
            3: at(3, None, "fine.py:1"),
        },
        1,
        "rank 1 is at slow.py:4 (after step 11, step); rank 0 waits in broadcast number 9 of tp",
    ),
    "two of four stopped": ({0: at(0, REDUCE), 1: None, 2: None, 3: at(3, REDUCE)}, 1, "rank 1 does not answer"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rank_that_the_others_wait_for(case):
    positions, rank, text = CASES[case]
    through_json = {
        number: None if each is None else Position.parse(json.loads(json.dumps(each.dump())))
        for number, each in positions.items()
    }
    assert through_json == positions
    verdict = judge(through_json)
    assert verdict is not None
    assert verdict.rank == rank, verdict.text
    assert text in verdict.text
    assert set(verdict.fields()) == {"rank", "host", "pid", "axis", "collective", "number", "where"}


def test_the_process_of_a_rank_that_does_not_answer():
    """All ranks look alike in `ps`: the line has the pid and the host, and the event both."""
    verdict = judge(CASES["stopped"][0], lambda rank: Process(f"node{rank}", 4320 + rank))
    assert verdict is not None
    assert verdict.text.startswith("rank 3 (pid 4323 on node3) does not answer: its process is stopped")
    assert (verdict.fields()["host"], verdict.fields()["pid"]) == ("node3", 4323)


def test_nobody_waits():
    """All are slow, or all wait for what all have begun: no rank is to blame."""
    assert judge({rank: at(rank, None) for rank in ALL}) is None
    assert judge({rank: at(rank, REDUCE) for rank in ALL}) is None
    assert judge({0: at(0, None), 1: None}) is None


def test_uneven_sizes_of_an_all_to_all_are_no_difference():
    calls = {rank: at(rank, waits("all_to_all", 4, sizes=(rank + 1,))) for rank in (0, 1, 2)}
    verdict = judge({**calls, 3: at(3, None, "here.py:1", {"dp": 3})})
    assert verdict is not None
    assert verdict.rank == 3
