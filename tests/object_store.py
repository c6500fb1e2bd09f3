"""An S3 server for tests (moto's, a real HTTP server on this machine), and a proxy before it that misbehaves as asked.

client ──► Proxy ──fault(method, path, number)──► moto
                   a status (503 SlowDown …) · "reset" before it is handed on · "lost" after it · "cut": half of
                   the answer · seconds: late
"""

from __future__ import annotations

import http.client
import logging
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

BUCKET = "bucket"
Fault = Callable[[str, str, int], int | float | str | None]
SLOW_DOWN = (
    b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>'
)


class S3:
    """A server with an empty bucket, and how a process reaches it."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self.host, self.port = self._server.get_host_and_port()

    def variables(self, port: int | None = None) -> dict[str, str]:
        """The environment of a client; `port` of a proxy."""
        keys = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_REGION": "us-east-1"}
        return {**keys, "AWS_ENDPOINT_URL": f"http://{self.host}:{port or self.port}"}

    def empty(self) -> None:
        """Forgets all objects, and makes the bucket."""
        for method, path in (("POST", "moto-api/reset"), ("PUT", BUCKET)):
            urllib.request.urlopen(urllib.request.Request(f"http://{self.host}:{self.port}/{path}", method=method))

    def stop(self) -> None:
        self._server.stop()


class Proxy:
    """Hands requests on to a server, unless `fault` says otherwise; counts those that change something."""

    def __init__(self, s3: S3) -> None:
        self.s3, self.fault, self.seen = s3, _no_fault, list[tuple[str, str]]()
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words: Any) -> None:
                """Quiet."""

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (ConnectionError, http.client.HTTPException):
                    self.close_connection = True

            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.answer(self, body)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _do

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        """One request."""
        method, path = handler.command, handler.path
        with self._lock:
            self.seen.append((method, path))
            fault = self.fault(method, path, len(self.seen))
        if isinstance(fault, float):
            time.sleep(fault)
        if fault == "reset":
            _break(handler)
            return
        if isinstance(fault, int):
            _send(handler, fault, [("Content-Type", "application/xml")], SLOW_DOWN)
            return
        upstream = http.client.HTTPConnection(self.s3.host, self.s3.port, timeout=60)
        upstream.request(method, path, body, dict(handler.headers.items()))
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        if fault == "lost":
            _break(handler)
            return
        dropped = {"content-length", "connection", "transfer-encoding", "date", "server"}
        headers = [(key, value) for key, value in answer.getheaders() if key.lower() not in dropped]
        _send(handler, answer.status, headers, content, half=fault == "cut", length=answer.getheader("Content-Length"))

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _no_fault(method: str, path: str, number: int) -> None:
    return None


def _send(
    handler: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], content: bytes, *,
    half: bool = False, length: str | None = None,
) -> None:  # fmt: skip
    handler.send_response(status)
    for key, value in headers:
        handler.send_header(key, value)
    is_head = handler.command == "HEAD"
    handler.send_header("Content-Length", (length or "0") if is_head else str(len(content)))
    handler.end_headers()
    if is_head:
        return
    handler.wfile.write(content[: len(content) // 2] if half else content)
    if half:
        _break(handler)


def _break(handler: BaseHTTPRequestHandler) -> None:
    """Resets the connection."""
    handler.close_connection = True
    handler.wfile.flush()
    linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # on, 0 s: RST in the place of FIN
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.connection.close()


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    """One a file of tests: a start takes 0.6 s."""
    pytest.importorskip("obstore")
    s3 = S3()
    yield s3
    s3.stop()


@pytest.fixture
def s3(server: S3, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The server with an empty bucket; this process and its children reach it, and have a cache of their own."""
    server.empty()
    for name, value in server.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SCALEWRIGHT_CACHE", str(tmp_path / "cache"))
    return server


@contextmanager
def proxied(s3: S3, fault: Fault = _no_fault) -> Iterator[Proxy]:
    """A proxy that this process and its children go through meanwhile."""
    proxy = Proxy(s3)
    proxy.fault = fault
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", s3.variables(proxy.port)["AWS_ENDPOINT_URL"])
        yield proxy
    proxy.stop()
