"""Chips: each device is priced with the constants of a family that has some."""

from __future__ import annotations

import pytest

from scalewright.plan.chips import chip_of
from scalewright.plan.constants import facts
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.hardware.device_families import FAMILIES, PRICED

# The families that each row of constants is used for.
PRICES = {
    "volta": {"pascal", "volta", "turing"},
    "ampere": {"ampere"},
    "hopper": {"ada", "hopper"},
    "blackwell": {"blackwell", "blackwell-ultra"},
    "tpu": {"tpu"},
    "amd": {"amd"},
    "other": {"trainium", "apple", "other"},
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
