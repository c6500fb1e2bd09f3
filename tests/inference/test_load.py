"""Rates and latencies under a load: Little's law, targets, ends of a queue, guesses, prefill apart."""

from __future__ import annotations

import math

import numpy as np
import pytest

import scalewright as sw
from scalewright.inference.ask import Wanted
from scalewright.inference.ask import ask as question
from scalewright.inference.constants import constants
from scalewright.inference.layouts import loads
from scalewright.inference.load import Load, Times, serve
from scalewright.inference.rows import accepted_tokens
from scalewright.inference.setup import table
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster


def ask(model="llama-3.1-8b", cluster="dgx-h100", **keys):
    usual = {"input_len": 1024, "output_len": 256, "explain": False, "layout": {"tp": 1}}
    return sw.inference(model, cluster, **{**usual, **keys})


@pytest.mark.parametrize("output", [1, 2, 16, 256])
@pytest.mark.parametrize("flight", [1, 2, 32])
@pytest.mark.parametrize("prefill", [0, 1])
def test_a_closed_loop_keeps_little_s_law(output, flight, prefill):
    """A request's own prefill is in its TTFT and not in TPOT, however short its answer, and wherever it is filled."""
    a = ask(concurrency=flight, output_len=output, layout={"tp": 1, "prefill": prefill, "replicas": 1 + prefill})
    inside = a["ttft_s"]["p50"] + a["tpot_s"]["p50"] * (output - 1)
    assert a["requests_per_s"]["p50"] * inside == pytest.approx(flight, rel=1e-3)
    assert a["total_tokens_per_s"] == pytest.approx(a["output_tokens_per_s"]["p50"] * (1 + 1024 / output))


@pytest.mark.parametrize("prefill", [0, 1])
def test_a_prefix_that_is_all_cached_leaves_a_token(prefill):
    layout = {"tp": 1, "prefill": prefill}
    a = ask(concurrency=8, output_len=1, prefix_hit=1.0, layout=layout)
    assert 0 < a["requests_per_s"]["p50"] < 1e5
    assert a["prefill_s"] == pytest.approx(ask(input_len=1, layout=layout)["prefill_s"], rel=0.05)


def test_what_ragged_batches_lose_grows_with_the_batch():
    """No jump from one request to two: a step of two loses less than a tenth beside the roofline's own growth."""
    of = {n: ask(concurrency=n) for n in (1, 2, 64)}
    lost = {n: 1 - a["decode_s"] / a["tpot_s"]["p50"] for n, a in of.items()}
    assert lost[1] < 0.01
    assert lost[2] < 0.1 < lost[64]


def test_requests_of_a_benchmark_wait_for_their_wave():
    """Equal lengths: a share of all prefills of the wave; lengths that differ draw it apart, as if at random."""
    q, _ = question("llama-3.1-8b", load_cluster("dgx-h100"), Wanted(1024, 256, layout={"tp": 1}))
    kinds = [Load("closed", 32), Load("closed", 32, waves=True), Load("closed", 32, varied=True, waves=True)]
    t, c = table([q] * 3), constants()
    served = serve(t, c, loads(kinds, [q.shape] * 3))
    alone, even, varied = served.ttft_s
    wave = Times(t, c).filled(np.full(3, 32.0))[0]
    assert even - alone == pytest.approx(c["first.even"] * wave)
    assert varied == alone
    assert len(set(served.requests_per_s)) == 1
    assert served.requests_per_s * (served.ttft_s + 255 * served.tpot_s) == pytest.approx(32, rel=1e-3)


def test_requests_that_are_sent_at_once_are_filled_one_after_the_other():
    """The median of 200 waits for 100 prefills; where 50 have a place, for theirs and until 50 others have left."""
    roomy, narrow = (
        question("llama-3.1-8b", load_cluster("dgx-h100"), Wanted(1024, 256, layout={"tp": 1}, max_seqs=most))[0]
        for most in (None, 50)
    )
    t, c = table([roomy, narrow]), constants()
    served = serve(t, c, loads([Load("closed", 200, 200, waves=True)] * 2, [roomy.shape] * 2))
    filled = Times(t, c).filled(np.array([200.0, 50.0]))
    http = c["first.http"]
    assert served.ttft_s[0] - http == pytest.approx(filled[0] / 2, rel=0.05)
    assert served.ttft_s[1] - http == pytest.approx(filled[1] + 50 / served.requests_per_s[1], rel=0.05)


def test_a_target_of_the_user_s_is_of_the_median():
    """As many as keep it, no share of it; MLPerf's are of the 99th percentile."""
    q, _ = question("llama-3.1-8b", load_cluster("dgx-h100"), Wanted(1024, 256, layout={"tp": 1}))
    kinds = [Load("target", 1e9, tpot=0.02, tails=tails) for tails in (False, True)]
    mine, tails = serve(table([q] * 2), constants(), loads(kinds, [q.shape] * 2)).requests_per_s
    assert tails == pytest.approx(constants()["latency.share"] * mine)
    same = ask(concurrency=ask(tpot_s=0.02)["batch"])
    assert mine == pytest.approx(same["requests_per_s"]["p50"], rel=0.01)


def test_http_comes_before_the_first_token():
    assert ask()["ttft_s"]["p50"] - ask(offline=True)["ttft_s"]["p50"] == pytest.approx(
        constants()["first.http"], rel=0.01
    )


def test_replicas_share_a_load():
    one, four = ask(concurrency=8), ask(concurrency=32, layout={"tp": 1, "replicas": 4})
    assert four["output_tokens_per_s"]["p50"] == pytest.approx(4 * one["output_tokens_per_s"]["p50"])
    assert four["tpot_s"] == one["tpot_s"]
    assert four["max_concurrency"] == 4 * one["max_concurrency"]


def test_a_rate_is_served_until_it_is_too_high():
    low, high = ask(rate=2), ask(rate=500)
    assert low["requests_per_s"]["p50"] == pytest.approx(2)
    http = constants()["first.http"]  # before the engine
    inside = low["ttft_s"]["p50"] - http + 255 * low["tpot_s"]["p50"]
    assert low["batch"] == pytest.approx(2 * inside, rel=0.02)
    assert not low["overloaded"]
    assert high["overloaded"]
    assert high["requests_per_s"]["p50"] < 500
    assert "queue grows without end" in high["bottleneck"]


def test_a_target_is_kept_by_as_many_as_it_allows():
    loose, tight = ask(tpot_s=0.05), ask(tpot_s=0.02)
    assert loose["meets_targets"]
    assert tight["meets_targets"]
    assert tight["tpot_s"]["p50"] <= 0.0201
    assert tight["batch"] < loose["batch"]
    assert tight["output_tokens_per_s"]["p50"] < loose["output_tokens_per_s"]["p50"]
    assert ask(tpot_s=1e-5)["meets_targets"] is False


def test_more_requests_than_fit_wait():
    """405B on 8 H100: 16 times the requests, little more of the rate (life of a full KV pool)."""
    few, many = (
        ask("llama-3.1-405b", precision="fp8", layout={"tp": 8}, concurrency=n, input_len=2048, output_len=2048)
        for n in (32, 512)
    )
    assert many["batch"] == many["max_concurrency"] < 512
    assert many["output_tokens_per_s"]["p50"] < 3 * few["output_tokens_per_s"]["p50"]
    assert many["ttft_s"]["p50"] > 10 * few["ttft_s"]["p50"]
    assert "the rest wait" in many["bottleneck"]


def test_prefix_hits_save_prefill():
    cold, warm = (ask(concurrency=8, input_len=2048, prefix_hit=share) for share in (0.0, 0.9))
    assert warm["prefill_s"] < cold["prefill_s"] / 3
    assert warm["output_tokens_per_s"]["p50"] > cold["output_tokens_per_s"]["p50"]


@pytest.mark.parametrize("guessed", [1, 2, 4])
def test_guesses_that_are_always_right(guessed):
    """(K + 1) / (K c + 1) with a draft of half a step (Leviathan et al. 2023), where a step's time is reading."""
    assert accepted_tokens(1.0, guessed) == guessed
    a = ask(
        "llama-2-70b",
        layout={"tp": 8},
        concurrency=1,
        input_len=16,
        speculate={"tokens": guessed, "accept": 1, "cost": 0.5},
    )
    assert a["speculation"]["speed_up"] == pytest.approx((guessed + 1) / (0.5 * guessed + 1), rel=0.03)


def test_guesses_can_cost_more_than_they_give():
    a = ask(concurrency=256, speculate={"tokens": 4, "accept": 0.3, "cost": 0.3})
    assert a["speculation"]["accepted"] == pytest.approx(0.3 * (1 - 0.3**4) / 0.7)
    assert a["speculation"]["speed_up"] < 1


def test_prefill_apart_is_bound_by_the_slower_side():
    shapes = [{"tp": 1, "prefill": p, "replicas": d} for p, d in ((1, 3), (3, 1))]
    reads, writes = (
        [ask(layout=shape, concurrency=256, input_len=i, output_len=o)["requests_per_s"]["p50"] for shape in shapes]
        for i, o in ((8192, 16), (128, 1024))
    )
    assert reads[1] > 2 * reads[0]  # long prompts want prefill
    assert writes[0] > 1.5 * writes[1]  # long answers want decode
    assert all(math.isfinite(x) for x in (*reads, *writes))


def test_a_rate_is_kept_with_prefill_apart_until_a_side_is_full():
    layout = {"tp": 1, "prefill": 1, "replicas": 2}
    slow, fast, over = (ask(rate=rate, layout=layout) for rate in (2, 8, 10_000))
    assert [a["requests_per_s"]["p50"] for a in (slow, fast)] == pytest.approx([2, 8])
    assert slow["tpot_s"]["p50"] < fast["tpot_s"]["p50"] < over["tpot_s"]["p50"]
    assert not fast["overloaded"]
    assert over["overloaded"]
    together = ask(rate=8, layout={"tp": 1, "replicas": 2})
    assert fast["tpot_s"]["p50"] < together["tpot_s"]["p50"]  # no prompt stands between two tokens


def test_a_search_shows_its_layouts_under_the_load_itself():
    for given in ({"rate": 4}, {"concurrency": 64}):
        found = ask("llama-3.1-70b", layout=None, search=True, devices=16, tpot_s=0.03, **given)["search"]["best"]
        assert len(found) > 2
        for entry in found:
            shape = {key: size for key, size in entry["layout"].items() if key != "devices"}
            alone = ask("llama-3.1-70b", layout=shape, **given)
            assert entry["tpot_s"] == pytest.approx(alone["tpot_s"]["p50"])
            assert entry["ttft_s"] == pytest.approx(alone["ttft_s"]["p50"])
            assert entry["requests_per_s"] == pytest.approx(alone["requests_per_s"]["p50"])


def test_a_cache_in_fewer_bits_holds_more_and_reads_less():
    of = {kv: ask(input_len=8192, concurrency=40, kv_precision=kv) for kv in ("bf16", "fp8", "q8_0", "q4_0")}
    sequences, seconds = ([a[key] for a in of.values()] for key in ("max_concurrency", "decode_s"))
    assert of["fp8"]["kv_bytes_per_token"] == of["bf16"]["kv_bytes_per_token"] / 2
    assert sequences[1] == pytest.approx(2 * sequences[0], abs=2)
    assert sequences[0] < sequences[2] < sequences[1] < sequences[3]
    assert seconds[0] > seconds[2] > seconds[1] > seconds[3]


def test_a_search_without_a_load_is_of_requests_that_find_a_place():
    a = ask("llama-3.1-8b", layout=None, search=True, devices=2)
    listed = a["search"]["best"][0]["ttft_s"]
    assert a["ttft_s"]["p50"] == pytest.approx(listed, rel=1e-3)  # the full batch, which a search finds by halving
    assert a["ttft_s"]["p50"] < 5


def test_the_pool_that_is_full_is_the_limit():
    layout = {"tp": 1, "replicas": 4, "prefill": 1}
    assert ask(concurrency=64, input_len=8000, output_len=64, layout=layout)["bottleneck"].startswith(
        "replicas that prefill"
    )
    roomy = ask(concurrency=64, layout={"tp": 1, "replicas": 2, "prefill": 2})
    assert "wait" not in roomy["bottleneck"]
    assert "replicas that prefill" not in roomy["bottleneck"]


def test_requests_beyond_the_context_are_named():
    assert "more than the model's context of 131,072" in ask(input_len=500_000)["assumed"][0]
    assert not any("context" in note for note in ask(input_len=100_000)["assumed"])


def test_no_share_of_the_memory_is_no_layout():
    with pytest.raises(UserError, match="memory_share is 0"):
        ask(memory_share=0.0)


def test_without_a_prompt_every_token_is_a_step():
    a = ask(input_len=0, output_len=10)
    http = constants()["first.http"]
    assert a["requests_per_s"]["p50"] == pytest.approx(1 / (10 * a["decode_s"] + http), rel=0.02)
