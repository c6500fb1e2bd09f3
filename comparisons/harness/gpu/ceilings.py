"""The two ceilings of a device, measured before and after a part: where they drift, its times are doubtful.

matmul   8192 x 8192 x 8192 in bf16 on random data      copy   4 GiB to 4 GiB, bytes read and written

A GPU that was idle runs at a fifth of its clocks, then above those that it keeps: products warm it until two
windows agree, before the clock starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from harness.gpu.budget import Check
from harness.gpu.clock import random_of, rate, synchronize, time_call

Run = Callable[[], object]
DRIFT = 0.03
AGREE, WINDOW_S, PATIENCE_S = 0.01, 0.3, 4.0  # of the warm-up


def measure(check: Check) -> dict[str, Any]:
    """Both rates, hot."""
    seconds = 0.02 if check.quick else 0.5
    size, elements = (256, 1 << 16) if check.quick else (8192, 1 << 30)
    run = product(check.device, size)
    warmed = warm_up(check.device, run)
    matmul = rate(2.0 * size**3, time_call([run], check.device, seconds), 1e12)
    copied = rate(8.0 * elements, time_call([copy(check.device, elements)], check.device, seconds), 1e9)
    check.matmul_flops = matmul["per_s"] * 1e12
    del run
    if check.device.type == "cuda":
        torch.cuda.empty_cache()
    return {"matmul_bf16_tflops": matmul, "copy_gb": copied, "matmul_size": size, "warm_up_s": warmed}


def product(device: torch.device, size: int) -> Run:
    """A square product."""
    left, right = random_of(device, size, size), random_of(device, size, size)
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def copy(device: torch.device, elements: int) -> Run:
    """A large copy."""
    source = random_of(device, elements, dtype=torch.float32)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def warm_up(device: torch.device, run: Run) -> float:
    """Runs until two windows take the same within 1%; the seconds that this took."""
    started, before = time.perf_counter(), 0.0
    while device.type == "cuda" and time.perf_counter() - started < PATIENCE_S:
        window, count = time.perf_counter(), 0
        while time.perf_counter() - window < WINDOW_S:
            for _ in range(20):
                run()
            synchronize(device)
            count += 20
        pace = count / (time.perf_counter() - window)
        if before and abs(pace / before - 1) < AGREE:
            break
        before = pace
    return round(time.perf_counter() - started, 2)


def drift(start: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
    """How far the ceilings moved, and whether that is more than allowed."""
    moved = {key: end[key]["per_s"] / start[key]["per_s"] - 1 for key in ("matmul_bf16_tflops", "copy_gb")}
    return {**moved, "drifted": any(abs(value) > DRIFT for value in moved.values()), "allowed": DRIFT}
