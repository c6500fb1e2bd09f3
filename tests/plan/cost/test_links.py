"""Seconds of collectives against the textbook, and what several NICs and levels change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scalewright.plan.constants import constants
from scalewright.plan.cost.links import Pods, Torus, Wires, all_reduce, all_to_all, gather, send
from scalewright.plan.predict import predict
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.hardware.topology import FABRICS
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec

ONE = np.ones(1)


def wires(domain: float = 8.0, fast: float = 100e9, slow: float = 10e9, hop: float = 0.0) -> Wires:
    return Wires(domain * ONE, fast * ONE, 0 * ONE, slow * ONE, 0 * ONE, 0.0, hop)


def test_a_group_of_one_sends_nothing() -> None:
    for of in (gather, all_reduce, all_to_all):
        assert of(1e9 * ONE, ONE, ONE, wires())[0] == 0


def test_ring_inside_a_domain() -> None:
    # (g - 1) / g of the bytes over the link; an all-reduce twice that
    seconds = gather(1e9 * ONE, 8 * ONE, ONE, wires())
    assert seconds[0] == pytest.approx(7 / 8 * 1e9 / 100e9)
    assert all_reduce(1e9 * ONE, 8 * ONE, ONE, wires())[0] == pytest.approx(2 * seconds[0])


def test_a_group_over_nodes_drives_all_its_nics() -> None:
    flat = gather(1e9 * ONE, 16 * ONE, 8 * ONE, wires())  # one rank a node: one NIC
    wide = gather(1e9 * ONE, 16 * ONE, ONE, wires())  # eight ranks a node: eight NICs
    assert flat[0] == pytest.approx(15 / 16 * 1e9 / 10e9)
    assert wide[0] == pytest.approx(15 / 16 * 1e9 / 80e9)


def test_delays_grow_with_the_ring() -> None:
    short, long = (gather(ONE, n * ONE, ONE, wires(hop=1e-5)) for n in (16, 64))
    assert long[0] > 3 * short[0]


def test_dispatch_by_domain_sends_less() -> None:
    all_copies = all_to_all(1e9 * ONE, 64 * ONE, ONE, wires())
    once = all_to_all(1e9 * ONE, 64 * ONE, ONE, wires(), leaves=0.5)
    assert once[0] == pytest.approx(all_copies[0] / 2)


def test_a_torus_too_short_to_close_sends_one_way() -> None:
    def seconds(chips: int, group: int) -> float:
        torus = Torus(2 * ONE, 16 * ONE, chips * ONE)
        links = replace(wires(domain=256), torus=torus)
        return float(gather(1e9 * ONE, group * ONE, ONE, links)[0])

    closed, opened = seconds(256, 256), seconds(64, 64)  # 16 x 16 wraps, 8 x 8 doesn't
    assert closed == pytest.approx(255 / 256 * 1e9 / 100e9)
    assert opened == pytest.approx(2 * 63 / 64 * 1e9 / 100e9)
    assert seconds(256, 64) == pytest.approx(opened / 2)


def test_what_leaves_a_pod_shares_its_uplinks() -> None:
    """1:8 beyond pods of 128: what all of a pod's devices send at once has an eighth, one ring an eighth more room."""
    plain, narrow = wires(), replace(wires(), pods=Pods(128 * ONE, 8 * ONE))

    def slower(of: object, group: float, stride: float) -> float:
        times = [of(1e9 * ONE, group * ONE, stride * ONE, links)[0] for links in (narrow, plain)]  # type: ignore[operator]
        return float(times[0] / times[1])

    assert slower(gather, 128, 1) == slower(all_to_all, 128, 1) == 1  # inside a pod
    assert slower(gather, 256, 1) == 1  # one ring: 8 of 128 devices leave, the uplinks carry 16
    assert slower(gather, 4, 64) == pytest.approx(4)  # 64 rings side by side
    assert slower(gather, 2, 128) == pytest.approx(8)
    half, whole = (256 - 128) / 256, (256 - 8) / 256  # of the bytes, what leaves a pod, and a node
    assert slower(all_to_all, 256, 1) == pytest.approx(8 * half / whole)
    message = [send(1e9 * ONE, 128 * ONE, 256 * ONE, links)[0] for links in (narrow, plain)]
    assert message[0] == pytest.approx(8 * message[1])


def test_networks_of_a_rate_differ_by_kind() -> None:
    """All-to-alls are slower on EFA than on InfiniBand, and a node-wise dispatch, faster there, is slower still."""
    model = load_model_spec("qwen3-30b-a3b")

    def exposed(kind: str, dispatcher: str) -> float:
        cluster = load_cluster({"like": "dgx-h100", "fabric": {"kind": kind, "bytes_per_s": 50e9}})
        layout = Layout.parse({"devices": 64, "ep": 32, "micro_batch": 1, "precision": "bf16"})
        options = {"dispatcher": dispatcher}
        breakdown = predict(model, cluster, layout, 4096, framework="megatron", options=options).breakdown
        return float(breakdown["ep_exposed"])

    plain, node_wise = ({kind: exposed(kind, word) for kind in FABRICS} for word in ("alltoall", "deepep"))
    assert node_wise["infiniband"] < 0.7 * plain["infiniband"]
    assert plain["infiniband"] < plain["roce"] < plain["efa"] < plain["ethernet"]
    assert 1.8 < plain["efa"] / plain["infiniband"] < 2.4
    assert node_wise["efa"] > plain["efa"]  # as AWS measured it


@pytest.mark.parametrize("group", ["fabric", "exchange", "dispatch"])
def test_every_kind_of_network_has_its_shares(group: str) -> None:
    shares = constants().row(group, FABRICS)
    assert shares[0] == 1
    assert ((shares > 0) & (shares <= 1)).all()
