"""Rows of a user's table: what is filled is said, and a cell that would mean another question is refused."""

from __future__ import annotations

import numpy as np
import pytest

import scalewright as sw
from scalewright.inference.batch import answers
from scalewright.spec.errors import UserError

ROW = {
    "id": "a", "engine": "vllm", "model": "llama-3.1-8b", "device": "h100-sxm", "precision": "bf16",
    "kv_precision": "bf16", "n_devices": "4", "tp": "4", "input_len": "1024", "output_len": "256",
    "concurrency_or_batch": "16",
}  # fmt: skip


def answer(**cells):
    (got,) = answers([{**ROW, **cells}])
    return got


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"model": ""}, "model is blank"),
        ({"input_len": "abc"}, "input_len is 'abc'"),
        ({"input_len": ""}, "input_len is blank"),
        ({"output_len": "abc"}, "output_len is 'abc'"),
        ({"output_len": "1e12"}, "output_len is 1e+12"),
        ({"concurrency_or_batch": "-3"}, "concurrency_or_batch is '-3' (row): give requests in flight"),
        ({"concurrency_or_batch": "xyz"}, "concurrency_or_batch is 'xyz' (row): give requests in flight"),
        ({"concurrency_or_batch": "qps 0"}, "concurrency_or_batch is 'qps 0'"),
        ({"concurrency": "8"}, "concurrency_or_batch and concurrency are both given"),
        ({"concurrency_or_batch": "", "rate": "0"}, "rate is 0 (row): give a number above 0"),
        ({"engine": "nosuch"}, "unknown engine 'nosuch' (row)"),
        ({"n_devices": "1"}, "n_devices 1 can't be shared out by tp 4, pp 1"),
        ({"n_devices": "8", "tp": "3"}, "n_devices 8 can't be shared out by tp 3, pp 1"),
        ({"n_devices": "3", "tp": "3"}, "tp 3 doesn't divide 32 attention heads (row)"),
        ({"tp": "2.5"}, "tp is 2.5 (row): give a whole number"),
        ({"ep": "3"}, "ep is '3'"),
        ({"ep": "y"}, "has no experts (row)"),
    ],
)
def test_a_cell_that_would_be_priced_as_another_question_is_refused(cells, why):
    got = answer(**cells)
    assert set(got) == {"id", "error"}
    assert why in got["error"]


def test_blanks_are_filled_as_on_the_command_line_and_said():
    got = answer(engine="", concurrency_or_batch="", n_devices="", precision="", kv_precision="")
    filled = {"engine vllm", "concurrency 1", "n_devices 4 (tp x pp)", "precision bf16", "kv_precision bf16"}
    assert set(got["assumed"]) == filled
    assert got["batch"] == pytest.approx(1)
    assert answer()["assumed"] == []


def test_a_load_in_the_words_of_the_command_line():
    plain = answer()
    assert answer(concurrency_or_batch="", concurrency="16") == plain
    slow = answer(concurrency_or_batch="", rate="0.5")
    assert slow == answer(concurrency_or_batch="qps 0.5")
    assert slow["output_tokens_per_s"]["p50"] == pytest.approx(0.5 * 256)


def test_stages_that_are_no_power_of_two_are_tried_where_those_do_not_fit():
    """Weights of 810 GB in 48 x 24 GB: tp 8 by pp 6, of 126 layers."""
    large = answer(model="llama-3.1-405b", device="rtx-4090", n_devices="48", tp="", concurrency_or_batch="1")
    assert large["fits"]
    assert (large["layout"]["tp"], large["layout"]["pp"]) == (8, 6)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"input_len": "abc"}, "input_len is 'abc' .*give a number"),
        ({"concurrency": "8"}, "concurrency is '8'"),
        ({"rate": True}, "rate is True"),
        ({"price": "x"}, "price is 'x'"),
        ({"devices": "8"}, "devices is '8'"),
        ({"precision": 8}, "precision is 8"),
        ({"layout": "tp=2"}, "layout is 'tp=2' .*give a dictionary"),
        ({"layout": {"tp": "x"}}, "layout's tp is 'x'"),
        ({"speculate": 3}, "speculate is 3"),
    ],
)
def test_what_python_gives_has_its_type(given, why):
    with pytest.raises(UserError, match=why):
        sw.inference("llama-3.1-8b", "h100-sxm", explain=False, **given)


def test_numbers_of_numpy_are_numbers():
    plain = sw.inference("llama-3.1-8b", "h100-sxm", 512, 64, explain=False, layout={"tp": 1})
    lengths = np.int64(512), np.float32(64)
    assert sw.inference("llama-3.1-8b", "h100-sxm", *lengths, explain=False, layout={"tp": np.int32(1)}) == plain
