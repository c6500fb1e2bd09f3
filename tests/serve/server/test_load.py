"""Many clients at once, slow ones, ones that go away, too many; and an engine that fails."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from scalewright.serve.request import Request
from serve.server.fake import FakeEngine, serving


def wait(ready: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it didn't come"
        time.sleep(0.01)


def send(url: str, **body: Any) -> socket.socket:
    """A call whose answer nobody reads yet."""
    host, port = url.removeprefix("http://").split(":")
    content = json.dumps({"prompt": "ab", "temperature": 0, **body}).encode()
    connection = socket.create_connection((host, int(port)))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
    head += f"Content-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


def complete(url: str, **body: Any) -> httpx2.Response:
    return httpx2.post(f"{url}/v1/completions", json={"prompt": "ab", "temperature": 0, **body}, timeout=60)


LONG = "abcdefgh" * 100  # goes on for 2,400 tokens


def test_64_clients_at_once(tmp_path: Path) -> None:
    async def all_of_them(url: str) -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:

            async def ask(number: int) -> str:
                keys: Any = {"model": "tiny", "prompt": f"client {number} ", "max_tokens": 60, "temperature": 0}
                if number % 2:
                    return str((await client.completions.create(**keys)).choices[0].text)
                stream = await client.completions.create(**keys, stream=True)
                return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*map(ask, range(64)))

    with serving(tmp_path / "tiny") as (url, engine):
        texts = asyncio.run(all_of_them(url))
        assert all(text and (f"client {n} " * 9).startswith(text) for n, text in enumerate(texts))
        assert engine.idle
        assert len(engine.threads) == 1  # the engine has one owner


def test_a_slow_reader_stalls_nobody(tmp_path: Path) -> None:
    with serving(tmp_path / "tiny", FakeEngine(seconds=0.002), timeout=4) as (url, engine):
        # 4 x 2,300 chunks with 5 probabilities: 5 MB, more than sockets buffer, in 4.6 s
        connection = send(url, prompt=LONG, n=4, max_tokens=2300, logprobs=5, stream=True)
        wait(lambda: engine.steps > 100)
        began = time.monotonic()
        assert complete(url).json()["choices"][0]["text"] == "ab" * 3
        assert time.monotonic() - began < 4
        wait(lambda: engine.idle)
        connection.settimeout(30)
        rest = b"".join(iter(lambda: connection.recv(1 << 20), b""))  # what was buffered before its time was over
        assert b"the request took more than 4 s" in rest
        connection.close()


@pytest.mark.parametrize("stream", [False, True])
def test_who_goes_away_is_cancelled(tmp_path: Path, stream: bool) -> None:
    with serving(tmp_path / "tiny", FakeEngine(seconds=0.005)) as (url, engine):
        connection = send(url, prompt=LONG, n=3, max_tokens=2000, stream=stream)
        wait(lambda: engine.steps > 3)
        connection.close()
        wait(lambda: engine.cancelled == 3)
        assert engine.idle
        assert 'requests_total{reason="cancelled"} 3.0' in httpx2.get(f"{url}/metrics").text
        assert engine.steps < 500


def test_too_many_are_sent_away(tmp_path: Path) -> None:
    with serving(tmp_path / "tiny", max_queue=3) as (url, engine):
        engine.go.clear()
        waiting = [send(url, max_tokens=3) for _ in range(3)]
        wait(lambda: len(engine.calls.started.tickets) == 3)
        refused = complete(url)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert complete(url, n=4).status_code == 400  # more than may ever wait
        engine.go.set()
        for connection in waiting:
            assert b"200 OK" in connection.recv(1 << 16)
            connection.close()
        assert complete(url).status_code == 200


def test_a_request_has_its_time(tmp_path: Path) -> None:
    with serving(tmp_path / "tiny", FakeEngine(seconds=0.01), timeout=0.2) as (url, engine):
        late = complete(url, prompt=LONG, max_tokens=2000)
        assert (late.status_code, late.headers["x-should-retry"]) == (504, "false")
        streamed = complete(url, prompt=LONG, max_tokens=2000, stream=True).text.strip().split("\n\n")
        assert streamed[-1] == "data: [DONE]"
        assert "more than 0.2 s" in json.loads(streamed[-2].removeprefix("data: "))["error"]["message"]
        wait(lambda: engine.cancelled == 2)


def test_an_engine_that_fails_ends_the_server_and_tells_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[str] = []
    monkeypatch.setattr("threading.excepthook", lambda hook: raised.append(str(hook.exc_value)))
    with serving(tmp_path / "tiny", FakeEngine(fails_at=5)) as (url, _):
        answer = complete(url, prompt=LONG)
        assert answer.status_code == 500
        assert answer.json()["error"]["message"] == "the engine has failed"
        assert raised == ["a secret of the engine's"]  # on the server's own stderr


@pytest.mark.slow
def test_memory_stays_flat_over_10_000_requests(tmp_path: Path) -> None:
    def held() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MiB

    with serving(tmp_path / "tiny") as (url, engine), httpx2.Client(base_url=url) as client:
        for number in range(10_000):
            body = {"prompt": f"{number} ab", "max_tokens": 4, "stream": number % 3 == 0, "logprobs": 2}
            assert client.post("/v1/completions", json=body).status_code == 200
            if number == 2_000:
                before = held()
        assert engine.numbers == 10_000
        assert held() - before < 8  # 8,000 requests of 1 kB that stayed would be as much


def test_a_request_that_breaks_when_it_is_added_breaks_alone(tmp_path: Path) -> None:
    class Picky(FakeEngine):
        def add(self, request: Request) -> int:
            if list(request.prompt) == [104, 105]:
                raise TypeError("a secret of the engine's")
            return super().add(request)

    with serving(tmp_path / "tiny", Picky()) as (url, _):
        answer = complete(url, prompt=["ab", "hi"])
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert complete(url).status_code == 200
