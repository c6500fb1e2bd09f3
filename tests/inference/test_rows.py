"""Rows of tables of serving runs: their traps, and how far the bundled ones are off."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scalewright.inference import load
from scalewright.inference.batch import answers
from scalewright.inference.constants import constants
from scalewright.inference.rows import row_of
from scalewright.inference.score import by_source, predicted, read_table, runs_of
from scalewright.spec.errors import UserError

ROW = {
    "engine": "vLLM", "model": "meta-llama/Llama-3.1-8B-Instruct", "device": "NVIDIA H100 SXM",
    "n_devices": "1", "tp": "1",
    "input_len": "1024", "output_len": "256", "concurrency_or_batch": "16", "output_tokens_per_s": "1000",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs():
    return runs_of(read_table())


def row(**cells):
    return row_of({**ROW, **cells})


def test_a_plain_row():
    got = row()
    assert (got.question.model.name, got.question.cluster.device.id) == ("llama-3.1-8b", "h100-sxm")
    assert (got.load.kind, got.load.number, got.rate) == ("closed", 16, 1000)
    assert "precision bf16" in got.question.assumed


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"per_device": "1", "n_devices": "8", "tp": "8"}, {"rate": 8000}),
        ({"output_tokens_per_s": "", "total_tokens_per_s": "5000"}, {"rate": 1000}),
        ({"output_tokens_per_s": "", "requests_per_s": "2"}, {"rate": 512}),
        ({"output_len": "0", "total_tokens_per_s": "9000"}, {"rate": 9000, "rate_kind": "input"}),
        ({"concurrency_or_batch": "QPS 16, 1000 requests"}, {"offered": True}),
    ],
)
def test_per_what_and_which_tokens(cells, expected):
    got = row(**cells)
    assert {key: getattr(got, key) for key in expected} == expected


def test_a_time_of_each_token_that_counts_the_waiting_is_not_one():
    """GPUStack: 512 in flight at 0.59 requests/s are 868 s each, not 763 to the first token and 824 after it."""
    waits = {"concurrency_or_batch": "512", "ttft_ms_p50": "762631", "tpot_ms_p50": "804.27", "output_len": "1024"}
    assert row(**waits, requests_per_s="0.59").tpot_s is None
    assert row(**waits, requests_per_s="0.34").tpot_s == pytest.approx(0.80427)  # what would be a sound row
    assert row(tpot_ms_p50="0.2", notes="TPOT UNUSABLE (streaming artefact <1 ms)").tpot_s is None
    assert row(tpot_ms_p50="12", ttft_ms_p50="50").tpot_s == pytest.approx(0.012)


def test_latencies_of_a_client_that_got_its_tokens_late_are_none():
    """GPUStack: 512 in flight at 18.27 requests/s are 28 s each, not 0.6 to the first token and 1 after it."""
    heaps = {"concurrency_or_batch": "512", "ttft_ms_p50": "646", "tpot_ms_p50": "3.42", "output_len": "281"}
    got = row(**heaps, requests_per_s="18.27", output_tokens_per_s="5203")
    assert (got.ttft_s, got.tpot_s, got.rate) == (None, None, 5203)
    assert row(**heaps, requests_per_s="200", output_tokens_per_s="56200").ttft_s == pytest.approx(0.646)


def test_loads_in_the_words_of_sources():
    assert row(concurrency_or_batch="offline: all requests queued").load.number == load.ENDLESS
    peak = row(concurrency_or_batch="peak 984.00", notes="mean lengths; 1000 requests, all sent at once unless ...")
    assert (peak.load.number, peak.load.requests) == (1000, 1000)
    seen = row(concurrency_or_batch="59", requests_per_s="7.68", notes="1000 requests, all sent at once unless ...")
    assert (seen.load.kind, seen.load.number, seen.offered) == ("rate", 8, True)
    twice = row(
        concurrency_or_batch="4", requests_per_s="0.08234", n_devices="8", tp="4",
        notes="offline, all requests at once, elapsed 97.2 s; TWO replicas of TP4",
    )  # fmt: skip
    assert (twice.load.requests, twice.question.shape.replicas) == (8, 2)


def test_layouts_in_the_words_of_sources():
    layers = row(engine="llama.cpp", n_devices="4", tp="", pp="4").question.shape
    assert (layers.tp, layers.pp) == (1, 4)
    apart = row(n_devices="8", tp="2", notes="disaggregated 1P3D; nominal").question.shape
    assert (apart.tp, apart.prefill, apart.replicas) == (2, 1, 3)
    ranks = row(n_devices="8", tp="8", notes="dp=8; cmd=... --enable-dp-attention").question.shape
    assert ranks.attention_dp == 8


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"model": "(not in excerpt)"}, "model|config"),
        ({"device": "H101"}, "unknown cluster"),
        ({"n_devices": "", "tp": ""}, "n_devices is blank"),
        ({"input_len": "", "output_len": ""}, "input_len and output_len are blank"),
        ({"precision": "FP9"}, "unknown precision"),
        ({"n_devices": "-1"}, "n_devices"),
        ({"notes": "per 8-GPU node of decode role only"}, "only decode"),
    ],
)
def test_what_cannot_be_expressed_says_why(cells, why):
    with pytest.raises(UserError, match=why):
        row(**cells)
    (answer,) = answers([{"id": "a", **ROW, **cells}])
    assert set(answer) == {"id", "error"}


def test_a_batch_has_an_answer_for_each_row_in_order():
    rows = [{"id": str(n), **ROW, "concurrency_or_batch": str(n)} for n in (1, 16, 64)]
    got = list(answers([rows[0], {"id": "x", **ROW, "device": "?"}, *rows[1:]]))
    assert [a["id"] for a in got] == ["1", "x", "16", "64"]
    assert "error" in got[1]
    rates = [a["output_tokens_per_s"]["p50"] for a in got if "error" not in a]
    assert rates == sorted(rates)
    assert got[0]["tpot_s"]["p10"] < got[0]["tpot_s"]["p50"] < got[0]["tpot_s"]["p90"]


def test_nearly_all_bundled_rows_are_expressed_and_fit(runs):
    assert len(runs.asked) / len(read_table()) > 0.96
    served = load.serve(runs.columns, constants(), runs.loads)
    assert served.fits.mean() > 0.95


def test_errors_on_the_bundled_rows(runs):
    """Constants that saw these rows; docs/inference.md has the errors of sources left out."""
    table = by_source(runs, predicted(runs, constants()))
    assert len(table) == 21
    assert np.median([line["error_pct"] for line in table.values()]) < 15
    off = predicted(runs, constants()) / runs.measured - 1
    assert 100 * np.nanmedian(abs(off)) < 18


def test_rates_beyond_the_data_sheet_are_no_measurements(runs):
    """Two rows print 40,000 tokens/s of a 7B at batch 1 and 16; a third has weights that fill its device as stated."""
    faults = [a for a, m in zip(runs.asked, runs.measured, strict=True) if a.rate and not a.offered and math.isnan(m)]
    assert {a.question.model.name for a in faults} == {"llama-1-7b", "gpt3-6.7b", "qwen3-30b-a3b"}
