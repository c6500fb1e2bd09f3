"""CPU processes of several machines: what crosses the links between them, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fake_machine import machine
from scalewright.plan.constants import constants
from scalewright.plan.cost.cpu import Between
from scalewright.plan.cost.timeline import _fill
from scalewright.plan.predict import predict
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.volumes import Transfer

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
def test_a_group_crosses_where_its_ranks_are_on_two_machines(node: int, group: int, stride: int, crosses: bool) -> None:
    assert bool(between(node).leaves(number(group), number(stride))[0]) == crosses
    assert not between(node, one_node=True).leaves(number(group), number(stride))[0]


def test_a_ring_waits_for_its_slowest_link_in_every_step() -> None:
    size, ranks = 4e6, 4
    steps = 2 * (ranks - 1)
    whole = between(2).ring("all_reduce", number(size), number(ranks), number(1))[0]
    assert whole == pytest.approx(steps * (DELAY + size / ranks / RATE))
    assert between(2).ring("all_gather", number(size), number(ranks), number(1))[0] == pytest.approx(whole / 2)
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


def crowded_by(cores: int | None, share: float = 1.0, **keys: Any) -> dict[str, float]:
    """Seconds by part on one machine with so many cores, or so much of one, for its four processes."""
    place = machine(4)
    assert place.measured is not None
    assert place.measured.timings is not None
    timings = place.measured.timings.replace(cores=cores, share=share)
    place = place.replace(measured={**place.measured.dump(), "timings": timings.dump()})
    layout = Layout.parse({"devices": 4, "global_batch": 16, "precision": "fp32", **keys})
    return predict(MODEL, place, layout, 128).breakdown


def test_processes_without_a_core_of_their_own_take_turns() -> None:
    enough, half = crowded_by(4, zero_stage=0), crowded_by(2, zero_stage=0)
    assert crowded_by(None, zero_stage=0) == enough
    more = half["compute"] - enough["compute"]
    assert enough["compute"] < more < enough["compute"] + enough["other"]  # Python around operators, too
    assert half["optimizer"] == pytest.approx(2 * enough["optimizer"])
    assert half["dp_exposed"] == enough["dp_exposed"]  # who waits for a message needs no core


def test_a_share_of_a_core_stretches_what_a_process_does_and_no_message() -> None:
    whole, half = (crowded_by(4, share, zero_stage=0) for share in (1.0, 0.5))
    for part in ("compute", "optimizer"):
        assert half[part] == pytest.approx(2 * whole[part])
    calls = (half["dp_exposed"] - whole["dp_exposed"]) / constants()["cpu.message"]
    assert calls == pytest.approx(1)  # Python around the one all-reduce; its bytes travel as before


def test_a_core_that_a_pipelines_fill_leaves_is_anothers() -> None:
    keys = {"pp": 4, "zero_stage": 0, "micro_batch": 4, "schedule": "1f1b"}
    enough, half = crowded_by(4, **keys), crowded_by(2, **keys)
    more, alone = half["compute"] - enough["compute"], enough["compute"] - enough["pp_bubble"]
    assert alone < more < alone + enough["other"]
    assert half["pp_bubble"] == enough["pp_bubble"]


@pytest.mark.parametrize("splits", [False, True])
def test_stages_wait_for_what_others_gather_and_reduce(splits: bool) -> None:
    """A gather once, a reduction in each of four micro-batches, one in the last, which zb-h1 splits off."""
    parts = [
        SimpleNamespace(transfer=Transfer("fsdp", kind, 1.0, 1.0, "all"), seconds=number(s), rounds=number(r))
        for kind, s, r in (("all_gather", 3.0, 1), ("reduce_scatter", 8.0, 4), ("reduce_scatter", 5.0, 1))
    ]
    once = 3.0 + 2.0 + (0.0 if splits else 5.0)
    for pp in (1, 2, 4):
        at = SimpleNamespace(table=Rows(number(pp), splits))
        assert _fill(at, parts)[0] == pytest.approx((pp - 1) * once)  # type: ignore[arg-type]


class Rows(SimpleNamespace):
    """A table of rows with so many pipeline ranks."""

    def __init__(self, pp: np.ndarray, splits: bool) -> None:
        super().__init__(pp=pp, schedules=lambda _: np.array([splits]))

    def __len__(self) -> int:
        return len(self.pp)


def test_a_network_sends_by_itself() -> None:
    """On one machine the sender's core copies a message; between machines the rank goes on."""
    layout = Layout.parse({"devices": 4, "pp": 4, "global_batch": 64, "micro_batch": 4, "precision": "fp32"})
    slow, fast = hosts(4), hosts(4)
    device, fabric = (level.dump() for level in fast.levels)
    fast = fast.replace(levels=[device, {**fabric, "bytes_per_s": 2 * RATE, "latency_s": DELAY}])
    message = 4 * 4 * 128 * MODEL.hidden_size * (1 / RATE - 1 / (2 * RATE))
    less = predict(MODEL, slow, layout, 128).breakdown["pp_exposed"]
    less -= predict(MODEL, fast, layout, 128).breakdown["pp_exposed"]
    received, filled = 16 * 2, 2 * (4 - 1)  # activations and gradients of 16 micro-batches; fill and drain
    assert less <= (received + filled) * message * 1.01
