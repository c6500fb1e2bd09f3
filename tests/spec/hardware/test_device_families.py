"""Families of devices: named in the data, priced with another's constants, and assumed openly."""

from __future__ import annotations

import pytest

from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.hardware.device_families import FAMILIES, OTHER, PRICED, find_family
from scalewright.spec.hardware.devices import devices, load_device

DEVICE = {
    "id": "x1", "name": "X1", "vendor": "X", "kind": "gpu", "peaks": {"fp32": 5e13, "bf16": 4e14},
    "memory_bytes": 8e10, "memory_bytes_per_s": 2e12, "sources": ["a test"],
}  # fmt: skip


def test_traits_are_on_families_with_constants() -> None:
    assert {name for name in PRICED if FAMILIES[name].newer_attention} == {"hopper", "blackwell"}
    assert {name for name in PRICED if FAMILIES[name].bound_by_power} == {"blackwell"}
    plain = {family.name for family in FAMILIES.values() if family.like}
    assert not any(FAMILIES[name].newer_attention or FAMILIES[name].bound_by_power for name in plain)


def test_a_bundled_device_assumes_none() -> None:
    for device in devices():
        assert not any(line.startswith("family") for line in load_cluster(device.id).assumed)


def test_a_device_without_a_family_is_named() -> None:
    cluster = load_cluster({"devices_per_node": 1, "device": DEVICE})
    assert cluster.device.resolved_family is OTHER
    assert any(line.startswith("family other (device x1 gives none of pascal, ") for line in cluster.assumed)
    named = load_cluster({"devices_per_node": 1, "device": {**DEVICE, "family": "hopper"}})
    assert named.device.resolved_family is FAMILIES["hopper"]
    assert not any(line.startswith("family") for line in named.assumed)
    cpu = load_cluster({"devices_per_node": 1, "device": {**DEVICE, "kind": "cpu"}})
    assert not any(line.startswith("family") for line in cpu.assumed)


def test_a_known_device_written_whole_without_its_family_keeps_it() -> None:
    """As in older cluster files."""
    keys = load_device("h100-sxm").dump()
    del keys["family"]
    cluster = load_cluster({"name": "old", "device": keys})
    assert cluster.device.resolved_family is FAMILIES["hopper"]
    assert not any(line.startswith("family") for line in cluster.assumed)


def test_an_unknown_family_is_one_line_with_the_names() -> None:
    with pytest.raises(UserError, match=r"unknown device family 'hoper'.*: use one of pascal, volta, turing"):
        load_cluster({"devices_per_node": 1, "device": {**DEVICE, "family": "hoper"}})
    with pytest.raises(UserError, match="use one of pascal"):
        find_family("")
