"""The two ceilings of a device, measured at the start and the end: a run in which they drift is void.

matmul   8192 x 8192 x 8192 in bf16 on random data      copy   4 GiB to 4 GiB, bytes read and written
"""

from __future__ import annotations

from typing import Any

import torch

from harness.gpu.budget import Check
from harness.gpu.clock import random_of, rate, time_call
from harness.statistics import Spread

DRIFT = 0.03


def measure(check: Check, when: str) -> None:
    """Measures both and notes them under `when`."""
    seconds = 0.05 if check.quick else 1.0
    size, elements = (256, 1 << 16) if check.quick else (8192, 1 << 30)
    found = {
        "matmul_bf16_tflops": rate(2.0 * size**3, product(check.device, size, seconds), 1e12),
        "copy_gb": rate(8.0 * elements, copy(check.device, elements, seconds), 1e9),
        "matmul_size": size,
        "copied_bytes": 4 * elements,
    }
    check.note(when, found)


def product(device: torch.device, size: int, seconds: float) -> Spread:
    """Seconds of a square product."""
    left, right = random_of(device, size, size), random_of(device, size, size)
    out = torch.empty_like(left)
    return time_call([lambda: torch.mm(left, right, out=out)], device, seconds)


def copy(device: torch.device, elements: int, seconds: float) -> Spread:
    """Seconds of a large copy."""
    source = random_of(device, elements, dtype=torch.float32)
    target = torch.empty_like(source)
    return time_call([lambda: target.copy_(source)], device, seconds)


def drift(start: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
    """How far the ceilings moved, and whether that voids the run."""
    moved = {key: end[key]["per_s"] / start[key]["per_s"] - 1 for key in ("matmul_bf16_tflops", "copy_gb")}
    return {**moved, "void": any(abs(value) > DRIFT for value in moved.values()), "allowed": DRIFT}
