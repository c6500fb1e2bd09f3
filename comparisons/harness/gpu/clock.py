"""Timing on a device: events on a GPU, the wall clock on a CPU, over inputs that rotate past the cache.

[ call set 0 | call set 1 | call set 2 | call set 0 ... ]   one sample = enough calls to last a millisecond
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from harness.statistics import Spread, spread


def synchronize(device: torch.device) -> None:
    """Waits until the device has done what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_call(
    calls: Sequence[Callable[[], object]], device: torch.device, seconds: float, least: int = 10, most: int = 50
) -> Spread:
    """Seconds of one call: median and percentiles over `least` to `most` samples, in about `seconds`.

    `calls` do the same on different inputs and are taken in turns.
    """
    for call in calls:
        call()
    synchronize(device)
    _warm_up(calls, device, min(0.1, seconds / 5))
    start = time.perf_counter()
    for call in calls:
        call()
    synchronize(device)
    once = max(1e-7, (time.perf_counter() - start) / len(calls))
    repeats = max(1, min(200, round(1e-3 / once)))
    samples = max(least, min(most, round(seconds / (once * repeats))))
    turns = [calls[number % len(calls)] for number in range(samples * repeats)]
    groups = [turns[number * repeats : (number + 1) * repeats] for number in range(samples)]
    if device.type == "cuda":
        return spread([entry / repeats for entry in _by_events(groups)])
    return spread([entry / repeats for entry in _by_clock(groups)])


def _warm_up(calls: Sequence[Callable[[], object]], device: torch.device, seconds: float) -> None:
    """Brings a GPU to its working clocks: it idles at a fifth of them."""
    end = time.perf_counter() + seconds
    while device.type == "cuda" and time.perf_counter() < end:
        for call in calls:
            call()
        synchronize(device)


def _by_events(groups: list[list[Callable[[], object]]]) -> list[float]:
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(groups) + 1)]  # type: ignore[no-untyped-call]
    marks[0].record()
    for group, mark in zip(groups, marks[1:], strict=True):
        for call in group:
            call()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]


def _by_clock(groups: list[list[Callable[[], object]]]) -> list[float]:
    found = []
    for group in groups:
        start = time.perf_counter()
        for call in group:
            call()
        found.append(time.perf_counter() - start)
    return found


def sets_for(device: torch.device, bytes_each: float) -> int:
    """How many sets of inputs to rotate, so that a call's inputs have left the cache: 3 to 8."""
    cache = 0
    if device.type == "cuda":
        cache = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or 0)
    return int(max(3, min(8, 2 * cache // max(1, int(bytes_each)) + 1)))


def random_of(device: torch.device, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Normal random numbers: constants would run faster than real data does."""
    return torch.randn(*shape, device=device, dtype=dtype)


def rate(amount: float, time_s: Spread, unit: float) -> dict[str, Any]:
    """`amount` per second in `unit`s, from the median, and the times behind it."""
    return {"per_s": amount / time_s.median / unit, "time_s": time_s.dump()}
