"""Rates of products by their shapes, and the roof of the device, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scalewright.diagnose.diagnose import diagnose

PEAK, MEMORY = 312e12, 2.039e12  # of an A100-SXM4-80GB: bf16 FLOP/s, bytes/s


def product(
    number: int, name: str, dims: Any, types: Any, took: float, kernel: str = "ampere_bf16_gemm"
) -> list[dict[str, Any]]:
    """An operator at 100 x number microseconds, whose kernel takes so many."""
    start = 100.0 * number
    shapes = {"Input Dims": dims, "Input type": types, "External id": number}
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 1, "ts": start + 2,
            "dur": 3, "args": {"correlation": number}}  # fmt: skip
    gpu = {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": start + 10, "dur": took,
           "args": {"correlation": number, "stream": 7, "device": 0}}  # fmt: skip
    operator = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 9, "tid": 1, "ts": start, "dur": 8, "args": shapes}
    return [operator, call, gpu]


def roofs(folder: Path, *events: list[dict[str, Any]], device: str = "NVIDIA A100-SXM4-80GB") -> Any:
    path = folder / "rank0.json"
    document = {"deviceProperties": [{"name": device}], "traceEvents": [event for part in events for event in part]}
    path.write_text(json.dumps(document))
    return diagnose([path])["roofs"]


BF16 = ["c10::BFloat16", "c10::BFloat16"]


def test_a_large_product_is_held_against_the_peak(tmp_path: Path) -> None:
    answer = roofs(tmp_path, *(product(n, "aten::mm", [[4096, 1024], [1024, 2048]], BF16, 80.0) for n in (0, 1)))
    [row] = answer["products"]
    flops = 2 * 4096 * 1024 * 2048
    assert (row["calls"], row["flops"], row["precision"], row["bound"]) == (2, flops, "bf16", "compute")
    assert row["bytes"] == 2 * (4096 * 1024 + 1024 * 2048 + 4096 * 2048)
    assert row["flops_per_s"] == pytest.approx(flops / 80e-6)
    assert row["share_of_roof"] == pytest.approx(flops / PEAK / 80e-6)
    assert answer["of_roof_pct"] == pytest.approx(100 * row["share_of_roof"])
    assert answer["of_peak_pct"] == pytest.approx(100 * 2 * flops / PEAK / 180e-6)  # from 10 to 190 us


def test_a_thin_product_is_held_against_memory(tmp_path: Path) -> None:
    [row] = roofs(tmp_path, product(0, "aten::mm", [[1, 4096], [4096, 4096]], BF16, 40.0))["products"]
    assert row["bound"] == "memory"
    assert row["share_of_roof"] == pytest.approx(2 * (4096 + 4096**2 + 4096) / MEMORY / 40e-6, rel=0.02)


@pytest.mark.parametrize(
    ("name", "dims", "types", "flops", "precision"),
    [
        ("aten::addmm", [[2048], [512, 1024], [1024, 2048], [], []], [*BF16, BF16[0], "Scalar", "Scalar"],
         2 * 512 * 1024 * 2048, "bf16"),
        ("aten::bmm", [[8, 64, 32], [8, 32, 128]], ["c10::Half"] * 2, 2 * 8 * 64 * 32 * 128, "fp16"),
        ("aten::_scaled_dot_product_flash_attention", [[2, 4, 256, 64]] * 3 + [[], []], BF16,
         2 * 2 * 2 * 4 * 256 * 256 * 64, "bf16"),
        ("aten::_scaled_dot_product_flash_attention_backward", [[2, 4, 256, 64]] * 5 + [[2, 4, 256]], BF16,
         2 * 5 * 2 * 4 * 256 * 256 * 64, "bf16"),
    ],
)  # fmt: skip
def test_what_is_counted(name: str, dims: Any, types: Any, flops: float, precision: str, tmp_path: Path) -> None:
    [row] = roofs(tmp_path, product(0, name, dims, types, 50.0))["products"]
    assert (row["flops"], row["precision"]) == (flops, precision)


def test_float_products_on_tensor_cores_are_tf32s(tmp_path: Path) -> None:
    dims, types = [[512, 512], [512, 512]], ["float", "float"]
    wide = product(0, "aten::mm", dims, types, 50.0, kernel="sm80_xmma_gemm_f32f32_f32f32_f32_nn_n")
    narrow = product(1, "aten::mm", dims, types, 50.0, kernel="sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n")
    rows = roofs(tmp_path, wide, narrow)["products"]
    assert {row["precision"] for row in rows} == {"fp32", "tf32"}


@pytest.mark.parametrize(
    ("dims", "types"),
    [("x", BF16), ([[1]], BF16), ([[4, 4], [5, 4]], BF16), ([[4, 4], [4, 4]], 7), ([[4, 4], [4, None]], BF16),
     ([], []), ([[4, 4], [4, 4]], ["long int"])],
)  # fmt: skip
def test_shapes_that_are_no_product_are_left_out(dims: Any, types: Any, tmp_path: Path) -> None:
    broken = product(1, "aten::mm", dims, types, 50.0)
    broken[1]["args"]["correlation"] = "not a number"  # this chunk is read event by event
    broken[2]["args"]["correlation"] = 1
    fine = product(0, "aten::mm", [[64, 64], [64, 64]], BF16, 50.0)
    assert len(roofs(tmp_path, fine, broken)["products"]) == 1


def test_no_shapes_or_an_unknown_device_have_no_roof(tmp_path: Path) -> None:
    fine = product(0, "aten::mm", [[64, 64], [64, 64]], BF16, 50.0)
    assert roofs(tmp_path, fine, device="Throw-away") is None
    del fine[0]["args"]["Input Dims"]
    assert roofs(tmp_path, fine) is None
