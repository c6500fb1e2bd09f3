"""How much memory a rank takes: a row of metrics has the largest of all ranks (`train/step.py`)."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch


def memory_gib(device: torch.device) -> float:
    """Memory of this rank in GiB: the most that torch allocated on a GPU, else what the process has resident.

    Neither waits for the device.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return float(_process(os.getpid()).memory_info().rss) / 2**30


@cache
def _process(pid: int) -> Any:
    import psutil

    return psutil.Process(pid)
