"""Rates of one device: shapes of a model, and figures that are arithmetic on a time."""

from __future__ import annotations

import pytest

from scalewright.bench.device import PASSES, kernels, memory, model_shapes, products, squares
from scalewright.spec.presets import load_model_spec


def test_a_models_products_are_those_of_a_block_and_the_head() -> None:
    model = load_model_spec("llama-3.1-8b")
    shapes = set(model_shapes(model, 7).values())
    hidden, inner = model.hidden_size, model.intermediate_size
    assert (7, hidden, inner) in shapes
    assert (7, inner, hidden) in shapes
    assert (7, hidden, model.vocab_size) in shapes
    assert len(shapes) == len(model_shapes(model, 7))


def test_products_and_squares_have_rates() -> None:
    rows = list(products({"small": (8, 16, 32)}, precisions=("fp32", "tf32"), seconds=0.005))
    assert [(row["precision"], row["shape"]) for row in rows] == [("fp32", [8, 16, 32])]
    assert 0 < rows[0]["flops_per_s"] <= rows[0]["best_flops_per_s"]
    assert next(squares(precisions=("fp32",), seconds=0.005))["best_flops_per_s"] > 0


def test_memory_counts_the_passes_of_each_pattern() -> None:
    rows = list(memory(sizes=(1 << 12, 1 << 14), seconds=0.005))
    assert [(row["what"], row["bytes"]) for row in rows] == [
        (what, size) for size in (1 << 12, 1 << 14) for what in PASSES
    ]
    assert all(0 < row["bytes_per_s"] <= row["best_bytes_per_s"] for row in rows)


@pytest.mark.slow
def test_kernels_stay_near_their_roof() -> None:
    rows = list(kernels(seconds=0.005))
    assert {"linear", "attention", "norm", "loss"} <= {row["what"] for row in rows}
    assert all(row["share_of_roof"] > 0 for row in rows)
    assert all(row["share_of_roof"] < 1.5 for row in rows if row["bound"] == "flops")
