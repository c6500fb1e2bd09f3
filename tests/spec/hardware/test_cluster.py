"""Clusters: every preset loads, levels grow from the inside out, and mistakes are one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from levels import level_for
from scalewright.spec.base import parse_yaml, to_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec, cluster_names, cluster_presets, load_cluster
from scalewright.spec.hardware.devices import devices

PROMISED = [
    "dgx-a100-40g",
    "dgx-a100-80g",
    "dgx-h100",
    "hgx-h200",
    "dgx-b200",
    "gb200-nvl72",
    "b300",
    "gb300-nvl72",
    "tpu-v3",
    "tpu-v4",
    "tpu-v5e",
    "tpu-v5p",
    "tpu-v6e",
    "tpu-v7x",
    "a100-pcie",
    "l40s",
    "l4",
    "a10",
    "t4",
    "v100",
    "dgx-1",
    "dgx-2",
    "rtx-3090",
    "rtx-4090",
    "rtx-5090",
    "p100",
    "mi300x",
    "mi325x",
    "mi350x",
    "mi355x",
    "hgx-h800",
    "dgx-a800",
    "trn2",
    "trn1",
    "trn3",
    "gaudi2",
    "gaudi3",
    "gh200",
    "gb10",
    "rtx-pro-6000",
    "vr-nvl72",
    "p5en.48xlarge",
    "a3-ultragpu-8g",
    "Standard_ND96isr_H100_v5",
    "BM.GPU.H100.8",
]

# (cluster, kind of network, Gbit/s of a node)
CLOUDS = [
    ("aws-p5", "efa", 3200),
    ("aws-p5en", "efa", 3200),
    ("aws-p6-b200", "efa", 3200),
    ("aws-p6-b300", "efa", 6400),
    ("gcp-a3-mega", "tcpx", 1600),
    ("gcp-a3-ultra", "roce", 3200),
    ("gcp-a4", "roce", 3200),
    ("gcp-a4x", "roce", 1600),
    ("azure-ndv5", "infiniband", 3200),
    ("oci-h100", "roce", 3200),
    ("meta-24k-roce", "roce", 3200),
    ("meta-24k-infiniband", "infiniband", 3200),
    ("deepseek-10k-a100", "infiniband", 200),
    ("xai-colossus-100k", "roce", 3200),
]


@pytest.mark.parametrize("name", PROMISED)
def test_promised_names_load(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.peak_source == "published"
    assert cluster.device.precisions


@pytest.mark.parametrize("name", list(cluster_presets()))
def test_presets_round_trip_and_slow_down_outwards(name: str) -> None:
    cluster = load_cluster(name)
    assert ClusterSpec.parse(parse_yaml(to_yaml(cluster.dump()))) == cluster
    rates = [level.bytes_per_s for level in cluster.levels]
    assert rates == sorted(rates, reverse=True)
    assert cluster.levels[0].name == "device"
    assert all(level.source for level in cluster.levels)


@pytest.mark.parametrize("device", devices(), ids=lambda device: device.id)
def test_every_device_is_a_cluster(device: Any) -> None:
    cluster = load_cluster(device.id)
    if cluster.name == device.id and device.id not in cluster_presets():
        assert cluster.device == device
    for alias in device.aliases:
        assert load_cluster(alias).device.vendor == device.vendor


@pytest.mark.parametrize(("name", "kind", "gbits"), CLOUDS)
def test_clouds_have_the_network_of_their_documents(name: str, kind: str, gbits: float) -> None:
    cluster = load_cluster(name)
    fabric = cluster.levels[-1]
    assert fabric.kind == kind
    assert fabric.bytes_per_s * cluster.devices_per_node * 8 == gbits * 1e9
    assert cluster.assumed == ()


def test_known_large_clusters() -> None:
    meta = load_cluster("meta-24k-roce")
    assert (meta.devices, meta.levels[-1].pod, meta.levels[-1].oversubscription) == (24576, 3072, 7)
    assert (load_cluster("deepseek-10k-a100").devices, load_cluster("100k-h100").devices) == (10_000, 100_000)


def test_levels_of_three_systems() -> None:
    h100 = load_cluster("dgx-h100")
    assert [(level.name, level.size) for level in h100.levels] == [("device", 1), ("domain", 8), ("fabric", None)]
    assert level_for(h100, 8).bytes_per_s == 450e9
    assert level_for(h100, 9).bytes_per_s == 50e9
    rack = load_cluster("gb200-nvl72")
    assert (rack.devices_per_node, level_for(rack, 72).kind, level_for(rack, 73).kind) == (4, "nvlink", "infiniband")
    pod = load_cluster("tpu-v5e")
    assert (level_for(pod, 256).torus_axes, level_for(pod, 256).wraps_at) == (2, 16)
    assert level_for(pod, 256).bytes_per_s == 4 * 45e9
    assert level_for(load_cluster("a100-pcie"), 8).kind == "pcie"


def test_half_a_node_has_half_the_domain() -> None:
    cluster = load_cluster({"device": "h100-sxm", "devices_per_node": 4})
    assert level_for(cluster, 4).kind == "nvlink"
    assert level_for(cluster, 5).kind == "infiniband"


def test_device_names_give_the_usual_system() -> None:
    cluster = load_cluster("H100-80GB-SXM")
    assert (cluster.name, cluster.devices_per_node, cluster.nodes) == ("h100-sxm", 8, None)
    alone = load_cluster("a6000")
    assert (alone.nodes, alone.levels[-1].name) == (1, "node")
    with pytest.raises(UserError, match="more nodes and a fabric"):
        alone.check_devices(9)


def test_a_cluster_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "device: {like: rtx4090, memory_bytes: 48e9}\ndevices_per_node: 2\nnodes: 4\n"
        "fabric: {kind: infiniband, bytes_per_s: 12.5e9}\nprice_per_device_hour: 0.4\n"
    )
    cluster = load_cluster(str(path))
    assert (cluster.name, cluster.devices, cluster.device.memory_bytes) == ("mine", 8, 48e9)
    assert cluster.device.peak("bf16") == 165.2e12
    assert level_for(cluster, 2).kind == "pcie"
    assert level_for(cluster, 8).bytes_per_s == 12.5e9


def test_like_changes_a_preset() -> None:
    cluster = load_cluster({"like": "dgx-h100", "nodes": 16, "name": "ours"})
    assert (cluster.name, cluster.devices) == ("ours", 128)
    rewired = load_cluster({"like": "dgx-h100", "fabric": {"bytes_per_s": 25e9}})
    assert level_for(rewired, 16).bytes_per_s == 25e9
    assert level_for(rewired, 8).bytes_per_s == 450e9


def test_measured_rates_stand_beside_published_ones() -> None:
    profile = load_cluster("dgx-h100").dump()
    profile["measured"] = {
        "matmul_flops": {"bf16": 7.1e14},
        "memory_bytes_per_s": 3.0e12,
        "levels": {"domain": {"bytes_per_s": 3.7e11, "latency_s": 5e-6}},
    }
    cluster = load_cluster(profile)
    assert cluster.device.peak("bf16") == 989.4e12
    assert level_for(cluster, 8).bytes_per_s == 3.7e11
    assert level_for(cluster, 8).source == "measured"
    assert level_for(cluster, 1).bytes_per_s == 3.0e12
    assert level_for(cluster, 9).bytes_per_s == 50e9
    assert load_cluster(cluster.dump()) == cluster


def test_assumptions_are_named() -> None:
    assert load_cluster("dgx-h100").assumed == ()
    assert "10 Gb/s" in load_cluster("rtx-4090").assumed[0]


def test_a_fabric_without_a_kind_is_assumed_to_be_infiniband() -> None:
    old = load_cluster({"like": "dgx-h100", "fabric": {"bytes_per_s": 25e9}})
    assert old.levels[-1].kind == "infiniband"
    assert "assumed InfiniBand" in old.assumed[0]
    efa = load_cluster({"like": "dgx-h100", "fabric": {"kind": "efa", "bytes_per_s": 50e9}})
    assert (efa.assumed, efa.levels[-1].latency_s) == ((), 75e-6)


def test_oversubscription_is_of_pods() -> None:
    fabric = {"kind": "roce", "bytes_per_s": 50e9, "pod": 3072, "oversubscription": 7}
    assert load_cluster({"like": "dgx-h100", "fabric": fabric}).levels[-1].oversubscription == 7
    with pytest.raises(UserError, match="add `pod`"):
        load_cluster({"like": "dgx-h100", "fabric": {"bytes_per_s": 50e9, "oversubscription": 7}})


def test_local_needs_a_probe() -> None:
    with pytest.raises(UserError, match="this machine"):
        load_cluster("local")
    assert load_cluster("local", local=lambda: load_cluster("t4")).name == "t4"


BAD: list[tuple[Any, str]] = [
    ("dgx-h10", "dgx-h100"),
    ("no-such-thing.yaml", "no such file"),
    ({"device": "t44"}, "did you mean"),
    ({"nodes": 2}, "needs a device"),
    ({"device": "t4", "nodez": 2}, "did you mean 'nodes'"),
    ({"device": "t4", "nodes": 0}, "nodes is 0"),
    ({"device": "t4", "devices_per_node": 0}, "devices_per_node is 0"),
    ({"device": "a6000", "nodes": 3}, "add a fabric"),
    ({"device": "t4", "version": 2}, "version"),
    (
        {"device": "t4", "levels": [{"name": "device", "kind": "memory", "size": 0, "bytes_per_s": 1, "latency_s": 0}]},
        "size",
    ),
]


@pytest.mark.parametrize(("source", "message"), BAD)
def test_mistakes_are_one_line(source: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_cluster(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"device": {"memory_bytes": 8e9}}, ["'id', 'name', 'vendor', 'kind', 'peaks', 'memory_bytes_per_s', 'sources'",
                                             "`peaks: {bf16: 100e12}`", "`kind: gpu | tpu | npu | cpu`"]),
        ({"link": {"kind": "pcie"}, "fabric": {"kind": "ethernet"}},
         ["needs a device", "'bytes_per_s', 'domain'", "(cluster: fabric): add `bytes_per_s: 25 Gbit/s`"]),
        ({"device": "h900", "link": {"domain": 8}, "fabric": {"latency_s": 1e-6}},
         ["unknown device 'h900'", "missing keys 'kind', 'bytes_per_s'", "(cluster: fabric)"]),
        ({"device": "h100-sxm", "levels": [{"name": "node"}]}, ["'levels.0.kind', 'levels.0.size'", "`size: 8`"]),
        ({"device": "h100-sxm", "nodes": 0, "price_per_device_hour": -1}, ["nodes is 0", "_hour is -1"]),
    ],
)  # fmt: skip
def test_all_that_is_missing_is_named_at_once(source: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_cluster(source)
    for part in words:
        assert part in str(caught.value)


def test_names_for_completion() -> None:
    names = cluster_names()
    assert {"dgx-h100", "v100", "H100-80GB-SXM", "local"} <= set(names)
    assert len(names) == len(set(names))


def test_a_file_changes_figures_of_its_presets_device() -> None:
    cluster = load_cluster({"like": "dgx-a100-80g", "device": {"memory_bytes": 40e9}})
    assert cluster.device.memory_bytes == 40e9
    assert cluster.device.id == "a100-sxm-80"


@pytest.mark.parametrize("data", [{"network_bytes_per_s": 12.5e9}, {"device": {"network_bytes_per_s": 12.5e9}}])
def test_a_slower_network_is_a_fabric(data: dict[str, Any]) -> None:
    """A preset has a network of its own, so that the device's usual one would change nothing."""
    with pytest.raises(UserError, match=r"fabric: \{bytes_per_s: 12500000000.0\}"):
        load_cluster({"like": "dgx-a100-80g", **data})
    slower = load_cluster({"like": "dgx-a100-80g", "fabric": {"bytes_per_s": 12.5e9}})
    assert level_for(slower, 16).bytes_per_s == 12.5e9


def test_a_changed_memory_replaces_what_the_base_reports() -> None:
    changed = load_cluster({"like": "dgx-h100", "device": {"like": "h100-sxm", "memory_bytes": 40e9}})
    assert changed.device.capacity_bytes == 40e9
