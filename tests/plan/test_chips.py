"""Chips: each device is priced with the constants of a family that has some."""

from __future__ import annotations

import pytest

from scalewright.plan.chips import chip_of
from scalewright.plan.constants import facts
from scalewright.plan.predict import predict
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.hardware.device_families import FAMILIES, PRICED
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec

# The families that each row of constants is used for.
PRICES = {
    "volta": {"pascal", "volta", "turing"},
    "ampere": {"ampere"},
    "hopper": {"ada", "hopper"},
    "blackwell": {"blackwell", "blackwell-ultra", "rubin"},
    "tpu": {"tpu"},
    "amd": {"amd"},
    "other": {"trainium", "gaudi", "apple", "other"},
}


def test_families_are_priced_with_rows_that_exist() -> None:
    assert set(PRICED) == set(PRICES)
    for name, family in FAMILIES.items():
        assert name in PRICES[family.kernels.name]
        assert family.kernels.like is None
    for group in ("matmul", "attention"):
        rows = {fact.name.split(".")[1] for fact in facts() if fact.name.startswith(f"{group}.")}
        assert rows == set(PRICED)


@pytest.mark.parametrize(
    ("device", "family", "kernels"),
    [
        ("p100", "pascal", "volta"), ("t4", "turing", "volta"), ("v100", "volta", "volta"),
        ("rtx3090", "ampere", "ampere"), ("l4", "ada", "hopper"), ("rtx4090", "ada", "hopper"),
        ("h20-sxm", "hopper", "hopper"), ("rtx5090", "blackwell", "blackwell"), ("tpu-v5e", "tpu", "tpu"),
        ("mi300x", "amd", "amd"), ("trn2", "trainium", "other"),
        ("vr-nvl72", "rubin", "blackwell"), ("gaudi3", "gaudi", "other"), ("gh200", "hopper", "hopper"),
    ],
)  # fmt: skip
def test_devices_have_a_family(device: str, family: str, kernels: str) -> None:
    chip = chip_of(load_cluster(device))
    assert (chip.family.name, chip.family.kernels.name) == (family, kernels)


def test_cards_without_peer_to_peer_send_through_host_memory() -> None:
    """GeForce: NCCL writes to host memory and reads it again; an A100 on the same PCIe link doesn't."""
    assert chip_of(load_cluster("rtx-4090")).staged
    assert not chip_of(load_cluster("a100-pcie")).staged
    assert not chip_of(load_cluster("dgx-h100")).staged


@pytest.mark.parametrize("name", ["t4", "v100", "rtx-2080ti", "p100-sxm2-16", "dgx-1", "rtx2080ti"])
def test_bf16_is_refused_on_a_gpu_without_it_and_auto_takes_fp16(name: str) -> None:
    """Priced as fp16 it would be many times too fast: torch emulates it, and trainers stop at their start."""
    model, cluster = load_model_spec("llama-3.2-1b"), load_cluster(name)
    layout = Layout.parse({"devices": 1, "global_batch": 4, "precision": "bf16"})
    with pytest.raises(UserError, match=r"has no bf16.*use fp16, or auto"):
        predict(model, cluster, layout, 1024)
    assert predict(model, cluster, layout.replace(precision="auto"), 1024).request.precision == "fp16"


@pytest.mark.parametrize(
    ("name", "each"),
    [("rtx-4060-laptop", 32e9), ("rtx-4090", 32e9), ("rtx-2080-ti", 32e9), ("l40s", 250e9), ("dgx-h100", 250e9)],
)
def test_a_card_of_a_desk_has_a_desks_host(name: str, each: float) -> None:
    chip = chip_of(load_cluster(name))
    assert chip.host_bytes == each
    assert f"{each / 1e9:.0f} GB" in chip.host_assumed[0]


def test_a_hosts_memory_that_is_given_is_not_assumed() -> None:
    chip = chip_of(load_cluster({"like": "rtx-4090", "host_memory_bytes": 8 * 16e9}))
    assert (chip.host_bytes, chip.host_assumed) == (16e9, [])
