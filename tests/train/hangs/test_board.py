"""The side channel: files beside a local launcher's store, or a TCP store that may stop answering."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from scalewright.launch.context import RankContext
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
