"""The server's end: what was accepted is finished; and addresses that can't be taken."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scalewright.serve.request import Update
from scalewright.serve.server.calls import Limits
from scalewright.serve.server.start import listening, model_name, serve
from scalewright.spec.errors import RunError, UserError
from serve.server.fake import FakeEngine
from serve.server.test_load import send, wait

TEXT = "a text of 24 characters "


def _serve(folder: Path, pipe: Connection) -> None:
    """In a process of its own, in the main thread, as the command does."""
    os.setpgid(0, 0)
    engine: Any = FakeEngine(seconds=0.02)
    try:
        serve(engine, folder, "127.0.0.1", 0, None, Limits(), lambda url, name: pipe.send((url, name)))
    except RunError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


class Served:
    """A server in a forked process."""

    def __init__(self, folder: Path) -> None:
        mine, pipe = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(target=_serve, args=(folder, pipe))
        self.process.start()
        assert mine.poll(30)
        self.url, self.name = mine.recv()

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)


def test_sigterm_under_load_loses_no_accepted_request(tmp_path: Path) -> None:
    served = Served(tmp_path)
    clients = [send(served.url, prompt=TEXT, max_tokens=60, stream=number % 2 == 0) for number in range(24)]

    def accepted() -> bool:
        page = httpx2.get(f"{served.url}/metrics").text
        counts = re.findall(r"^scalewright_requests_(?:waiting|running|total\S*) (\S+)$", page, re.MULTILINE)
        return sum(map(float, counts)) == 24

    wait(accepted)  # 8 run, 16 wait: 24 / 8 x 60 steps of 20 ms are 3.6 s
    served.signal(signal.SIGTERM)
    time.sleep(0.1)
    late = httpx2.post(f"{served.url}/v1/completions", json={"prompt": "a"})
    assert (late.status_code, late.headers["retry-after"]) == (503, "1")
    assert httpx2.get(f"{served.url}/health").json() == {"status": "draining"}
    for number, client in enumerate(clients):
        answer = b"".join(iter(lambda client=client: client.recv(1 << 16), b"")).decode()  # type: ignore[misc]
        texts = re.findall(r'"text":"(.*?)","logprobs":null,"finish_reason":(null|"length")', answer)
        assert "".join(text for text, _ in texts) == (TEXT * 3)[:60]
        assert texts[-1][1] == '"length"'
        assert ("data: [DONE]" in answer) == (number % 2 == 0)
    served.process.join(30)
    assert served.process.exitcode == 0


def test_the_second_signal_does_not_wait(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It tells all who wait, and ends with 1 and one line."""
    served = Served(tmp_path)
    body = json.dumps({"prompt": TEXT * 40, "max_tokens": 2800, "temperature": 0, "stream": True}).encode()
    host, port = served.url.removeprefix("http://").split(":")
    waits = send(served.url, prompt=TEXT * 40, max_tokens=2800)
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        assert connection.recv(100)
        for _ in range(2):
            served.signal(signal.SIGINT)
            time.sleep(0.3)
        stream, whole = (b"".join(iter(lambda c=c: c.recv(1 << 16), b"")).decode() for c in (connection, waits))  # type: ignore[misc]
        served.process.join(10)
    assert served.process.exitcode == 1
    error = '{"error":{"message":"the server was stopped meanwhile","type":"server_error","param":null,"code":null}}'
    assert f"data: {error}" in stream
    assert "data: [DONE]" in stream
    assert whole.startswith("HTTP/1.1 503")
    assert error in whole
    err = capfd.readouterr().err
    assert err == "stopped by a second signal: 2 requests had no answer yet\n"


def test_an_idle_server_ends_at_once(tmp_path: Path) -> None:
    served = Served(tmp_path)
    assert served.name == tmp_path.name
    began = time.monotonic()
    served.signal(signal.SIGTERM)
    served.process.join(10)
    assert served.process.exitcode == 0
    assert time.monotonic() - began < 5


def test_addresses_that_cannot_be_taken() -> None:
    with listening("127.0.0.1", 0) as sock:
        sock.listen()
        port = sock.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is taken by process {os.getpid()}.*--port {port + 1}"):
            listening("127.0.0.1", port)
    with pytest.raises(UserError, match=r"cannot listen at 192\.0\.2\.1:0"):  # an address of documentation (RFC 5737)
        listening("192.0.2.1", 0)


def test_a_rank_that_died_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No traceback: the error names the process."""

    class Torn(FakeEngine):
        def step(self) -> list[Update]:
            raise RunError("rank 1 of --tp (process 7) was ended by SIGKILL")

    def ask(url: str, name: str) -> None:
        threading.Thread(target=lambda: answers.append(send(url, prompt="a")), daemon=True).start()

    answers: list[socket.socket] = []
    engine: Any = Torn()
    with pytest.raises(RunError, match=r"^rank 1 of --tp \(process 7\) was ended by SIGKILL; the engine failed$"):
        serve(engine, tmp_path, "127.0.0.1", 0, None, Limits(), ask)
    assert "Traceback" not in capfd.readouterr().err


def test_a_rank_that_died_is_noticed_by_an_idle_server(tmp_path: Path) -> None:
    """Within a second, with no request."""

    class Torn(FakeEngine):
        def check(self) -> None:
            raise RunError("rank 1 of --tp (process 7) was ended by SIGKILL")

    began = list[float]()
    engine: Any = Torn()
    with pytest.raises(RunError, match=r"^rank 1 of --tp \(process 7\) was ended by SIGKILL; the engine failed$"):
        serve(engine, tmp_path, "127.0.0.1", 0, None, Limits(), lambda url, name: began.append(time.monotonic()))
    assert time.monotonic() - began[0] < 1.0


def test_the_name_of_what_is_served(tmp_path: Path) -> None:
    assert model_name(tmp_path / "mine") == "mine"
    assert model_name(tmp_path / "mine" / "checkpoints" / "step-00000010") == "mine"
