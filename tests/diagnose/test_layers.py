"""Layers by what launched a kernel, and by whose backward an operator is: steps written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.job import EXAMPLE, write
from tests.diagnose.test_phases import COMPUTE, ENGINE, MAIN, event, launched

from scalewright.diagnose.diagnose import diagnose

RANGES = {
    "ours": ("user_annotation", "model.layers.{}"),
    "modules": ("python_function", "nn.Module: LlamaDecoderLayer_{}"),
}


def step(category: str, name: str) -> list[dict[str, Any]]:
    """Forwards of layers 0 and 10: 100..150, 150..250; backwards 300..420, 420..500; a norm between them."""
    return [
        event("user_annotation", "ProfilerStep#3", 0, 95, MAIN),
        event(category, name.format(0), 5, 10, MAIN),
        event("cpu_op", "aten::mm", 6, 5, MAIN, **{"Sequence number": 17}),
        *launched(1, 7, MAIN, 100, 150, COMPUTE),
        event(category, name.format(10), 20, 10, MAIN),
        event("cpu_op", "aten::mm", 21, 5, MAIN, **{"Sequence number": 18}),
        *launched(2, 22, MAIN, 150, 250, COMPUTE),
        event("cpu_op", "aten::rms_norm", 32, 5, MAIN, **{"Sequence number": 19}),
        *launched(3, 33, MAIN, 250, 300, COMPUTE),
        *backward(40, 19, "RmsNormBackward0"),
        event("cpu_op", "aten::mm", 46, 1, ENGINE, **{"Sequence number": 99}),
        *backward(50, 18, "MmBackward0"),
        *launched(4, 52, ENGINE, 300, 420, COMPUTE),
        *backward(60, 17, "MmBackward0"),
        *launched(5, 62, ENGINE, 420, 500, COMPUTE),
    ]


def backward(start: float, number: int, name: str) -> list[dict[str, Any]]:
    engine = f"autograd::engine::evaluate_function: {name}"
    return [event("cpu_op", engine, start, 8, ENGINE, **{"Sequence number": number})]


def read(folder: Path, events: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    path = folder / "rank0.pt.trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    layers: list[dict[str, Any]] | None = diagnose([path])["layers"]
    return layers


@pytest.mark.parametrize("kind", RANGES)
def test_kernels_belong_to_the_layer_that_launched_them(tmp_path: Path, kind: str) -> None:
    first, last = read(tmp_path, step(*RANGES[kind])) or []
    assert [row["layer"].rpartition(".")[2].rpartition("_")[2] for row in (first, last)] == ["0", "10"]
    seconds = [round(1e6 * row[key]) for row in (first, last) for key in ("forward_s", "backward_s")]
    assert seconds == [50, 80, 100, 120]
    assert first["share_pct"] == pytest.approx(100 * 130 / 400)


def test_operators_of_a_cpu(tmp_path: Path) -> None:
    events = [
        event("user_annotation", "ProfilerStep#1", 0, 100, MAIN),
        event("user_annotation", "layers.0", 0, 30, MAIN),
        event("cpu_op", "aten::mm", 10, 15, MAIN, **{"Sequence number": 17}),
        event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 40, 40, MAIN, **{"Sequence number": 17}),
        event("cpu_op", "aten::mm", 45, 30, MAIN),
    ]
    [layer] = read(tmp_path, events) or []
    assert round(1e6 * layer["forward_s"]) == 15
    assert 30 <= round(1e6 * layer["backward_s"]) <= 40


def test_blocks_within_blocks_arent_counted_twice(tmp_path: Path) -> None:
    inner = event("python_function", "nn.Module: AttentionBlock_0", 5.5, 4, MAIN)
    layers = read(tmp_path, [*step(*RANGES["modules"]), inner]) or []
    assert [row["layer"] for row in layers] == ["LlamaDecoderLayer_0", "LlamaDecoderLayer_10"]


def test_a_trace_without_names_has_none(tmp_path: Path) -> None:
    write(EXAMPLE, tmp_path)
    assert diagnose([tmp_path])["layers"] is None
