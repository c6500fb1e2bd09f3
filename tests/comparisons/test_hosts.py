"""The network between namespaces: packets leave one after the other and arrive a delay later."""

from __future__ import annotations

import os

import pytest
from harness.fabric import BEHIND, HEADER, Switch, target_of
from tests.comparisons.test_two_machines import may_make_namespaces

PACKET = bytes(HEADER) + bytes([0x45]) + bytes(18) + bytes([2]) + bytes(980)  # IPv4, to 0.0.0.2


def test_an_uplink_sends_one_packet_after_the_other() -> None:
    switch = Switch(rate=1e4, delay=0.5)
    for _ in range(3):
        switch.take(0, 1, PACKET, now=10.0)
    switch.take(1, 0, PACKET, now=10.0)  # another host's uplink is free
    one = (len(PACKET) - HEADER) / 1e4
    assert switch.pause(10.0) == pytest.approx(one + 0.5)
    assert [*switch.due(10.0 + one + 0.49)] == []
    assert [target for target, _ in switch.due(10.0 + one + 0.51)] == [1, 0]
    assert len([*switch.due(10.0 + 3 * one + 0.51)]) == 2
    assert switch.pause(20.0) is None


def test_a_full_queue_drops() -> None:
    switch = Switch(rate=1e4, delay=0.0)
    for _ in range(100):
        switch.take(0, 1, PACKET, now=0.0)
    assert switch.count == pytest.approx(BEHIND * 1e4 / (len(PACKET) - HEADER), abs=1.5)


@pytest.mark.parametrize(
    ("packet", "target"),
    [(PACKET, 1), (b"", None), (PACKET[: HEADER + 8], None), (bytes(HEADER) + b"\x60" + bytes(60), None)],
)
def test_a_packets_host_is_in_its_address(packet: bytes, target: int | None) -> None:
    assert target_of(packet) == target


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not may_make_namespaces() or not os.path.exists("/dev/net/tun"),
    reason="needs root, `ip`, namespaces and TUN devices",
)
def test_layouts_on_two_hosts_are_predicted_and_run(script) -> None:
    data, text = script("hosts.py", "--quick", timeout=800)
    assert len(data["measured"]) == 3
    assert data["link"]["bytes_per_s"] > 0
    assert {level["name"] for level in data["cluster"]["levels"]} >= {"fabric"}
    assert "Kendall tau" in text
