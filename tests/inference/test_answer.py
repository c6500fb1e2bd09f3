"""The whole answer: its keys, its search, its evidence, and mistakes in one sentence."""

from __future__ import annotations

import json

import pytest

import scalewright as sw
from scalewright.inference.ask import Wanted, ask
from scalewright.inference.batch import answers as batch_answers
from scalewright.inference.load import ENDLESS, Load
from scalewright.inference.search import Found, _ranked, apart_gain, pareto, search
from scalewright.inference.setup import Shape
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster

PROMISED = {
    "model", "layout", "fits", "memory_gib", "kv_bytes_per_token", "max_concurrency", "prefill_s", "ttft_s", "tpot_s",
    "output_tokens_per_s", "output_tokens_per_s_per_device", "total_tokens_per_s", "cost_per_million", "bottleneck",
    "evidence", "assumed",
}  # fmt: skip


def test_the_keys_of_the_answer(call_cli):
    command = ("inference", "llama-3.1-70b", "--cluster", "dgx-h100", "--input-len", "2048", "--output-len", "256")
    got = json.loads(call_cli(*command, "--concurrency", "32", "--price", "2", "--json").out)
    assert set(got) >= PROMISED
    assert set(got["memory_gib"]) >= {"weights", "kv_cache", "activations", "other", "peak"}
    held = got["memory_gib"]
    assert held["peak"] == pytest.approx(held["weights"] + held["kv_cache"] + held["activations"] + held["other"])
    assert held["weights"] * 2**30 * got["layout"]["tp"] == pytest.approx(2 * got["model"]["params"], rel=1e-3)
    assert sum(got["time_breakdown"].values()) == pytest.approx(1)
    cost, rate = got["cost_per_million"], got["output_tokens_per_s"]["p50"]
    assert cost["output_alone"] == pytest.approx(2 * got["layout"]["devices"] / 3600 / rate * 1e6)
    assert cost["input"] * 2048 + cost["output"] * 256 == pytest.approx(cost["all"] * (2048 + 256))
    assert len(got["evidence"]["nearest"]) == 3
    assert all(row["measured"] > 0 and row["predicted"] > 0 for row in got["evidence"]["nearest"])
    lines = call_cli(*command, "--concurrency", "32", "--price", "2").out
    assert "tokens/s of output" in lines
    assert "USD a million tokens" in lines


def test_70b_in_bf16_on_two_h100_leaves_room_for_few():
    """141 GB of weights on 160: vLLM's own question of what is left for the cache."""
    got = sw.inference("llama-3.1-70b", "dgx-h100", 1024, 256, layout={"tp": 2}, concurrency=64, explain=False)
    assert got["fits"]
    assert 5 < got["max_concurrency"] < 40
    narrow = sw.inference("llama-3.1-70b", "dgx-h100", 1024, 256, layout={"tp": 2}, precision="fp8", explain=False)
    assert narrow["max_concurrency"] > 8 * got["max_concurrency"]


def test_what_does_not_fit_says_so():
    got = sw.inference("llama-3.1-405b", "rtx-4090", 128, 128, layout={"tp": 8}, explain=False)
    assert not got["fits"]
    assert got["output_tokens_per_s"]["p50"] is None
    assert "memory" in got["bottleneck"]
    assert "doesn't fit" in str(sw.inference("llama-3.1-405b", "rtx-4090", 128, 128, layout={"tp": 8}))


def test_the_search_finds_the_cheapest_that_keeps_the_targets():
    question, _ = ask("llama-3.1-70b", load_cluster("dgx-h100"), Wanted(1024, 256), searched=True)
    targets = Load("closed", ENDLESS, tpot=0.03, ttft=1.0)
    found, priced = search(question, targets, 8)
    assert priced >= 10
    assert all(item.tpot_s <= 0.0301 and item.ttft_s <= 1.001 and item.shape.total <= 8 for item in found)
    best = max(item.per_device for item in found)
    assert found[0].per_device > 0.96 * best
    for item in found:  # each as `inference` prices it
        keys = {key: value for key, value in item.shape.dump().items() if key != "devices"}
        got = sw.inference("llama-3.1-70b", "dgx-h100", 1024, 256, layout=keys, tpot_s=0.03, ttft_s=1.0, explain=False)
        assert got["requests_per_s"]["p50"] == pytest.approx(item.requests_per_s, rel=1e-3)
    front = pareto(found)
    assert [item.per_device for item in front] == sorted((item.per_device for item in front), reverse=True)


@pytest.mark.parametrize(("gain", "apart"), [(0.05, False), (0.11, True)])
def test_prefill_goes_apart_only_where_that_gains_more_than_a_tenth(gain, apart):
    """Of two layouts, all else equal; 3% is as near as layouts with fewer parts may come to others."""
    both = Found(Shape(4), 0.5, 0.02, 2.0, 1.0)
    pools = Found(Shape(4, 1, 1, 1, 1, 1), 0.5, 0.02, 2.0, 1.0 + gain)
    assert _ranked([both, pools])[0] is (pools if apart else both)
    assert apart_gain([both, pools]) == pytest.approx(gain)
    assert apart_gain([both]) is None
    assert _ranked([pools]) == [pools]  # nothing else keeps the targets


def test_a_token_s_money_and_energy_have_bands_and_the_market_that_is_asked_for():
    given = {"concurrency": 8, "explain": False}
    listed = sw.inference("llama-3.1-8b", "dgx-h100", 1024, 256, **given)
    one = sw.inference("llama-3.1-8b", "dgx-h100", 1024, 256, cloud="lambda", region="fr", **given)
    rate, band = one["output_tokens_per_s"], one["cost_per_million"]["output_alone_band"]
    assert band["p50"] == pytest.approx(3.99 / 3600 / rate["p50"] * 1e6)  # one device
    assert band["p90"] / band["p50"] == pytest.approx(rate["p50"] / rate["p10"])  # the price itself has no range
    wide = listed["cost_per_million"]["output_alone_band"]
    assert wide["p90"] / wide["p50"] > band["p90"] / band["p50"]
    kwh, kg = one["energy_kwh_per_million_output"], one["co2_kg_per_million_output"]
    assert kwh["p10"] < kwh["p50"] < kwh["p90"]
    assert kg["p50"] == pytest.approx(0.044 * kwh["p50"])
    assert "kg of CO2" in str(one)
    assert "no cost: no price of h800-sxm is known (--price)" in sw.inference("llama-3.1-8b", "hgx-h800")["assumed"]


def test_a_rate_gets_as_many_replicas_as_it_takes():
    few, many = (
        sw.inference("llama-3.1-8b", "dgx-h100", 1024, 256, rate=r, tpot_s=0.03, search=True, devices=64, explain=False)
        for r in (2, 200)
    )
    assert few["layout"]["devices"] < many["layout"]["devices"] <= 64
    assert few["meets_targets"]
    assert many["meets_targets"]
    assert many["search"]["best"][0]["layout"] == many["layout"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--precision", "fp9"), "unknown precision 'fp9' (--precision): did you mean 'fp8'"),
        (("--kv-precision", "x"), "unknown precision 'x' (--kv-precision)"),
        (("--engine", "vlm"), "unknown engine 'vlm' (--engine): did you mean 'vllm'?"),
        (("--layout", "tp=3"), "tp 3 doesn't divide 32 attention heads (--layout): use tp=2"),
        (("--layout", "tp=x"), "tp is x (--layout): give a whole number"),
        (("--layout", "tq=2"), "unknown key 'tq' (--layout)"),
        (("--layout", "tp=2,devices=3"), "devices 3 is not 2"),
        (("--layout", "tp=2,ep=2"), "ep 2, but llama-3.1-8b has no experts"),
        (("--layout", "pp=64"), "pp 64 is more than 32 layers"),
        (("--concurrency", "0"), "concurrency is 0 (--concurrency)"),
        (("--concurrency", "4", "--rate", "3"), "concurrency and rate are both given"),
        (("--tpot-s", "-1"), "tpot_s is -1 (--tpot-s)"),
        (("--prefix-hit", "2"), "prefix_hit is 2 (--prefix-hit): give a share"),
        (("--speculate", "accept=2"), "accept is 2"),
        (("--speculate", "words=2"), "unknown key 'words' (--speculate)"),
        (("--output-len", "0"), "output_len is 0 (--output-len)"),
        (("--input-len", "nan"), "input_len is nan (--input-len)"),
        (("--price", "nan"), "price is nan (--price)"),
        (("--devices", "8"), "devices is given without a search"),
        (("--search", "--tpot-s", "0.0001"), "no layout keeps the targets (--search): the least tpot is"),
        (("--search", "--layout", "tp=2"), "layout and search are both given"),
        (("--batch", "rows.csv"), "MODEL and --batch are both given"),
    ],
)
def test_mistakes_are_one_sentence_with_the_way_out(call_cli, words, says):
    answer = call_cli("inference", "llama-3.1-8b", "--cluster", "dgx-h100", *words)
    assert answer.code == 2
    assert says in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_a_table_comes_back_line_by_line(call_cli, tmp_path):
    path = tmp_path / "rows.csv"
    head = "engine,model,device,n_devices,tp,input_len,output_len,concurrency_or_batch"
    path.write_text(f"{head}\nvLLM,llama-3.1-8b,H100,1,1,512,128,8\nvLLM,nosuch,H100,1,1,512,128,8\n")
    good, bad = map(json.loads, call_cli("inference", "--batch", str(path)).out.splitlines())
    assert good["id"] == "1"
    assert good["output_tokens_per_s"]["p50"] > 100
    assert set(bad) == {"id", "error"}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"engine": "tensorrt-llm", "cluster": "mi300x"}, "tensorrt-llm doesn't run on mi300x"),
        ({"engine": "jetstream"}, "jetstream doesn't run on h100-sxm .*use vllm or sglang"),
        ({"engine": "llama.cpp", "cluster": "tpu-v5e"}, "llama.cpp doesn't run on tpu-v5e"),
        ({"engine": "llama.cpp", "precision": "fp8"}, "llama.cpp has no weights in fp8"),
        ({"engine": "trtllm", "precision": "q4_k_m"}, "tensorrt-llm has no weights in q4_k_m"),
        ({"precision": "mxfp4"}, "mxfp4 has experts alone, and llama-3.1-8b has none"),
    ],
)
def test_engines_devices_and_weights_that_there_are_not(asked, why):
    cluster = asked.pop("cluster", "h100-sxm")
    with pytest.raises(UserError, match=why):
        sw.inference("llama-3.1-8b", cluster, explain=False, **asked)
    columns = {key: asked[key] for key in ("engine", "precision") if key in asked}
    (row,) = batch_answers([{"model": "llama-3.1-8b", "device": cluster, "n_devices": 1, **columns}])
    assert set(row) == {"id", "error"}


@pytest.mark.parametrize(
    ("asked", "note"),
    [
        ({"precision": "fp8"}, "fp8 weights unpacked to 16 bits: a100-sxm-80 has no fp8 units"),
        ({"precision": "q4_k_m"}, "q4_k_m in vllm, which calls it experimental"),
    ],
)
def test_what_is_unusual_is_said(asked, note):
    got = sw.inference("llama-3.1-8b", "dgx-a100-80g", explain=False, **asked)
    assert any(line.startswith(note) for line in got["assumed"])
    plain = sw.inference("llama-3.1-8b", "dgx-h100", explain=False, precision="fp8")
    assert not any("unpacked" in line or "experimental" in line for line in plain["assumed"])


def test_experts_in_parts_of_a_stage_s_ranks():
    """Here tp counts all ranks of a stage, and not those beside ep."""
    with pytest.raises(UserError, match=r"ep 8 doesn't divide tp 1, which here counts all ranks .* or tp=8"):
        sw.inference("mixtral-8x7b", "dgx-h100", layout={"tp": 1, "ep": 8}, explain=False)


def test_one_sequence_is_not_1_sequences():
    got = sw.inference("llama-3.1-8b", "dgx-h100", layout={"tp": 1}, max_seqs=1, concurrency=2)
    assert "the engine's 1 slot: 1 sequence a replica at a time, the rest wait" in got["bottleneck"]
    assert "fits; 1 sequence at most" in str(got)
