"""How much memory a rank takes: a row of metrics has the largest of all ranks (`train/step.py`).

With `profile: {memory: true}` also the history of a GPU's allocations, written when one fails:

    traces/memory-rank00003.pickle ──► scalewright diagnose ──► the peak, and the lines of code that hold it

torch notes every allocation with its stack, which costs microseconds each: only where it was asked for.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch


def memory_gib(device: torch.device) -> float:
    """This rank's memory in GiB: the most that torch allocated on a GPU, else what is resident. Waits for no device."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return float(_process(os.getpid()).memory_info().rss) / 2**30


@cache
def _process(pid: int) -> Any:
    import psutil

    return psutil.Process(pid)


ENTRIES = 1_000_000  # the last allocations and frees, about 100 MB of host memory


def keep_history(asked: bool, device: torch.device) -> None:
    """From now on torch notes allocations; nothing where it wasn't asked for, or there is no GPU."""
    if asked and device.type == "cuda":
        torch.cuda.memory._record_memory_history(max_entries=ENTRIES)


def write_history(asked: bool, folder: Path, rank: int, device: torch.device) -> Path | None:
    """Writes what was noted; None where nothing was, or the disk refuses it."""
    if not asked or device.type != "cuda":
        return None
    path = folder / "traces" / f"memory-rank{rank:05d}.pickle"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]
        return path
    return None
