"""Who may ask, how much, and that no body makes the server fail."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from serve.server.fake import serving

KEY = "sk-a-key-of-37-letters-for-these-tests"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    with (
        serving(tmp_path_factory.mktemp("served") / "tiny", body=20_000) as (url, _),
        httpx2.Client(base_url=url) as client,
    ):
        yield client


def test_a_key_is_asked_for(tmp_path: Path) -> None:
    with serving(tmp_path / "tiny", api_key=KEY) as (url, _), httpx2.Client(base_url=url) as client:
        right = {"Authorization": f"Bearer {KEY}"}
        for path in ("/v1/models", "/metrics", "/picture"):
            assert client.get(path, headers=right).status_code == 200
            for wrong in ({}, {"Authorization": KEY}, {"Authorization": f"Basic {KEY}"},
                          {"Authorization": f"Bearer {KEY[:-1]}"}, {"Authorization": "Bearer é".encode()}):  # fmt: skip
                answer = client.get(path, headers=wrong)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert KEY not in answer.text
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 401
        assert [client.get(path).status_code for path in ("/", "/health")] == [200, 200]


def test_the_key_is_compared_in_constant_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    with serving(tmp_path / "tiny", api_key=KEY) as (url, _):
        assert httpx2.get(f"{url}/v1/models", headers={"Authorization": "Bearer x"}).status_code == 401
    assert compared == [(b"x", KEY.encode())]


def test_other_sites_pages_get_no_answer(client: httpx2.Client) -> None:
    here = str(client.base_url).rstrip("/")
    assert client.get("/v1/models", headers={"Origin": here}).status_code == 200
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "rebound.example"}, {"Host": "["}):
        answer = client.get("/v1/models", headers=headers)
        assert answer.status_code == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert client.options("/v1/completions").status_code == 405


def test_a_body_has_a_limit(client: httpx2.Client) -> None:
    def parts() -> Iterator[bytes]:
        yield from [b" " * 1000] * 100

    large = {"prompt": "a" * 20_000}
    assert client.post("/v1/completions", json=large).status_code == 413
    assert client.post("/v1/completions", content=parts()).status_code == 413  # no Content-Length
    assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v2", 404), ("GET", "/v1/models/", 404), ("GET", "/v1/completions", 405), ("DELETE", "/v1/models", 405)],
)
def test_wrong_addresses_have_openai_s_errors(client: httpx2.Client, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 19_000, b'{"a":1' * 3_000, b'{"prompt": "\\ud800"}',
     b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", b'{"prompt": "a", "temperature": NaN}',
     b'{"prompt": "a", "temperature": 1e999}', b'{"model": "\\ud800", "prompt": "a"}'],
)  # fmt: skip
def test_what_is_no_body_is_a_400(client: httpx2.Client, content: bytes) -> None:
    answer = client.post("/v1/completions", content=content)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["message"]


TEXTS = ["", "a", "é😀", "\x00", "\ud800", "<|endoftext|>", "{{7*7}}", "a" * 300, "\n", "tiny", "user", "text"]
NUMBERS = [0, 1, -1, 2, 0.5, 1.5, 1e308, -0.0, 10**25, 255, 2**31, 2**63, True, False]
KEYS = [
    "model", "prompt", "suffix", "max_tokens", "n", "stream", "stop", "seed", "temperature", "top_p", "logprobs",
    "echo", "best_of", "presence_penalty", "frequency_penalty", "logit_bias", "top_k", "min_p", "repetition_penalty",
    "response_format", "guided_json", "guided_regex", "messages", "top_logprobs", "max_completion_tokens", "tools",
    "stream_options", "chat_template_kwargs", "tokens", "add_special_tokens", "user", "metadata", "type", "role",
    "content", "json_schema", "schema", "include_usage", "pattern", "properties", "$ref", "97", "-1",
]  # fmt: skip


def value(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(6 if depth < 3 else 3)
    if kind == 0:
        return draw.choice(TEXTS)
    if kind == 1:
        return draw.choice(NUMBERS)
    if kind == 2:
        return draw.choice([None, [], {}, "json_object", "json_schema", "object", [97, 98]])
    if kind == 3:
        return [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind == 4:
        return {"role": draw.choice(TEXTS), "content": value(draw, depth + 1)}
    return {draw.choice(KEYS): value(draw, depth + 1) for _ in range(draw.randrange(4))}


LIKELY: dict[str, list[Any]] = {  # values that are nearly right
    "n": [1, 2, 3], "stop": ["b", ["x", "é"]], "seed": [0, -5, 10**25], "logprobs": [0, 5, True], "echo": [True],
    "stream": [True], "max_tokens": [0, 1, 8], "top_p": [0.5, 1], "top_k": [0, 3], "min_p": [0.1], "suffix": ["", "x"],
    "logit_bias": [{"97": -100}, {"999999": 1}], "guided_regex": ["[ab]{2}", "(", "a**"], "top_logprobs": [0, 3],
    "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {"enum": [1]}}}],
    "guided_json": [{}, {"type": "array"}, {"$ref": "#"}], "stream_options": [{"include_usage": True}],
    "repetition_penalty": [1.2], "presence_penalty": [-2], "chat_template_kwargs": [{"messages": 1, "self": 2}],
}  # fmt: skip


def fuzzed(draw: random.Random, path: str) -> bytes:
    """A body that is nearly right: some keys with likely values, perhaps one with any; or with a byte changed."""
    body: dict[str, Any] = {}
    if "completions" in path:
        body = {"max_tokens": draw.choice([1, 3, 8]), "temperature": draw.choice([0, 1])}
    turns = [{"role": "user", "content": draw.choice(TEXTS)}, {"role": "assistant", "content": None}]
    texts = ["text", "", [97, 98], ["a", "b"], [[97], [98]]]
    key = {"/v1/chat/completions": "messages", "/detokenize": "tokens"}.get(path, "prompt")
    body[key] = {"messages": turns[: draw.choice([1, 2])], "tokens": [97, 300]}.get(key) or draw.choice(texts)
    for _ in range(draw.choice([0, 1, 2])):
        likely = draw.choice([*LIKELY])
        body[likely] = draw.choice(LIKELY[likely])
    if draw.random() < 0.4:
        body[draw.choice(KEYS[:31])] = value(draw)
    content = bytearray(json.dumps(body).encode())
    if draw.random() < 0.1:
        content[draw.randrange(len(content))] = draw.randrange(256)
    return bytes(content)


def test_1000_fuzzed_bodies_never_give_a_500(client: httpx2.Client) -> None:
    draw, statuses = random.Random(20), Counter[int]()
    paths = ["/v1/completions", "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]
    for _ in range(1000):
        path = draw.choice(paths)
        content = fuzzed(draw, path)
        answer = client.post(path, content=content)
        assert answer.status_code in (200, 400, 404), (path, content, answer.text)
        statuses[answer.status_code] += 1
    assert statuses[200] > 250
    assert statuses[400] > 250
    assert client.get("/health").json() == {"status": "ok"}
