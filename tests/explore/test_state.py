"""A page's state as a link and as a command: both give back what they were made of."""

from __future__ import annotations

import shlex

import pytest

from scalewright.cli.verbs.predict import AS_WELL, LAYOUT, read_pairs
from scalewright.explore.answer import price_state
from scalewright.explore.state import State, read_state
from scalewright.spec.errors import UserError

NAMES = {"llama-3.1-8b"}, {"dgx-h100"}
LAYOUTS = [
    {"devices": 64, "tp": 2},
    {"devices": 64, "pp": 2, "stage_layers": [15, 17], "recompute": {"every": 2}, "global_batch": 64},
    {"devices": 8, "recompute": {"budget": 0.5}, "sp": False, "tp": 2, "zero_stage": 0, "precision": "fp8"},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["sizes", "stages", "budget"])
def test_a_link_restores_the_state(layout):
    full = price_state(State("llama-3.1-8b", "dgx-h100", 4096, layout)).full
    restored = read_state(full.query(), *NAMES)
    assert restored.query() == full.query()
    assert price_state(restored).full == full


@pytest.mark.parametrize("layout", LAYOUTS, ids=["sizes", "stages", "budget"])
def test_the_command_means_the_same_layout(layout):
    priced = price_state(State("llama-3.1-8b", "dgx-h100", 4096, layout))
    words = shlex.split(priced.full.command())
    assert words[:8] == [
        "scalewright",
        "predict",
        "llama-3.1-8b",
        "--cluster",
        "dgx-h100",
        "--seq-len",
        "4096",
        "--layout",
    ]
    pairs = read_pairs(words[8], "--layout", LAYOUT | set(AS_WELL))
    again = price_state(State("llama-3.1-8b", "dgx-h100", 4096, pairs))
    assert again.prediction.step_time_s == priced.prediction.step_time_s
    assert again.full == priced.full


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("", "unknown model ''"), ("model=/etc/passwd&cluster=dgx-h100", "unknown model '/etc/passwd'"),
        ("model=llama-3.1-8b&cluster=nowhere", "unknown cluster 'nowhere'"),
        ("model=llama-3.1-8b&cluster=dgx-h100&tp=two", "tp is 'two'"),
        ("model=llama-3.1-8b&cluster=dgx-h100&tp=-1", "tp is '-1'"),
        ("model=llama-3.1-8b&cluster=dgx-h100&seq_len=" + "9" * 40, "seq_len is '9"),
        ("model=llama-3.1-8b&cluster=dgx-h100&tq=2", "unknown key 'tq'"),
        ("model=llama-3.1-8b&cluster=dgx-h100&recompute=budget=much", "budget is 'much'"), ("model", "can't be read"),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused(query, what):
    with pytest.raises(UserError) as error:
        read_state(query, *NAMES)
    assert what in str(error.value)
    assert error.value.how
