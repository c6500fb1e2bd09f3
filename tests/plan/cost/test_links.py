"""Seconds of collectives against the textbook, and what several NICs and levels change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scalewright.plan.cost.links import Torus, Wires, all_reduce, all_to_all, gather

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
