"""Asynchronous readback: numbers leave a GPU one step late, so that the host never waits for the newest step.

    host     launch 1 | launch 2 | read 1 | launch 3 | read 2 | ...
    device          step 1    |   step 2      |   step 3

On a CPU there is nothing to wait for, and each step's numbers are read at once.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Readback:
    """Hands step reports over in order, late by one step on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._late = device.type == "cuda"
        self._pending: tuple[int, Tensor, torch.cuda.Event] | None = None

    def push(self, step: int, report: Tensor) -> list[tuple[int, list[float]]]:
        """Takes a step's report; gives those that can be read without waiting for it."""
        if not self._late:
            return [(step, report.tolist())]
        before = self.flush()
        values = torch.empty(report.shape, dtype=report.dtype, pin_memory=True)
        values.copy_(report, non_blocking=True)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        self._pending = step, values, ready
        return before

    def flush(self) -> list[tuple[int, list[float]]]:
        """Waits for the report that is still on its way, if any."""
        pending, self._pending = self._pending, None
        if pending is None:
            return []
        step, values, ready = pending
        ready.synchronize()
        return [(step, values.tolist())]
