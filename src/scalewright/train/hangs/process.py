"""The process behind a rank: its host and pid, posted once, since all ranks look alike in `ps`.

rank 3   process-3 = {host: node7, pid: 4321}   ──► board ──►   "rank 3 (pid 4321 on node7) does not answer"
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

from scalewright.train.hangs.board import Board, BoardSilent
from scalewright.train.hangs.verdict import Process


class Processes:
    """The processes of all ranks, as far as they have been posted."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._seen: dict[int, Process] = {}

    def introduce(self, board: Board) -> None:
        """Posts this rank's process, once, and reads rank 0's; raises BoardSilent.

        Rank 0's is kept from the start: the board may live in that process, and be silent when it is needed.
        """
        if self.rank not in self._seen:
            here = Process(socket.gethostname(), os.getpid())
            board.post(f"process-{self.rank}", asdict(here))
            self._seen[self.rank] = here
        if 0 not in self._seen:
            self.find(0, board)

    def find(self, rank: int, board: Board | None) -> Process | None:
        """A rank's process; None when it was never posted, or the board doesn't answer."""
        if rank not in self._seen and board is not None:
            with suppress(BoardSilent, OSError):
                if (post := board.read(f"process-{rank}")) is not None:
                    self._seen[rank] = Process(**post)
        return self._seen.get(rank)

    def lost(self, ranks: Sequence[int], board: Board | None) -> str:
        """The error of a rank whose connection broke; `ranks` are those that did not report the same."""
        ended = "the connection to another rank ended"
        if len(ranks) == 1:
            process = self.find(ranks[0], board)
            ended = f"rank {ranks[0]}'s connection ended" + (f" ({process})" if process else "")
        return f"{ended}: it has failed or was killed; its own error has the reason"
