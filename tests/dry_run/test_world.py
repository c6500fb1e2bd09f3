"""A dry run, in one process and from a few micro-batches, against a whole step of real ranks on Gloo.

Every number must be the same: bytes and counts of every collective, FLOPs, and every kind of memory.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.few_logits import few_logits
from tests.runs import MODEL
from tests.worlds import run_world

from scalewright.dry_run.dry_run import dry_run
from scalewright.dry_run.rehearse import Player
from scalewright.dry_run.replay import RankStep
from scalewright.dry_run.watch import Watch
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.run import RunSpec
from scalewright.train.network import build_network, first_weights
from scalewright.train.resolve import resolve

SEQ_LEN = 16
QUICK: dict[str, dict[str, Any]] = {
    "ddp": {"devices": 2, "zero_stage": 0, "global_batch": 6},
    "tp, sp": {"devices": 2, "tp": 2, "global_batch": 4},
    "zbv": {"devices": 2, "pp": 2, "schedule": "zbv", "global_batch": 5},
}
SLOW: dict[str, dict[str, Any]] = {
    "fsdp, accumulation": {"devices": 2, "global_batch": 8},
    "1f1b": {"devices": 2, "pp": 2, "global_batch": 7},
    "zero 1": {"devices": 2, "zero_stage": 1, "global_batch": 8},
    "zero 2, bf16": {"devices": 2, "zero_stage": 2, "global_batch": 8, "precision": "bf16"},
    "ddp, bf16": {"devices": 2, "zero_stage": 0, "global_batch": 6, "precision": "bf16"},
    "hsdp": {"devices": 4, "dp_replicate": 2, "global_batch": 8},
    "tp, no sp, recompute": {"devices": 2, "tp": 2, "sp": False, "recompute": "full"},
    "tp 4 over 2 KV heads, selective": {"devices": 4, "tp": 4, "recompute": "selective"},
    "gpipe": {"devices": 2, "pp": 2, "schedule": "gpipe", "global_batch": 5},
    "interleaved": {"devices": 2, "pp": 2, "schedule": "interleaved", "global_batch": 8},
    "zb-h1, fsdp": {"devices": 4, "pp": 2, "schedule": "zb-h1", "global_batch": 10},
    "zb-interleaved": {"devices": 2, "pp": 2, "schedule": "zb-interleaved", "global_batch": 8},
    "dualpipev": {"devices": 2, "pp": 2, "schedule": "dualpipev", "global_batch": 8},
    "pp 4, uneven": {"devices": 4, "pp": 4, "global_batch": 6, "stage_layers": [1, 2, 1, 1]},
    "pp, tp, fsdp": {"devices": 8, "pp": 2, "tp": 2, "global_batch": 10},
    "pp, tp, zero 1, bf16": {"devices": 8, "pp": 2, "tp": 2, "zero_stage": 1, "precision": "bf16", "global_batch": 10},
}


# Micro-batches large enough for a head in chunks, once these are small (spec/loss_chunks.py).
IN_CHUNKS: dict[str, dict[str, Any]] = {
    "tp, sp, zero 3": {"devices": 4, "tp": 2, "micro_batch": 2, "global_batch": 8},
    "zb-h1, bf16": {
        "devices": 2,
        "pp": 2,
        "schedule": "zb-h1",
        "micro_batch": 4,
        "global_batch": 16,
        "precision": "bf16",
    },
}


def run_of(layout: dict[str, Any], **model: Any) -> RunSpec:
    layers = sum(layout.get("stage_layers", ())) or 4
    return RunSpec.parse(
        {
            "model": {**MODEL, "num_hidden_layers": layers, **model},
            "layout": {"precision": "fp32", **layout},
            "data": {"train": "nowhere", "seq_len": SEQ_LEN, "document_mask": False},
        }
    )


def measure(mesh: Mesh, layout: Layout, run: dict[str, Any]) -> Any:
    """The second step of a real rank."""
    resolved = resolve(RunSpec.parse(run), read_data=False).run
    unshared = make_mesh(make_grid(layout, MODEL["num_key_value_heads"]), mesh.rank, mesh.device, share=False)
    network = build_network(resolved, unshared, bf16=layout.precision == "bf16")
    with Watch(unshared) as watch:
        player = Player(resolved, network.parallel, unshared, SEQ_LEN, watch)
        first_weights(resolved, network, unshared)
        player.run_step(layout.accumulation)
        return plain(player.run_step(layout.accumulation))


def plain(step: RankStep) -> dict[str, Any]:
    return {
        "flops": step.flops,
        "traffic": [[*key, *value] for key, value in sorted(step.traffic.items())],
        "most": step.most,
        "peak": step.peak,
    }


def check(layout: dict[str, Any], **model: Any) -> None:
    run = run_of(layout, **model)
    measured = run_world(measure, run.layout.dump(), run.dump())
    for group in dry_run(run).groups:
        for rank in group.ranks:
            compare(plain(group.step), measured[rank])


def compare(dry: dict[str, Any], real: dict[str, Any]) -> None:
    """Equal; but Gloo's own threads let go of a sent tensor some time after it has arrived."""
    assert real["traffic"] == dry["traffic"]
    assert real["flops"] == dry["flops"]
    lingering = 2 * max((sent // count for *_, count, sent in dry["traffic"] if sent), default=0)
    for kind, most in dry["most"].items():
        slack = 0 if kind in ("parameters", "gradients", "optimizer") else lingering
        assert most <= real["most"][kind] <= most + slack, kind
    assert dry["peak"] <= real["peak"] <= dry["peak"] + lingering


@pytest.mark.parametrize("name", QUICK)
def test_equal(name: str) -> None:
    check(QUICK[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_equal_too(name: str) -> None:
    check(SLOW[name])


@pytest.mark.slow
def test_tied_ends_on_two_ranks_and_on_one() -> None:
    check({"devices": 2, "pp": 2, "global_batch": 5}, tie_word_embeddings=True)
    check({"devices": 4, "pp": 2, "schedule": "zbv", "global_batch": 10}, tie_word_embeddings=True)


def measure_in_chunks(mesh: Mesh, layout: Layout, run: dict[str, Any]) -> Any:
    """The same with a few logits at once."""
    few_logits(200)
    return measure(mesh, layout, run)


@pytest.mark.parametrize("name", ["tp, sp, zero 3", pytest.param("zb-h1, bf16", marks=pytest.mark.slow)])
def test_equal_with_the_head_in_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its FLOPs are those of whole logits."""
    run = run_of(IN_CHUNKS[name], num_hidden_layers=2, logit_softcap=5.0, head_bias=True)
    whole = dry_run(run).groups
    measured = run_world(measure_in_chunks, run.layout.dump(), run.dump())
    few_logits(200, put=monkeypatch.setattr)
    groups = dry_run(run).groups
    assert [group.step.flops for group in groups] == [group.step.flops for group in whole]
    assert [group.step.most for group in groups] != [group.step.most for group in whole]
    for group in groups:
        for rank in group.ranks:
            compare(plain(group.step), measured[rank])
