"""Allocated, reserved and nvidia-smi's memory: their order, and which of them a row has."""

from __future__ import annotations

import pytest

from scalewright.plan.cost.memory import kind_of
from scalewright.plan.predict import predict
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec

LLAMA = load_model_spec("llama-3.1-8b")


def test_each_kind_holds_more_than_the_one_before() -> None:
    keys = predict(LLAMA, load_cluster("dgx-h100"), Layout(devices=64, zero_stage=3), 8192).dump()
    assert keys["memory_kind"] == "allocated"
    assert keys["memory_gib"]["peak"] < keys["memory_reserved_gib"] < keys["memory_smi_gib"]
    assert keys["memory_smi_gib"] < 1.1 * keys["memory_gib"]["peak"] + 2.0  # context, and two groups' buffers


def test_groups_of_ranks_hold_nccls_buffers() -> None:
    def beyond(**changes: int) -> float:
        layout = Layout.parse({"devices": 64, "zero_stage": 1, **changes})
        keys = predict(LLAMA, load_cluster("dgx-h100"), layout, 8192).dump()
        return float(keys["memory_smi_gib"] - keys["memory_reserved_gib"])

    assert beyond(tp=8, pp=2) == pytest.approx(beyond() + 2 * 0.2)


def test_a_tpu_has_one_number() -> None:
    keys = predict(LLAMA, load_cluster("tpu-v5p"), Layout(devices=64, zero_stage=3), 8192).dump()
    assert keys["memory_gib"]["peak"] == keys["memory_reserved_gib"] == keys["memory_smi_gib"]


@pytest.mark.parametrize(
    ("notes", "kind"),
    [
        ("Mem = max nvidia-smi-style GB on first stage", "smi"),
        ("max reserved 61 GB", "reserved"),
        ("max allocated memory", "allocated"),
        ("GPU memory, allocated or reserved not stated", "allocated"),
    ],
)
def test_a_rows_notes_name_its_kind(notes: str, kind: str) -> None:
    assert kind_of(notes) == kind
