"""Names of GPUs: a driver's name gives its device, one that only looks like it gives none."""

from __future__ import annotations

import pytest

from scalewright.spec.hardware.devices import devices
from scalewright.spec.hardware.driver_names import match_gpu

KNOWN = [
    ("NVIDIA H200", "h200-sxm"),
    ("NVIDIA H100 80GB HBM3", "h100-sxm"),
    ("NVIDIA H100 PCIe", "h100-pcie"),
    ("NVIDIA H100 NVL", "h100-nvl"),
    ("NVIDIA A100-SXM4-80GB", "a100-sxm-80"),
    ("NVIDIA A100-SXM4-40GB", "a100-sxm-40"),
    ("A100-SXM4-40GB", "a100-sxm-40"),
    ("NVIDIA A100 80GB PCIe", "a100-pcie-80"),
    ("NVIDIA A100-PCIE-40GB", "a100-pcie-40"),
    ("NVIDIA A10", "a10"),
    ("NVIDIA A10G", "a10g"),
    ("NVIDIA L4", "l4"),
    ("NVIDIA L40S", "l40s"),
    ("Tesla T4", "t4"),
    ("Tesla V100-SXM2-16GB", "v100-sxm2-16"),
    ("Tesla V100-SXM3-32GB", "v100-sxm2-32"),
    ("Tesla V100-PCIE-32GB", "v100-pcie-32"),
    ("Tesla P100-PCIE-16GB", "p100-pcie-16"),
    ("NVIDIA GeForce RTX 3090", "rtx3090"),
    ("NVIDIA GeForce RTX 4090", "rtx4090"),
    ("GeForce RTX 3090", "rtx3090"),
    ("NVIDIA GeForce RTX 5090", "rtx5090"),
    ("NVIDIA RTX A6000", "a6000"),
    ("NVIDIA B200", "b200-sxm"),
    ("NVIDIA GB200", "gb200-nvl72"),
    ("AMD Instinct MI300X", "mi300x"),
    ("AMD Instinct MI355X", "mi355x"),
]
UNKNOWN = [
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA H200 NVL",
    "NVIDIA H100",  # SXM or PCIe: the name doesn't say
    "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
    "NVIDIA L40",
    "Tesla V100-FHHL-16GB",
    "Quadro T4",
    "",
]


@pytest.mark.parametrize(("name", "identifier"), KNOWN)
def test_known_names(name: str, identifier: str) -> None:
    device = match_gpu(name)
    assert device is not None
    assert device.id == identifier


@pytest.mark.parametrize("name", UNKNOWN)
def test_names_that_only_look_alike_are_nobody(name: str) -> None:
    assert match_gpu(name) is None


def test_a_slice_of_a_gpu_is_not_the_gpu() -> None:
    whole, slice_ = 79.1 * 2**30, 19.6 * 2**30
    assert match_gpu("NVIDIA H100 80GB HBM3", whole) is not None
    assert match_gpu("NVIDIA H100 80GB HBM3", slice_) is None
    assert match_gpu("Tesla T4", 14.6 * 2**30) is not None  # 16 GB less ECC and reserve


def test_every_driver_name_is_one_devices() -> None:
    for device in devices():
        assert all(match_gpu(name) is device for name in device.driver_names)
    names = [name.lower() for device in devices() for name in device.driver_names]
    assert len(names) == len(set(names)) > 40


def test_whoever_sees_no_driver_has_no_name() -> None:
    assert all(device.kind == "gpu" for device in devices() if device.driver_names)
