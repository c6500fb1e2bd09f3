"""The side channel: files beside a local launcher's store, or a TCP store that may stop answering."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from runs import wait_for
from scalewright.launch.rank import RankContext
from scalewright.train.hangs import board as boards
from scalewright.train.hangs.board import Board, BoardSilent, FolderBoard, StoreBoard, open_board

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
    later = open_board(RankContext(0, 2, 0, 2, uri, attempt=1))
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
