"""Training on a GPU is training on a CPU: same losses, a resume to the bit, and a host that never waits.

The device is a parameter: the CPU's cases run everywhere and show that the tests themselves hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from devices import DEVICES, ON_GPU
from runs import assert_same_bits, assert_same_run, bits, merge, rows, run, run_data, weights
from scalewright.launch.settings import make_deterministic
from scalewright.train.metrics.measured import Readback
from scalewright.train.step import Step

make_deterministic()  # before anything here makes a cuBLAS handle
# Large enough for the fused attention kernels: a head dim of 32, and lengths that a tile divides.
SHAPE = {
    "model": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "context": 128},
    "data": {"seq_len": 64},
    "layout": {"micro_batch": 4},
}


@pytest.fixture(autouse=True)
def settings_put_back() -> Iterator[None]:
    """A deterministic run sets torch for the whole process."""
    yield
    torch.use_deterministic_algorithms(False)
    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode("default")


def small(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    """A short run in a folder of its own, all on one corpus."""
    base = run_data(folder, **SHAPE, out_dir=str(folder / name))
    return merge(base, merge({"train": {"steps": 6}}, changes))


@pytest.mark.parametrize("masked", [True, False], ids=["document mask", "plain causal"])
@pytest.mark.parametrize("device", DEVICES)
def test_losses_are_the_cpus(device: str, masked: bool, tmp_path: Path) -> None:
    """fp32 sums in another order, other kernels for exp and rsqrt: 1e-6 a step, carried on by 6 updates."""
    data = {"data": {"document_mask": masked}}
    control = run(small(tmp_path, "control", **data)).out_dir
    mine = run(small(tmp_path, "mine", device=device, **data)).out_dir
    assert_same_run(mine, control, tolerance=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.slow), *ON_GPU])
def test_16_bits_learn_as_fp32_does(device: str, precision: str, tmp_path: Path) -> None:
    """bf16 keeps 8 bits: a rounding is 0.4%, and a loss averages thousands; 2% leaves room over 20 steps.

    fp16 keeps 11, and its scaled gradients may overflow in the first steps, which leave out their updates.
    """
    long = {"train": {"steps": 20}, "device": device}
    full = rows(run(small(tmp_path, "fp32", **long)).out_dir)
    half = rows(run(small(tmp_path, precision, layout={"precision": precision}, **long)).out_dir)
    assert half[-1]["loss"] < 0.98 * half[0]["loss"]
    updated = [row for row in half if not row.get("skipped")]
    assert len(updated) >= 15
    for mine, control in zip(updated, full, strict=False):
        assert mine["loss"] == pytest.approx(control["loss"], rel=2e-2)


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.slow), "bf16"])
@pytest.mark.parametrize("device", DEVICES)
def test_resume_is_bitwise(device: str, precision: str, tmp_path: Path) -> None:
    """Six steps straight, and three, a save, and three more: the same lines and the same weights."""
    changes = {
        "device": device,
        "deterministic": True,
        "layout": {"precision": precision},
        "optimizer": {"name": "adamw", "lr": 1e-2},
        "lr_schedule": {"kind": "cosine", "warmup_steps": 2},
        "checkpoint": {"at_end": True},
    }
    straight = run(small(tmp_path, "straight", **changes)).out_dir
    broken = small(tmp_path, "broken", **changes)
    run(broken, steps=3)
    again = run(broken)
    assert again.resumed_from == 3
    assert bits(again.out_dir) == bits(straight)
    assert_same_bits(weights(again.out_dir, optimizer=True), weights(straight, optimizer=True))


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_come_late_where_waiting_would_cost(device: str) -> None:
    """By one step on a GPU; at once on a CPU. None is lost and none changes places."""
    readback, late = Readback(torch.device(device)), device == "cuda"
    found = [readback.push(step, torch.full((2,), float(step), device=device)) for step in (1, 2, 3)]
    each = [[(step, [float(step)] * 2)] for step in (1, 2, 3)]
    assert found == ([[], each[0], each[1]] if late else each)
    assert readback.flush() == (each[2] if late else [])


@pytest.mark.parametrize("masked", [True, False], ids=["document mask", "plain causal"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("device", ON_GPU)
def test_the_host_never_waits(
    device: str, precision: str, masked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the third step on torch raises at any wait in the loop: step, batches, record, late numbers."""
    plain, calls = Step.__call__, [0]

    def watched(self: Step, *arguments: Any, **keywords: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:  # two steps set up what is set up once
            torch.cuda.set_sync_debug_mode("error")
        return plain(self, *arguments, **keywords)

    monkeypatch.setattr(Step, "__call__", watched)
    changes = {"device": device, "data": {"document_mask": masked}, "layout": {"precision": precision}}
    done = run(small(tmp_path, "watched", optimizer={"name": "adamw", "lr": 1e-3}, **changes))
    assert (done.step, calls[0]) == (6, 6)


@pytest.mark.parametrize("device", ON_GPU)
@pytest.mark.parametrize("masked", [True, False], ids=["document mask", "plain causal"])
def test_compiled_blocks_train_as_eager_ones(device: str, masked: bool, tmp_path: Path) -> None:
    """Fused kernels round in other places: 1e-6 a step in fp32. On CUDA `compile: auto` compiles, too."""
    ran, graphs = {}, {}
    for compiled in (False, True):
        torch._dynamo.reset()
        counters.clear()
        keys = {"data": {"document_mask": masked}, "train": {"compile": compiled}}
        ran[compiled] = run(small(tmp_path, f"compiled-{compiled}", device=device, **keys)).out_dir
        graphs[compiled] = counters["stats"]["unique_graphs"]
    assert graphs[False] == 0
    assert graphs[True] > 0
    assert_same_run(ran[True], ran[False], tolerance=1e-4)


@pytest.mark.parametrize("device", ON_GPU)
def test_blocks_are_not_compiled_anew_for_other_documents(device: str, tmp_path: Path) -> None:
    """Bounds of documents have few sizes (model/gpu_rows.py): twenty steps need the graphs of six."""
    graphs = []
    for steps in (6, 20):
        torch._dynamo.reset()
        counters.clear()
        keys = {"layout": {"precision": "bf16"}, "train": {"compile": True, "steps": steps}}
        run(small(tmp_path, f"steps-{steps}", device=device, **keys))
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[1] <= graphs[0] + 1  # a longest document of another power of two may come late
