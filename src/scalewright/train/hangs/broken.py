"""After a connection to another rank broke: the ranks that are left compare what they began last.

Gloo ends a process that is sent more than it expects: then a difference is found. A rank that was killed, or
failed by itself, posts nothing.
"""

from __future__ import annotations

import time
import traceback
from dataclasses import replace

from scalewright.train.hangs.board import Board
from scalewright.train.hangs.position import source_line
from scalewright.train.hangs.verdict import Position

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
