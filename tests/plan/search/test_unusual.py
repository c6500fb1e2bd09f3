"""What nobody has measured has to be faster by a margin; rows are counted as their layouts are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plan.searches import search
from scalewright.plan.request import from_layout
from scalewright.plan.search.axes import make_space
from scalewright.plan.search.unusual import EACH, MOST, handicap, unusual
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec

LLAMA, H100 = load_model_spec("llama-3.1-8b"), load_cluster("dgx-h100")
RUN = from_layout(LLAMA, H100, Layout(devices=64, tp=2, zero_stage=1, global_batch=512), 8192, "megatron")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"tp": 16}, ["tp 16 over nodes"]),
        ({"cp": 4}, ["cp 4 at 8192 tokens"]),
        ({"zero_stage": 2, "accumulation": 32.0}, ["zero_stage 2 with megatron", "ZeRO-2 over 32 micro-batches"]),
        ({"cp": 64, "seq_len": 2**20}, ["cp 64, above any measured"]),
        ({"offload": "optimizer"}, ["offload optimizer"]),
    ],
)
def test_it_is_named(changes: dict[str, object], words: list[str]) -> None:
    assert unusual(replace(RUN, **changes)) == words  # type: ignore[arg-type]


def test_rows_are_counted_as_their_layouts() -> None:
    space = make_space(RUN, 512, {})
    rows = space.spread_offloads(space.spread_shards(space.spread_pipes(space.bare(np.arange(space.cores)))))
    rows = rows.take(np.random.default_rng(2).choice(len(rows), 60, replace=False))
    for i, factor in enumerate(handicap(space, rows)):
        asked = from_layout(LLAMA, H100, Layout.parse(space.keys(rows, i)), 8192, "megatron")
        assert factor == pytest.approx((1 + EACH) ** min(len(unusual(asked)), MOST))


def test_the_fastest_comes_first_without_a_margin_and_else_what_is_usual() -> None:
    arguments = {"devices": 16, "seq_len": 8192, "global_batch": 512, "explain": False}
    fastest, usual = (search(LLAMA, H100, margin=margin, **arguments) for margin in (0.0, 0.02))  # type: ignore[arg-type]
    first, other = fastest.best[0], usual.best[0]
    assert first.score <= other.score <= first.score * 1.02 * (1 + EACH) ** MOST
    assert len(unusual(other.prediction.request)) <= len(unusual(first.prediction.request))
