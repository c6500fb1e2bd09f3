"""Devices: figures are the data sheets', dense and one way; missing ones stay missing.

Names of GPUs: a driver's name gives its device, one that only looks like it gives none.
"""

from __future__ import annotations

import pytest

from scalewright.spec.errors import UserError
from scalewright.spec.hardware.device_families import FAMILIES
from scalewright.spec.hardware.devices import DeviceSpec, device_names, devices, find_device, load_device, match_gpu

TERA = 1e12

# (device, precision, dense TFLOP/s), each from the vendor's data sheet or architecture white paper.
PUBLISHED = [
    ("h100-sxm", "bf16", 989.4),
    ("h100-sxm", "fp8", 1978.9),
    ("h100-sxm", "tf32", 494.7),
    ("h100-pcie", "bf16", 756),
    ("a100-sxm-80", "fp32", 19.5),
    ("a100-sxm-80", "tf32", 156),
    ("a100-sxm-40", "fp16", 312),
    ("a100-pcie-80", "bf16", 312),
    ("v100-sxm2-32", "fp16", 125),
    ("v100-pcie-16", "fp32", 14),
    ("t4", "fp16", 65),
    ("t4", "fp32", 8.1),
    ("l4", "bf16", 121),
    ("a10", "bf16", 125),
    ("p100-pcie-16", "fp16", 18.7),
    ("rtx3090", "bf16", 71.2),
    ("rtx4090", "bf16", 165.2),
    ("rtx4090", "fp32", 82.6),
    ("rtx5090", "bf16", 209.5),
    ("b200-sxm", "fp4", 9000),
    ("gb200-nvl72", "bf16", 2500),
    ("mi300x", "bf16", 1307.4),
    ("mi355x", "fp4", 10100),
    ("tpu-v4", "bf16", 275),
    ("tpu-v5p", "bf16", 459),
    ("trn2", "bf16", 667),
    ("trn1", "bf16", 190),
    ("trn3", "fp8", 2517),
    ("gh200", "bf16", 989.4),
    ("vera-rubin", "bf16", 4000),
    ("gaudi2", "bf16", 432),
    ("gaudi3", "bf16", 1677),
    ("h20", "bf16", 148),
    ("mi250x", "bf16", 191.5),
    ("rtx-pro-6000", "fp4", 2000),
    ("dgx-spark", "fp4", 500),
]


@pytest.mark.parametrize(("name", "precision", "tflops"), PUBLISHED)
def test_peak_is_the_published_dense_one(name: str, precision: str, tflops: float) -> None:
    assert load_device(name).peak(precision) == pytest.approx(tflops * TERA, rel=1e-9)  # only float rounding


@pytest.mark.parametrize("name", ["v100-sxm2-32", "v100-sxm2-16", "v100-pcie-32", "p100", "p100-sxm2-16", "t4"])
def test_devices_before_ampere_have_no_bf16(name: str) -> None:
    assert load_device(name).peak("bf16") is None
    assert load_device(name).peak("tf32") is None


def test_missing_precisions_are_none_and_unknown_ones_are_errors() -> None:
    a100 = load_device("a100-sxm-80")
    assert a100.peak("fp8") is None
    assert load_device("tpu-v5e").peak("fp32") is None
    assert load_device("h100-sxm").peak("mxfp8") == load_device("h100-sxm").peak("fp8")
    with pytest.raises(UserError, match="fp32"):
        a100.peak("fp12")


@pytest.mark.parametrize("device", devices(), ids=lambda device: device.id)
def test_every_device_is_complete_and_plausible(device: DeviceSpec) -> None:
    assert device.precisions, "at least one peak"
    assert device.family in FAMILIES, "no bundled device is priced as another by accident"
    assert all(source.strip() for source in device.sources)
    assert device.peak_source == "published"
    assert 4e9 <= device.memory_bytes <= 1e12  # from the smallest laptop card that trains a toy
    assert 1e11 <= device.memory_bytes_per_s <= 3e13  # HBM4: 22 TB/s
    if device.memory_bytes_reported:  # GB against GiB is 7.4%; ECC and reserves take up to 7%
        assert 0.93 <= device.memory_bytes_reported / device.memory_bytes <= 1.075
    ordered = [device.peak(name) for name in ("fp32", "tf32", "bf16", "fp8", "fp4")]
    rates = [rate for rate in ordered if rate is not None]
    assert rates == sorted(rates), "a narrower format is never slower"
    if device.peak("bf16") and device.peak("fp16"):
        assert device.peak("bf16") == device.peak("fp16")


def test_links_are_one_way() -> None:
    """Vendors print NVLink two-way: 600 GB/s for A100, 900 for H100, 1,800 for B200, 400 for H800."""
    for name, two_way in [("a100-sxm-80", 600e9), ("h100-sxm", 900e9), ("b200-sxm", 1800e9), ("h800-sxm", 400e9)]:
        link = load_device(name).link
        assert link is not None
        assert link.bytes_per_s == two_way / 2


def test_one_pair_of_mi300x_gets_one_link_of_seven() -> None:
    link = load_device("mi300x").link
    assert link is not None
    assert link.pair_bytes_per_s == 64e9
    assert link.bytes_per_s == 7 * 64e9


def test_b300_int8_is_cut() -> None:
    assert load_device("b300-sxm").peak("int8") == 150e12


@pytest.mark.parametrize("name", ["h100-80gb-sxm", "H100-80GB-SXM", "h100", "H100_80GB_SXM"])
def test_aliases_in_any_case(name: str) -> None:
    assert load_device(name).id == "h100-sxm"


def test_every_id_and_alias_finds_its_device() -> None:
    for device in devices():
        for name in (device.id, *device.aliases):
            assert load_device(name.upper()) is device
    assert len(device_names()) > len(devices())


def test_an_unknown_device_is_an_error_with_near_names() -> None:
    assert find_device("h1000") is None
    with pytest.raises(UserError, match="h100"):
        load_device("h1000")


def test_reported_memory_is_what_a_program_sees() -> None:
    assert load_device("a100-sxm-80").capacity_bytes == 80 * 2**30
    assert load_device("rtx4090").capacity_bytes == 24564 * 2**20
    assert load_device("h200-sxm").capacity_bytes == 143771 * 2**20


@pytest.mark.parametrize("device", devices(), ids=lambda device: device.id)
def test_memory_is_what_a_driver_reports_or_says_that_it_is_nominal(device: DeviceSpec) -> None:
    """Decimal sizes are 7% below what most drivers report; those that vendors print in GiB are exact."""
    nominal = any(note.startswith("memory_bytes is the nominal size") for note in device.notes)
    assert nominal == (device.memory_bytes_reported is None and device.memory_bytes % 2**30 != 0)


def test_yaml_round_trip() -> None:
    device = load_device("h100-sxm")
    assert DeviceSpec.parse(device.dump()) == device


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
