"""Tokens, metrics and the engine's picture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from serve.server.fake import serving


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx2.Client]:
    with serving(tmp_path / "tiny") as (url, _), httpx2.Client(base_url=url) as client:
        yield client


def test_tokens_of_a_text_and_of_a_chat(client: httpx2.Client) -> None:
    answer = client.post("/tokenize", json={"model": "tiny", "prompt": "hé"}).json()
    assert answer == {"tokens": [104, 195, 169], "count": 3, "max_model_len": 2048}
    assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": "hé"}
    chat = client.post("/tokenize", json={"messages": [{"role": "user", "content": "a"}]}).json()
    assert chat["tokens"] == [257, 97, 258]
    assert client.post("/tokenize", json={}).status_code == 400
    beyond = client.post("/detokenize", json={"tokens": [97, 262]})
    assert (beyond.status_code, beyond.json()["error"]["param"]) == (400, "tokens")


def test_metrics(client: httpx2.Client) -> None:
    for _ in range(3):
        client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 5, "temperature": 0})
    client.post("/v1/completions", json={"prompt": 5})
    page = client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(re.findall(r"^scalewright_([^#\s]+) (\S+)$", page.text, re.MULTILINE))
    assert float(values['requests_total{reason="length"}']) == 3
    assert float(values['refused_total{status="400"}']) == 1
    assert float(values["prompt_tokens_total"]) == 9
    assert float(values["generated_tokens_total"]) == 15
    assert float(values["time_to_first_token_seconds_count"]) == 3
    assert 0 < float(values["time_per_output_token_seconds_sum"]) < 3
    for name in ("requests_waiting", "requests_running", "kv_blocks", "kv_blocks_used", "kv_blocks_cached",
                 "prefix_cache_hit_tokens_total", "preemptions_total"):  # fmt: skip
        assert name in values


def test_a_score_writes_no_token(client: httpx2.Client) -> None:
    client.post("/v1/completions", json={"prompt": ["abc", "de"], "max_tokens": 0, "echo": True, "logprobs": 0})
    page = client.get("/metrics").text
    values = dict(re.findall(r"^scalewright_([^#\s]+) (\S+)$", page, re.MULTILINE))
    names = ("generated_tokens_total", "time_to_first_token_seconds_count", 'requests_total{reason="length"}')
    assert [float(values[name]) for name in names] == [0, 0, 2]
    assert re.search("^# HELP scalewright_requests_total .*each choice of each prompt", page, re.MULTILINE)


def test_the_picture_is_the_engine_s(client: httpx2.Client) -> None:
    picture = client.get("/picture").json()
    assert (picture["blocks"], picture["requests"], picture["cached"]) == (256, [], [100, 101])
    assert picture["generated_tokens"] == 0
    assert client.get("/picture?since=x").status_code == 400
