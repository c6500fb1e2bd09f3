"""CPU processes of several machines: what crosses the links between them, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fake_machine import machine
from scalewright.plan.cost.cpu import Between
from scalewright.plan.predict import predict
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec

RATE, DELAY = 50e6, 2e-3
MODEL = ModelSpec.parse({
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "context": 128, "name": "small",
})  # fmt: skip


def between(node: int, one_node: bool = False) -> Between:
    chip = SimpleNamespace(node=node, one_node=one_node, fabric_rate=RATE, fabric_delay=DELAY)
    at = SimpleNamespace(table=SimpleNamespace(units=[SimpleNamespace(chip=chip)], unit=[0]))
    return Between(at)  # type: ignore[arg-type]


def number(value: float) -> np.ndarray:
    return np.array([float(value)])


def hosts(nodes: int) -> ClusterSpec:
    """Four processes of the made-up machine, on so many machines that a slow network joins."""
    place = machine(4)
    device, inner = (level.dump() for level in place.levels)
    fabric = {"name": "fabric", "kind": "ethernet", "size": None, "bytes_per_s": RATE, "latency_s": DELAY}
    inside = [{**inner, "size": 4 // nodes}] if nodes < 4 else []
    levels = [device, *inside, *([fabric] if nodes > 1 else [])]
    return place.replace(devices_per_node=4 // nodes, nodes=nodes, levels=levels)


@pytest.mark.parametrize(
    ("node", "group", "stride", "crosses"),
    [(2, 2, 1, False), (2, 2, 2, True), (2, 4, 1, True), (1, 2, 1, True), (4, 4, 1, False)],
)
def test_a_group_crosses_where_its_ranks_are_on_two_machines(
    node: int, group: int, stride: int, crosses: bool
) -> None:
    assert bool(between(node).leaves(number(group), number(stride))[0]) == crosses
    assert not between(node, one_node=True).leaves(number(group), number(stride))[0]


def test_a_ring_waits_for_its_slowest_link_in_every_step() -> None:
    size, ranks = 4e6, 4
    steps = 2 * (ranks - 1)
    whole = between(2).ring("all_reduce", number(size), number(ranks), number(1))[0]
    assert whole == pytest.approx(steps * (DELAY + size / ranks / RATE))
    assert between(2).ring("all_gather", number(size), number(ranks), number(1))[0] == pytest.approx(
        whole / 2
    )
    # two groups of two ranks, one of each machine: both send over the same link at once
    shared = between(2).ring("all_reduce", number(size), number(2), number(2))[0]
    assert shared == pytest.approx(2 * (DELAY + size / 2 * 2 / RATE))


@pytest.mark.parametrize(
    ("node", "stride", "span", "part"), [(2, 1, 4, 1 / 3), (2, 2, 4, 1.0), (1, 1, 4, 1.0), (4, 1, 4, 0.0)]
)
def test_the_part_of_a_pipelines_messages_that_cross(node: int, stride: int, span: int, part: float) -> None:
    assert between(node).crossing(number(stride), number(span))[0] == pytest.approx(part)


def test_what_stays_within_a_machine_costs_what_it_did() -> None:
    inside = Layout.parse({"devices": 2, "tp": 2, "global_batch": 4, "precision": "fp32"})
    across = Layout.parse({"devices": 4, "tp": 4, "global_batch": 4, "precision": "fp32"})
    one, two = hosts(1), hosts(2)
    assert predict(MODEL, two, inside, 128).step_time_s == predict(MODEL, one, inside, 128).step_time_s
    assert predict(MODEL, two, across, 128).step_time_s > predict(MODEL, one, across, 128).step_time_s
