"""A rehearsal by hand, its load, and its mistakes; that it is the engine's schedule: serve/test_measure.py."""

from __future__ import annotations

from typing import Any

import pytest

import scalewright as sw
from scalewright.inference.rehearse import Visit, gaps, latencies, play
from scalewright.spec.errors import UserError
from scalewright.spec.presets import load_model_spec
from scalewright.spec.serving import BLOCK, Item
from scalewright.spec.serving_cost import ServingCost, Turn, Work, work
from scalewright.spec.tensors import tensors

MODEL = load_model_spec("tiny")
PARAMS = sum(tensor.size for tensor in tensors(MODEL))


def server(**changes: Any) -> ServingCost:
    """One whose steps take 10 ms and 1 ms a token."""
    facts = {
        "model": MODEL.name, "params": PARAMS, "threads": 2, "dtype": "float32", "room": 190, "step_tokens": 192,
        "max_concurrency": 4, "kv_tokens": 40 * BLOCK, "seconds": {"step": 0.010, "token": 0.001}, "steps": 100,
        "error": 0.02,
    }  # fmt: skip
    return ServingCost.parse(facts | changes)


def ask(load: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return sw.inference(MODEL, "rtx-4090", 64, 11, explain=False, measured=server(**changes).dump(), **load)


def test_what_a_step_does() -> None:
    turns = [Turn(Item(3, 210, 1), 200, 211), Turn(Item(5, 64, 128), 300, 300), Turn(Item(6, 0, 64), 64, 64)]
    pairs = 64 * (64 + 64) + 64 * 192 + 64 * 64
    assert work(turns, 1000) == Work(1, 1, 193, 16, 1, 211, 2, 64 * 0 + 128 * 192 + 64 * 64, 2)
    cut = [*turns[:1], Turn(Item(5, 64, 64), 300, 300), Turn(Item(5, 128, 64), 300, 300), turns[2]]
    assert work(cut, 190) == Work(1, 2, 193, 32, 1, 211, 3, pairs, 2)


def test_a_request_alone() -> None:
    """64 tokens take 74 ms, each of ten further ones 11 ms."""
    answer = ask({"concurrency": 1})
    assert answer["ttft_s"]["p50"] == pytest.approx(0.074)
    assert answer["tpot_s"]["p50"] == pytest.approx(0.011)
    assert answer["requests_per_s"]["p50"] == pytest.approx(1 / (0.074 + 10 * 0.011))
    assert not answer["overloaded"]


def test_a_prompt_delays_the_tokens_of_others() -> None:
    visits = [Visit(0, 64, 11, 0.0), Visit(1, 64, 11, 0.080)]
    play(server(), visits)
    assert visits[0].first == pytest.approx(0.074)
    # the second comes in the step that began at 74 ms, and is read from 85 ms on beside one token of the first
    assert visits[1].first == pytest.approx(0.085 + 0.010 + 0.065)
    assert latencies(visits[:1])["tpot_s"]["mean"] == pytest.approx((0.011 + 0.075 + 8 * 0.012) / 10)


def test_requests_take_turns_where_blocks_are_few() -> None:
    """Two rows of two blocks each don't fit three: the second gives its own up, and is read again."""
    ends = []
    for blocks in (3, 4):
        visits = [Visit(number, 64, 40) for number in range(2)]
        play(server(kv_tokens=blocks * BLOCK), visits)
        ends.append([visit.last for visit in visits])
    assert ends[0][0] < ends[1][0]  # alone, its steps are shorter
    assert ends[0][1] > ends[1][1] + 0.064


def test_latencies_grow_with_the_rate_up_to_the_highest() -> None:
    calm, busy, flooded = (ask({"rate": rate}) for rate in (0.5, 8.0, 50.0))
    assert calm["ttft_s"]["p50"] < busy["ttft_s"]["p50"] < flooded["ttft_s"]["p50"]
    assert calm["tpot_s"]["p50"] < busy["tpot_s"]["p50"]
    assert [answer["overloaded"] for answer in (calm, busy, flooded)] == [False, False, True]
    assert calm["requests_per_s"]["p50"] == 0.5
    assert flooded["requests_per_s"]["p50"] == flooded["rehearsed"]["highest_requests_per_s"]
    assert set(calm["rehearsed"]["ttft_s"]) == {"mean", "p50", "p90", "p99"}


def test_arrivals_have_the_rate_and_the_spread_of_random_ones() -> None:
    between = gaps(400, 5.0, seed=1)
    assert sum(between) / 400 == pytest.approx(0.2, rel=0.01)
    assert sum((gap - 0.2) ** 2 for gap in between) / 400 == pytest.approx(0.04, rel=0.05)
    assert between != gaps(400, 5.0, seed=2)


@pytest.mark.parametrize(
    ("load", "changes", "words"),
    [
        ({"rate": 1}, {"params": 7}, "of tiny, 7 parameters"),
        ({"rate": 1}, {"kv_tokens": 64}, "75 tokens don't fit its cache of 64"),
        ({"ttft_s": 1}, {}, "it has no load"),
        ({"rate": 1, "engine": "vllm"}, {}, "--engine asks for another server"),
        ({"search": True}, {}, "--search asks for another server"),
        ({"rate": 1}, {"room": 0}, "room"),
    ],
)
def test_questions_that_no_measurement_answers(load: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ask(load, **changes)


def test_a_file_of_another_kind() -> None:
    with pytest.raises(UserError, match="isn't what `bench serve` writes"):
        sw.inference("tiny", "dgx-h100", measured={"model": "tiny"})
