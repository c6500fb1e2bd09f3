"""Ranks that go wrong on purpose, in a user's loss: one of them, at one step."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from loss_function import cross_entropy
from scalewright.data.batch import Batch


def wrong_on_one(
    logits: Tensor, targets: Tensor, how: str, rank: int = 1, at: int = 6, folder: str = "", pause: float = 0.02
) -> Tensor:
    """Our own loss, and at its `at`-th call on `rank` what `how` names; each call waits a little."""
    wrong_on_one.calls = getattr(wrong_on_one, "calls", 0) + 1  # type: ignore[attr-defined]
    time.sleep(pause)
    mine, now = dist.get_rank() == rank, wrong_on_one.calls == at  # type: ignore[attr-defined]
    if how == "stop" and mine and now:
        Path(folder, "stopped").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "sleep" and mine and now:
        time.sleep(3600.0)
    if how == "skip" and not (mine and now):
        dist.all_reduce(torch.ones(3))
    if how == "shape" and now:
        dist.all_reduce(torch.ones(5000 if mine else 4000))
    if how == "order" and now:
        first, second = dist.new_group(), dist.new_group()
        for group in (second, first) if mine else (first, second):
            dist.all_reduce(torch.ones(8), group=group)
    return cross_entropy(logits, targets)[0]


class Stalling:
    """Data of one rank that don't arrive from one sample on."""

    def __init__(self, split: str, seed: int, rank: int, at: int, seq_len: int = 16) -> None:
        from parts import Counting

        self._data, self.rank, self.at, self.seq_len = Counting(split, seed, seq_len), rank, at, seq_len

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, indices: Sequence[int] | range) -> Batch:
        """These samples, if this rank gets them."""
        if dist.get_rank() == self.rank and max(indices) >= self.at:
            time.sleep(3600.0)
        return self._data.batch(indices)
