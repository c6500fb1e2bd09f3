"""The process behind a rank, what a stuck one leaves, and what the ranks that are left began when one has gone.

rank 3   process-3 = {host: node7, pid: 4321}   ──► board ──►   "rank 3 (pid 4321 on node7) does not answer"
         hangs/rank-00003.txt, .json            every thread's stack; the last collectives of torch's flight recorder

Host and pid are posted once, since all ranks look alike in `ps`. After a connection to another rank broke, the others
compare what they began last: Gloo ends a process that is sent more than it expects, and then a difference is found. A
rank that was killed, or failed by itself, posts nothing.
"""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from scalewright.train.hangs.board import Board, BoardSilent, Position, Process
from scalewright.train.hangs.position import flights, source_line


class Processes:
    """The processes of all ranks, as far as they have been posted."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._seen: dict[int, Process] = {}

    def introduce(self, board: Board) -> None:
        """Posts this rank's process, once, and reads rank 0's; raises BoardSilent. Rank 0's is kept from the start: the
        board may live in that process, and be silent when it is needed."""
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


class Stacks:
    """One rank's two files. A folder that can't be written to is no reason to stop watching."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.name = folder, f"rank-{rank:05d}"

    def write(self, here: Position) -> None:
        """Writes the stacks of all threads, and the collectives without their lines of source."""
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / f"{self.name}.txt", "w", encoding="utf-8") as file:
                waits = f", in {here.waiting.describe()}" if here.waiting else ""
                file.write(f"rank {here.rank} after step {here.step} ({here.phase}), at {here.where}{waits}\n\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
            self._write_collectives(json.dumps(flights()))

    def write_source_lines(self, stuck: Callable[[], bool]) -> None:
        """Writes the collectives with their lines of source, if the rank is still stuck: torch may take seconds."""
        with suppress(OSError):
            entries = json.dumps(flights(stacks=True))
            if stuck():
                self._write_collectives(entries)

    def _write_collectives(self, entries: str) -> None:
        (self.folder / f"{self.name}.json").write_text(entries, encoding="utf-8")


# The words of Gloo and of torch's store when a peer has gone.
WORDS = ("onnection closed", "onnection reset", "roken pipe", "onnection was likely closed")
PATIENCE_S = 1.5  # that ranks wait for each other's posts


def is_broken(error: RuntimeError) -> bool:
    """Whether a collective's error is that of a peer that has gone."""
    return any(word in str(error) for word in WORDS)


def last_collectives(board: Board, here: Position, error: RuntimeError, world: int) -> dict[int, dict[str, object]]:
    """Posts this rank's position, and gives those of all ranks that post theirs; raises BoardSilent."""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    where = source_line(reversed(frames)) or here.where
    board.post(f"last-{here.rank}", replace(here, where=where, waiting=None).dump())
    end = time.monotonic() + PATIENCE_S
    posts: dict[int, dict[str, object]] = {}
    while len(posts) < world and time.monotonic() < end:
        time.sleep(0.05)
        read = {rank: board.read(f"last-{rank}") for rank in range(world)}
        posts = {rank: post for rank, post in read.items() if post is not None}
    return posts
