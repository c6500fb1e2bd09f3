"""What real ranks send in a step, seen on Gloo, against the papers' formulas; equal, with every extra named.

    data parallel        2 Psi, ZeRO-1 and 2: 2 Psi, ZeRO-3: 3 Psi     Rajbhandari et al. 2020 §7
    HSDP                 2 Psi / n between the replicas                Zhao et al. 2023 §3.2.2
    tensor parallel      4 all-reduces of b s h a layer                Shoeybi et al. 2019 §3
    and sequence p.      as much, and two gathers again to keep less   Korthikanti et al. 2022 §4.2.2
    pipeline             b s h a boundary and micro-batch              Narayanan et al. 2021 §3.2

Numbers that pass on the wire: an all-reduce counts twice (it is a reduce-scatter and an all-gather). Sizes
are powers of two, so that nothing is padded, and all numbers are fp32.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds import run_world

from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.parallel.watch import Watch
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import place
from scalewright.spec.run import RunSpec
from scalewright.spec.tensors import count
from scalewright.spec.traffic import Traffic
from scalewright.spec.traffic_papers import (
    pipeline_volume,
    replica_volume,
    tensor_volume,
    wire_bytes,
    zero_volume,
)
from scalewright.train.network import build_network, first_weights
from scalewright.train.rehearse import Player
from scalewright.train.resolve import resolve

B, S, H, LAYERS, VOCABULARY = 2, 16, 32, 4, 64
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


def measure(mesh: Mesh, layout: Layout, run: dict[str, Any]) -> Any:
    """What a rank sends in its second step: [axis, kind, count, bytes]."""
    resolved = resolve(RunSpec.parse(run), read_data=False).run
    own = make_mesh(mesh.grid, mesh.rank, mesh.device, share=False)
    network = build_network(resolved, own, bf16=False)
    with Watch(own) as watch:
        player = Player(resolved, network.parallel, own, S, watch)
        first_weights(resolved, network, own)
        for _ in range(2):
            player.run_step(layout.accumulation)
        return [[c.axis, c.kind, c.count, c.bytes] for c in watch.collectives]


def sent(axis: str, **keys: Any) -> list[float]:
    """Numbers that each rank sends over an axis in a step."""
    layout = {"precision": "fp32", "micro_batch": B, **keys}
    data = {"train": "nowhere", "seq_len": S, "document_mask": False}
    run = RunSpec.parse({"model": KEYS, "layout": layout, "data": data})
    answers = run_world(measure, run.layout.dump(), run.dump())
    tables = [{(on, kind): Traffic(n, size) for on, kind, n, size in found} for found in answers]
    return [wire_bytes(table, axis) / FP32 for table in tables]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero(stage: int) -> None:
    micros = 3
    kept = ROOT * micros if stage == 3 else 0  # embedding, last norm and head stay from forward to backward
    numbers = sent("dp_shard", devices=2, zero_stage=stage, global_batch=2 * B * micros)
    assert numbers == [zero_volume(PSI, stage, micros) - kept] * 2


def test_zero_in_the_papers_own_case_of_one_micro_batch() -> None:
    for stage, times in ((1, 2), (2, 2), (3, 3)):
        kept = ROOT if stage == 3 else 0
        assert sent("dp_shard", devices=2, zero_stage=stage) == [times * PSI - kept] * 2


@pytest.mark.slow
def test_hsdp() -> None:
    keys = {"devices": 4, "dp_replicate": 2, "zero_stage": 3, "global_batch": 4 * B * 2}
    assert sent("dp_replicate", **keys) == [replica_volume(PSI, 2)] * 4
    assert sent("dp_shard", **keys) == [zero_volume(PSI, 3, 2) - 2 * ROOT] * 4


@pytest.mark.parametrize("sp", [False, True])
def test_tensor_and_sequence(sp: bool) -> None:
    tp = 2
    ends = 2 * STREAM * 2  # out of the embedding and into the head: an all-reduce each, or its two halves
    loss = 2 * B * S * tp  # two numbers a token, gathered
    norms = 2 * (2 * LAYERS + 1) * H if sp else 0  # their gradients: each rank has seen its tokens
    for numbers in sent("tp", devices=tp, tp=tp, sp=sp):
        blocks = numbers - ends - loss - norms
        assert blocks * (tp - 1) / tp == tensor_volume(B, S, H, tp, LAYERS, sp)


@pytest.mark.parametrize(
    ("schedule", "boundaries"),
    [
        ("1f1b", [1, 1]),
        pytest.param("interleaved", [3, 3], marks=pytest.mark.slow),
        pytest.param("zbv", [2, 2], marks=pytest.mark.slow),
    ],
)
def test_pipeline(schedule: str, boundaries: list[int]) -> None:
    micros = 4
    numbers = sent("pp", devices=2, pp=2, schedule=schedule, global_batch=B * micros)
    assert numbers == [pipeline_volume(B, S, H, micros, n) for n in boundaries]
