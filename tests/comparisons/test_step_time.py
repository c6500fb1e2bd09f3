"""The script that times every technique: it runs, and its bytes are those seen, counted as on a ring."""

from __future__ import annotations

from typing import Any

import pytest
from harness.live_traffic import busiest, measure, on_a_ring

from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import place
from scalewright.spec.tensors import count

MODEL = ModelSpec.parse(
    {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
    | {"num_attention_heads": 4, "context": 16}
)
PSI = 4 * count(MODEL).total  # bytes
ROOT = 4 * sum(
    p.tensor.size for p in place(MODEL, Layout()) if not p.tensor.name.startswith("layers.")
)  # embedding, last norm and head


def sent(**layout: Any) -> dict[str, float]:
    return busiest(
        measure(
            {
                "model": MODEL.dump(),
                "device": "cpu",
                "layout": {"precision": "fp32", "global_batch": 4, **layout},
                "data": {"train": "nowhere", "seq_len": 16},
            }
        )
    )


@pytest.mark.parametrize("stage", [0, 1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_the_pages_formulas(stage):
    """docs/layouts.md, on two ranks with two micro-batches each: half of every gather and scatter."""
    whole = {0: 2 * PSI, 1: 2 * PSI, 2: 3 * PSI, 3: 2 * (2 * PSI - ROOT) + 2 * PSI}[stage]
    assert sent(devices=2, zero_stage=stage) == {"dp_shard": whole / 2}


def test_one_device_sends_nothing():
    assert sent() == {}


def test_a_ring():
    def of(kind: str, ranks: int) -> dict[str, Any]:
        return {"axis": "a", "kind": kind, "group_size": ranks, "count": 1, "bytes": 400}

    assert on_a_ring([of("all_reduce", 4)]) == {"a": 600}
    assert on_a_ring([of("all_gather", 4), of("reduce_scatter", 4)]) == {"a": 600}
    assert on_a_ring([of("send", 2)]) == {"a": 400}
    assert busiest([[of("send", 2)], [of("all_reduce", 4)]]) == {"a": 600}


@pytest.mark.slow
def test_the_script(script):
    name = "devices=2 zero_stage=3"
    data, text = script("step_time.py", "--quick", "--layouts", name)
    assert set(data["times_s"]) == set(data["collectives"]) == {"one device", name}
    assert all(seconds > 0 for found in data["times_s"].values() for seconds in found)
    assert len(data["collectives"][name]) == 2
    row = next(line for line in text.splitlines() if f"`{name}`" in line)
    assert f"dp_shard {busiest(data['collectives'][name])['dp_shard'] / 1e6:.1f}" in row
    assert data["finished"] >= data["started"]
