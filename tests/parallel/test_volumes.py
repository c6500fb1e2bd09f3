"""The numbers that real ranks send in a step on Gloo equal the papers' formulas, with every extra named.

    data parallel        2 Psi, ZeRO-1 and 2: 2 Psi, ZeRO-3: 3 Psi     Rajbhandari et al. 2020 §7
    HSDP                 2 Psi / n between the replicas                Zhao et al. 2023 §3.2.2
    tensor parallel      4 all-reduces of b s h a layer                Shoeybi et al. 2019 §3
    and sequence p.      as much, and two gathers again to keep less   Korthikanti et al. 2022 §4.2.2
    pipeline             b s h a boundary and micro-batch              Narayanan et al. 2021 §3.2
    context parallel     ring: 3 (c-1) times a rank's keys and values  Liu et al. 2023 §3
                         Ulysses: 8 b s h / c in all-to-alls           Jacobs et al. 2023 §3.2

Every kind on its own axis has its own number, and nothing else is sent but some scalars (loss and norm): an
all-reduce instead of its two halves would sum to as much. The wire's traffic is summed beside the papers'
totals: there an all-reduce counts twice. Groups are of four, where a share and the rest of it differ, and
replicas are not as many as shards. Sizes are powers of two, so that nothing is padded; all numbers are fp32.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds import run_world

from scalewright.dry_run.rehearse import Player
from scalewright.dry_run.watch import Watch
from scalewright.learn.communication import (
    PASSES,
    context_volume,
    pipeline_volume,
    replica_volume,
    ring_volume,
    tensor_volume,
    zero_volume,
)
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import place
from scalewright.spec.run import RunSpec
from scalewright.spec.tensors import count
from scalewright.train.network import build_network, first_weights
from scalewright.train.resolve import resolve

B, S, H, LAYERS, VOCABULARY = 2, 16, 32, 2, 64
KEYS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": H,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
}
MODEL = ModelSpec.parse(KEYS)
PSI = count(MODEL).total
ROOT = sum(p.tensor.size for p in place(MODEL, Layout()) if not p.tensor.name.startswith("layers."))
STREAM = B * S * H
FP32 = 4
SCALARS = 32  # numbers that aren't a model's: a step's report (train/columns.py) and its tokens in int64


def measure(mesh: Mesh, layout: Layout, run: dict[str, Any]) -> Any:
    """A rank's collectives and sends in its second step: [axis, kind, count, bytes]."""
    resolved = resolve(RunSpec.parse(run), read_data=False).run
    apart = make_mesh(mesh.grid, mesh.rank, mesh.device, share=False)
    network = build_network(resolved, apart, bf16=False)
    with Watch(apart) as watch:
        player = Player(resolved, network.parallel, apart, S, watch)
        first_weights(resolved, network, apart)
        for _ in range(2):
            player.run_step(layout.accumulation)
        return [[c.axis, c.kind, c.count, c.bytes] for c in watch.collectives]


# (axis, kind) -> numbers of its tensors: gathers' outputs, scatters' inputs
Sent = dict[tuple[str, str], float]


def sent(layers: int = LAYERS, **keys: Any) -> list[Sent]:
    """The numbers that each rank sends in a step, but for the scalars."""
    layout = {"precision": "fp32", "micro_batch": B, **keys}
    data = {"train": "nowhere", "seq_len": S, "document_mask": False}
    run = RunSpec.parse({"model": {**KEYS, "num_hidden_layers": layers}, "layout": layout, "data": data})
    ranks = run_world(measure, run.layout.dump(), run.dump())
    scalars = [size / FP32 for calls in ranks for axis, _, _, size in calls if axis == "control"]
    assert max(scalars) < SCALARS
    tables = [[call for call in calls if call[0] != "control"] for calls in ranks]
    return [{(axis, kind): size / FP32 for axis, kind, _, size in table} for table in tables]


def on_the_wire(table: Sent, axis: str) -> float:
    """Numbers that pass, without the share (n - 1) / n."""
    return sum(PASSES[kind] * size for (on, kind), size in table.items() if on == axis)


def zero_kinds(stage: int, micros: int) -> Sent:
    """Rajbhandari et al. 2020 §7, kind by kind, less what needn't be gathered again.

    Gradients are reduced: by an all-reduce in stage 0, from then on scattered, from stage 2 after each
    micro-batch. Parameters are gathered after the update, in stage 3 for each forward and each backward; but
    embedding, last norm and head stay from forward to backward.
    """
    if stage == 0:
        return {("dp_shard", "all_reduce"): PSI}
    gathered = (2 * PSI - ROOT) * micros if stage == 3 else PSI
    return {("dp_shard", "all_gather"): gathered, ("dp_shard", "reduce_scatter"): PSI if stage == 1 else PSI * micros}


def zero_total(stage: int, micros: int) -> float:
    """The paper's volume, less the same."""
    return zero_volume(PSI, stage, micros) - (ROOT * micros if stage == 3 else 0)


@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("stage", [0, pytest.param(1, marks=pytest.mark.slow), 2, 3])
def test_zero(stage: int, devices: int) -> None:
    micros = 3
    tables = sent(devices=devices, zero_stage=stage, global_batch=devices * B * micros)
    assert tables == [zero_kinds(stage, micros)] * devices
    assert on_the_wire(tables[0], "dp_shard") == zero_total(stage, micros)


def test_zero_in_the_papers_own_case_of_one_micro_batch() -> None:
    for stage, times in ((1, 2), (2, 2), (3, 3)):
        kept = ROOT if stage == 3 else 0
        for table in sent(devices=2, zero_stage=stage):
            assert table == zero_kinds(stage, 1)
            assert on_the_wire(table, "dp_shard") == times * PSI - kept


@pytest.mark.parametrize(("replicas", "shards"), [(2, 4), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_hsdp(replicas: int, shards: int) -> None:
    """Between replicas each rank all-reduces its own part, once: the part is 1 / shards, not 1 / replicas."""
    devices, micros = replicas * shards, 2
    keys = {"devices": devices, "dp_replicate": replicas, "zero_stage": 3, "global_batch": devices * B * micros}
    between: Sent = {("dp_replicate", "all_reduce"): PSI / shards}
    tables = sent(**keys)
    assert tables == [{**zero_kinds(3, micros), **between}] * devices
    assert on_the_wire(tables[0], "dp_replicate") == replica_volume(PSI, shards)


def tensor_kinds(tp: int, sp: bool) -> Sent:
    """A micro-batch of tensor parallelism (Shoeybi et al. 2019 §3), kind by kind.

    A block has two parts, each entered and left, forward and backward: 4 all-reduces of b s h. Two more are
    at the ends: out of the embedding, and into the head. With sequence parallelism each is its two halves,
    one in the forward and one in the backward, and a block's two entries are gathered again in the backward
    (Korthikanti et al. 2022 §4.2.2). Ours: two numbers a token are gathered for the loss; with sequence
    parallelism the norms' gradients are summed, since each rank has seen only its tokens.
    """
    loss, pairs = 2 * B * S * tp, 4 * LAYERS + 2
    if not sp:
        return {("tp", "all_reduce"): pairs * STREAM, ("tp", "all_gather"): loss}
    return {
        ("tp", "all_gather"): (pairs + 2 * LAYERS) * STREAM + loss,
        ("tp", "reduce_scatter"): pairs * STREAM,
        ("tp", "all_reduce"): (2 * LAYERS + 1) * H,
    }


@pytest.mark.parametrize("tp", [pytest.param(2, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("sp", [pytest.param(False, marks=pytest.mark.slow), True])
def test_tensor_and_sequence(sp: bool, tp: int) -> None:
    tables = sent(devices=tp, tp=tp, sp=sp)
    expected = tensor_kinds(tp, sp)
    assert tables == [expected] * tp
    ends = 2 * ring_volume("all_reduce", STREAM, tp)
    loss = ring_volume("all_gather", 2 * B * S * tp, tp)
    norms = ring_volume("all_reduce", (2 * LAYERS + 1) * H, tp) if sp else 0
    ring = sum(ring_volume(kind, size, tp) for (_, kind), size in tables[0].items())
    assert ring - ends - loss - norms == tensor_volume(B, S, H, tp, LAYERS, sp)


@pytest.mark.parametrize(
    ("schedule", "boundaries"),
    [
        ("1f1b", [1, 2, 2, 1]),
        pytest.param("1f1b", [1, 1], marks=pytest.mark.slow),
        pytest.param("interleaved", [3, 3], marks=pytest.mark.slow),
        pytest.param("zbv", [2, 2], marks=pytest.mark.slow),
    ],
)
def test_pipeline(schedule: str, boundaries: list[int]) -> None:
    micros, pp = 4, len(boundaries)
    tables = sent(2 * pp, devices=pp, pp=pp, schedule=schedule, global_batch=B * micros)
    assert tables == [{("pp", "send"): pipeline_volume(B, S, H, micros, n)} for n in boundaries]


@pytest.mark.parametrize("cp", [pytest.param(2, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("kind", ["ring", "allgather", "ulysses"])
def test_context(kind: str, cp: int) -> None:
    """Each kind by its own collectives; weights are summed as over other ranks with other tokens."""
    tables = sent(devices=cp, cp=cp, cp_kind=kind, zero_stage=0)
    part = STREAM / cp  # of q, k, v or the output: as many key-value heads as query heads
    expected: Sent = {
        "ring": {("cp", "all_to_all"): LAYERS * 3 * (cp - 1) * 2 * part},
        "allgather": {
            ("cp", "all_gather"): LAYERS * 2 * cp * 2 * part,
            ("cp", "reduce_scatter"): LAYERS * cp * 2 * part,
        },
        "ulysses": {("cp", "all_to_all"): LAYERS * 2 * 4 * part},
    }[kind]
    assert tables == [{("dp_shard", "all_reduce"): PSI, **expected}] * cp
    total = LAYERS * context_volume(B, S, H, cp, kind)
    if kind == "ring":  # a message goes to one rank, whole
        assert expected["cp", "all_to_all"] == total
    else:
        assert sum(ring_volume(call, size, cp) for (_, call), size in expected.items()) == total
