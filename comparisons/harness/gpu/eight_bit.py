"""fp8 matmuls, where this torch and this device have them: one scale a tensor, a row, or a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.gpu.budget import Check
from harness.gpu.clock import rate, time_call

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0  # of e4m3


def fp8(check: Check) -> None:
    """TFLOP/s at square sizes, with the error against the same product in fp32."""
    if check.device.type == "cuda" and torch.cuda.get_device_capability(check.device) < (8, 9):
        check.note("skipped", "fp8 matmuls need compute capability 8.9")
        return
    seconds = 0.01 if check.quick else 0.2
    for size in (128,) if check.quick else (4096, 8192, 14336):
        left = torch.randn(size, size, device=check.device)
        right = torch.randn(size, size, device=check.device)
        for name, make in (("tensorwise", tensorwise), ("rowwise", rowwise), ("blockwise", blockwise)):
            key = f"{name} {size}"
            if not check.want(key):
                continue
            with check.trying(key):
                run = make(left, right)
                found = rate(2.0 * size**3, time_call([run], check.device, seconds), 1e12)
                check.note(key, {**found, "relative_error": error(run(), left, right)})


def error(found: Tensor, left: Tensor, right: Tensor) -> float:
    """Of the first 64 rows."""
    wanted = left[:64] @ right.t()
    return float((found[:64].float() - wanted).norm() / wanted.norm())


def scaled(x: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """x in e4m3 and the fp32 scale that gives it back."""
    scale = (largest / LARGEST).float()
    return (x / scale).clamp(-LARGEST, LARGEST).to(E4M3), scale


def tensorwise(left: Tensor, right: Tensor) -> Callable[[], Tensor]:
    """One scale for all of a tensor."""
    a, scale_a = scaled(left, left.abs().max())
    b, scale_b = scaled(right, right.abs().max())
    return lambda: _product(a, b.t(), scale_a, scale_b)


def rowwise(left: Tensor, right: Tensor) -> Callable[[], Tensor]:
    """One scale a row of each."""
    a, scale_a = scaled(left, left.abs().amax(1, keepdim=True))
    b, scale_b = scaled(right, right.abs().amax(1, keepdim=True))
    return lambda: _product(a, b.t(), scale_a, scale_b.t())


def blockwise(left: Tensor, right: Tensor) -> Callable[[], Tensor]:
    """A scale for 1 x 128 of the left and 128 x 128 of the right (DeepSeek-V3, arXiv 2412.19437 §3.3.2)."""
    kinds: Any = F.ScalingType
    rows, columns = left.shape
    by_row = left.view(rows, columns // 128, 128)
    a, scale_a = scaled(by_row, by_row.abs().amax(-1, keepdim=True))
    square = right.view(right.shape[0] // 128, 128, columns // 128, 128)
    b, scale_b = scaled(square, square.abs().amax((1, 3), keepdim=True))
    a, b = a.view_as(left), b.view_as(right)
    outer = scale_a.squeeze(-1).t().contiguous().t()  # the rows of a lie next to each other
    inner = scale_b.squeeze((1, 3)).t()
    return lambda: F.scaled_mm(
        a, b.t(), outer, kinds.BlockWise1x128, inner, kinds.BlockWise128x128, output_dtype=torch.bfloat16
    )


def _product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    found: Tensor = torch._scaled_mm(
        a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=True
    )
    return found
