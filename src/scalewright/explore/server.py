"""A small server on this machine: the page, and JSON for what it asks. Standard library only; nothing is written.

    GET /              the page                       GET /picture?STATE   one layout (answer.py)
    GET /reasons?STATE  what would change it          GET /search?STATE    the best layouts; a newer search ends it

A mistake is status 400 with {error: {what, where, how}}. Requests that name another host are refused: another site's
page could send them, by a name of its own for this machine.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from scalewright.explore.answer import picture, reasons, searched
from scalewright.explore.state import State, read_state
from scalewright.spec.common.ports import listener
from scalewright.spec.errors import UserError

LONGEST = 4_000  # characters of a state
LOCAL = ("127.0.0.1", "localhost", "::1")


class Explorer(ThreadingHTTPServer):
    """The server; `page` is its only document, `models` and `clusters` the names that may be asked about."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, port: int, page: str, models: frozenset[str], clusters: frozenset[str]) -> None:
        self.page, self.models, self.clusters = page, models, clusters
        self.newest = count(1)
        self.search = 0  # the number of the search that is wanted
        self.answers: dict[str, Callable[[State], dict[str, Any]]] = {
            "/picture": picture, "/reasons": lambda state: reasons([state])[0], "/search": self.best,
        }  # fmt: skip
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UserError(
                    f"cannot listen at {host}:{port}: {error.strerror}", "--host", "take 127.0.0.1"
                ) from error
            holder = f" by {who}" if (who := listener(port)) else ""
            how = "take another, --port 8643, or any free one, --port 0"
            raise UserError(f"port {port} is taken{holder}", "--port", how) from error

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"

    def best(self, state: State) -> dict[str, Any]:
        """A search, which ends as soon as another begins."""
        self.search = number = next(self.newest)
        answer = searched(state, lambda: self.search != number)
        if not answer["complete"]:
            raise UserError("a newer search, of this page or another one, ended this one", "search", "move a slider")
        return answer

    def is_ours(self, host: str) -> bool:
        """Whether a request's Host is an address, or this machine; names are others' when only this machine listens."""
        name = urlsplit(f"//{host}").hostname or ""
        return name in LOCAL or str(self.server_address[0]) not in LOCAL


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Explorer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """The page, or one answer."""
        path, _, query = self.path.partition("?")
        if not self.server.is_ours(self.headers.get("Host", "")):
            return self._send(403, "text/plain", b"this page is for its own machine\n")
        if path == "/":
            return self._send(200, "text/html; charset=utf-8", self.server.page.encode())
        if (ask := self.server.answers.get(path)) is None:
            return self._send(404, "text/plain", b"no such page: / is the only one\n")
        try:
            if len(query) > LONGEST:
                raise UserError("the address is too long", "link", "open the page again")
            status, answer = 200, ask(read_state(query, self.server.models, self.server.clusters))
        except UserError as error:
            status, answer = 400, {"error": {"what": error.what, "where": error.where, "how": error.how}}
        return self._send(status, "application/json", json.dumps(answer).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):  # the slider has moved on
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: every move of a slider would be a line."""
