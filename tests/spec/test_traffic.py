"""A step's traffic against the papers' closed forms; against the program: tests/parallel/test_traffic.py."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rank_states import state_bytes
from tests.rank_traffic import Table, step_traffic, wire_bytes

from scalewright.learn.communication import pipeline_volume, replica_volume, tensor_volume, zero_volume
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import place
from scalewright.spec.presets import load_model_spec
from scalewright.spec.tensors import count

LLAMA = load_model_spec("llama-3.1-8b")
PSI = count(LLAMA).total
ROOT = sum(p.tensor.size for p in place(LLAMA, Layout()) if not p.tensor.name.startswith("layers."))
SEQ_LEN = 4096
STREAM = SEQ_LEN * LLAMA.hidden_size


def _step(keys: dict[str, Any], rank: int = 0, model: ModelSpec = LLAMA) -> Table:
    layout = Layout.parse({"precision": "fp32", **keys})  # so that every number has 4 bytes
    return step_traffic(model, layout, SEQ_LEN, rank)


@pytest.mark.parametrize("micros", [1, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_as_in_its_paper(stage: int, micros: int) -> None:
    table = _step({"devices": 8, "zero_stage": stage, "global_batch": 8 * micros})
    kept = ROOT * micros if stage == 3 else 0  # the root isn't freed between forward and backward
    assert wire_bytes(table, "dp_shard") == 4 * (zero_volume(PSI, stage, micros) - kept)
    kinds = ["all_reduce"] if stage == 0 else ["all_gather", "reduce_scatter"]
    assert set(table) == {("dp_shard", kind) for kind in kinds}


def test_bf16_gathers_half_the_bytes_and_reduces_all() -> None:
    keys = {"devices": 8, "zero_stage": 3}
    low, full = _step({**keys, "precision": "bf16"}), _step(keys)
    assert 2 * low["dp_shard", "all_gather"].bytes == full["dp_shard", "all_gather"].bytes
    assert low["dp_shard", "reduce_scatter"] == full["dp_shard", "reduce_scatter"]


def test_hsdp_sends_a_shard_between_replicas() -> None:
    table = _step({"devices": 16, "zero_stage": 3, "dp_replicate": 2, "global_batch": 64})
    assert wire_bytes(table, "dp_replicate") == 4 * replica_volume(PSI, 8)  # once, whatever the micro-batches


@pytest.mark.parametrize("sp", [False, True])
def test_tensor_parallelism_as_in_its_papers(sp: bool) -> None:
    layers, tp = LLAMA.num_hidden_layers, 8
    table = _step({"devices": tp, "tp": tp, "sp": sp, "micro_batch": 2})
    ends = 2 * STREAM * 2 * 2  # out of the embedding, into the head: an all-reduce, or its two halves, each
    loss = 2 * 2 * SEQ_LEN * tp  # two numbers a token from every rank
    norms = 2 * (2 * layers + 1) * LLAMA.hidden_size if sp else 0  # their gradients
    blocks = wire_bytes(table, "tp") / 4 - ends - loss - norms
    assert blocks * (tp - 1) / tp == tensor_volume(2, SEQ_LEN, LLAMA.hidden_size, tp, layers, sp)


def test_sequence_parallelism_sends_no_more_when_it_recomputes_as_much() -> None:
    """An all-reduce is a reduce-scatter and an all-gather (Korthikanti et al. 2022 §4.2.2)."""
    keys = {"devices": 8, "tp": 8, "recompute": "full"}
    plain, sequence = (_step({**keys, "sp": sp}) for sp in (False, True))
    norms = (2 * LLAMA.num_hidden_layers + 1) * LLAMA.hidden_size
    # Recomputation repeats the end of attention, an all-reduce or half of one, and stops before that
    # of the MLP; with sp it also repeats both beginnings, each a gather: half an all-reduce.
    more = LLAMA.num_hidden_layers * STREAM
    assert wire_bytes(sequence, "tp") == wire_bytes(plain, "tp") + 4 * (2 * norms + more)


@pytest.mark.parametrize(
    ("schedule", "rank", "boundaries"),
    [("1f1b", 0, 1), ("1f1b", 1, 2), ("1f1b", 3, 1), ("interleaved", 0, 3), ("interleaved", 1, 4),
     ("zbv", 0, 2), ("zbv", 3, 2), ("zbv", 1, 4), ("dualpipev", 2, 4)],
)  # fmt: skip
def test_pipelines_send_at_every_boundary_between_ranks(schedule: str, rank: int, boundaries: int) -> None:
    table = _step({"devices": 4, "pp": 4, "schedule": schedule, "global_batch": 8}, rank)
    assert set(table) == {("pp", "send")}
    assert wire_bytes(table, "pp") == 4 * pipeline_volume(1, SEQ_LEN, LLAMA.hidden_size, 8, boundaries)
    half = _step({"devices": 8, "pp": 4, "tp": 2, "schedule": schedule, "global_batch": 8}, 2 * rank)
    assert 2 * half["pp", "send"].bytes == table["pp", "send"].bytes  # with sp each rank sends its tokens


def test_a_tied_head_is_summed_where_it_is_on_another_rank() -> None:
    tied = LLAMA.replace(tie_word_embeddings=True)
    size = LLAMA.vocab_size * LLAMA.hidden_size
    for rank, expected in ((0, 1), (1, 0), (3, 1)):
        table = _step({"devices": 4, "pp": 4, "global_batch": 8}, rank, tied)
        assert (("tie", "all_reduce") in table) == bool(expected)
        if expected:
            assert table["tie", "all_reduce"].bytes == 4 * size
    v = _step({"devices": 4, "pp": 4, "schedule": "zbv", "global_batch": 8}, 0, tied)
    assert set(v) == {("pp", "send")}


def test_layouts_that_do_not_train_have_no_traffic() -> None:
    with pytest.raises(ValueError, match="nothing trains"):
        _step({"pp": 2, "devices": 2, "schedule": "dualpipe", "global_batch": 4})


@pytest.mark.parametrize(("stage", "parts"), [(0, 1), (1, 8), (2, 8), (3, 8)])
def test_memory_by_zero_stage(stage: int, parts: int) -> None:
    layout = Layout.parse({"devices": 8, "zero_stage": stage})
    kept = state_bytes(LLAMA, layout, bf16=True)
    copies = 2 * PSI if stage == 0 else 0
    assert kept.parameters == 4 * PSI // parts + copies
    assert kept.gradients == 4 * PSI // parts
    assert kept.optimizer == 8 * PSI // parts + 4 * len(place(LLAMA, layout))
