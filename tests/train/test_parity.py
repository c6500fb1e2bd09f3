"""Every layout trains as one process does: same samples, losses, gradient norms, and (under SGD) weights."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from runs import TOLERANCE, assert_same_run, merge, rows, run, run_data, weights, worst

STEPS = 20  # until the control has learnt enough to be worth comparing with
SAVES = {"checkpoint": {"at_end": True}, "train": {"steps": STEPS}}

# name -> (what the run is, whatever its layout)
VARIANTS: dict[str, dict[str, Any]] = {
    "packed": {},
    "unpacked-tied-zloss": {
        "model": {"tie_word_embeddings": True},
        "data": {"packing": False},
        "train": {"z_loss": 1e-3},
    },
    "no-document-mask": {"data": {"document_mask": False}},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "1-micro8": {"micro_batch": 8},
    "2-zero0": {"devices": 2, "zero_stage": 0, "micro_batch": 4},
    "2-zero3-accumulated-full": {"devices": 2, "zero_stage": 3, "micro_batch": 2, "recompute": "full"},
    "4-zero3-accumulated-every2": {"devices": 4, "zero_stage": 3, "micro_batch": 1, "recompute": {"every": 2}},
}
FAST = [
    ("packed", "2-zero0"),
    pytest.param("packed", "1-micro8", marks=pytest.mark.slow),
    pytest.param("packed", "4-zero3-accumulated-every2", marks=pytest.mark.slow),
    ("unpacked-tied-zloss", "2-zero3-accumulated-full"),
    pytest.param("no-document-mask", "2-zero0", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    """The run of one process for a variant, made once; micro-batches of 2, accumulated four times."""
    made: dict[str, Path] = {}

    def make(variant: str) -> Path:
        if variant not in made:
            folder = tmp_path_factory.mktemp(variant)
            data = run_data(folder, **merge({"layout": {"micro_batch": 2}, **SAVES}, VARIANTS[variant]))
            made[variant] = Path(run(data).out_dir)
        return made[variant]

    return make


def assert_same_weights(mine: Path | str, control: Path | str) -> None:
    """Weights after the SGD steps, each tensor relative to its largest number."""
    a, b = weights(mine), weights(control)
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        difference = (tensor - b[name]).abs().max() / b[name].abs().max()
        assert difference < TOLERANCE, f"{name}: {difference:.1e}"


@pytest.mark.parametrize(("variant", "layout"), FAST)
def test_a_layout_trains_as_one_process_does(control, tmp_path, variant, layout):
    expected = control(variant)
    changes = merge({"layout": LAYOUTS[layout], **SAVES}, VARIANTS[variant])
    mine = run(run_data(tmp_path, **changes)).out_dir
    assert_same_run(mine, expected)
    assert_same_weights(mine, expected)


def test_the_control_is_worth_comparing_with(control):
    """It learns, clips in some steps and not in others, and counts other numbers of tokens step by step."""
    found = rows(control("packed"))
    assert len(found) == STEPS
    assert found[-1]["loss"] < 0.7 * found[0]["loss"]
    assert all(row["loss_tokens"] < 8 * 16 for row in found)
    assert len({row["loss_tokens"] for row in found}) > 1
    norms = [row["grad_norm"] for row in found]
    assert min(norms) < 1.0
    assert len({row["sample_ids_hash"] for row in found}) == STEPS
    assert all(row["aux_loss"] > 0 for row in rows(control("unpacked-tied-zloss")))


FULL = [
    (variant, zero, devices, micro, recompute)
    for variant, (zero, devices), micro, recompute in product(
        VARIANTS, [(0, 1), (0, 2), (0, 4), (3, 2), (3, 4)], [1, 2], ["none", "selective", "full", "every2"]
    )
]


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "zero", "devices", "micro", "recompute"), FULL)
def test_every_layout(control, tmp_path, variant, zero, devices, micro, recompute):
    """The full product (120 runs, about ten minutes)."""
    kind: Any = {"every": 2} if recompute == "every2" else recompute
    layout = {"devices": devices, "zero_stage": zero, "micro_batch": micro, "recompute": kind}
    mine = run(run_data(tmp_path, **merge({"layout": layout, **SAVES}, VARIANTS[variant]))).out_dir
    assert_same_run(mine, control(variant))
    assert_same_weights(mine, control(variant))


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "adamw", "lr": 3e-3, "weight_decay": 0.1},
        pytest.param({"name": "lion", "lr": 3e-4}, marks=pytest.mark.slow),
    ],
    ids=["adamw", "lion"],
)
def test_other_optimizers_have_the_same_losses(tmp_path, optimizer):
    """Losses and norms alone: AdamW and Lion magnify the sign of near-zero gradients in the weights (measured
    here: 2e-7, since no gradient of this model is that near to zero)."""
    one = run(run_data(tmp_path, out_dir=str(tmp_path / "one"), optimizer=optimizer)).out_dir
    layout = {"devices": 2, "zero_stage": 3, "micro_batch": 2}
    two = run(run_data(tmp_path, out_dir=str(tmp_path / "two"), optimizer=optimizer, layout=layout)).out_dir
    assert_same_run(two, one)


@pytest.fixture(scope="module")
def bf16_control(tmp_path_factory):
    """One process in bf16, which is really another arithmetic than fp32, and close to it."""
    folder = tmp_path_factory.mktemp("bf16")
    found = run(run_data(folder, layout={"precision": "bf16", "micro_batch": 2})).out_dir
    fp32 = run(run_data(folder, out_dir=str(folder / "fp32"), layout={"micro_batch": 2})).out_dir
    assert 1e-5 < worst(rows(found), rows(fp32), "loss") < 1e-2
    return found


BF16_LAYOUTS = [
    {"devices": 2, "zero_stage": 0, "micro_batch": 4},
    pytest.param({"devices": 2, "zero_stage": 3, "micro_batch": 1}, marks=pytest.mark.slow),
    pytest.param({"devices": 2, "zero_stage": 3, "micro_batch": 4}, marks=pytest.mark.slow),
    pytest.param({"devices": 4, "zero_stage": 0, "micro_batch": 1}, marks=pytest.mark.slow),
    pytest.param({"devices": 4, "zero_stage": 3, "recompute": "full"}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("layout", BF16_LAYOUTS)
def test_bf16_is_the_same_maths_on_every_layout(bf16_control, tmp_path, layout):
    """Within 2e-3 of one process in bf16. A bf16 product keeps 8 bits (4e-3), and a micro-batch of four rows
    rounds its gradients where four of one row are added in fp32; over a batch those errors cancel."""
    mine = run(run_data(tmp_path, layout={**layout, "precision": "bf16"})).out_dir
    assert worst(rows(mine), rows(bf16_control), "loss") < 2e-3
    assert worst(rows(mine), rows(bf16_control), "grad_norm") < 1e-2
