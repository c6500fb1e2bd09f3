"""A socket, the server, and its end.

SIGTERM or Ctrl-C ──► new requests get 503 ──► accepted ones are finished ──► exit code 0
again             ──► what is accepted is answered with an error; exit code 1
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn

from scalewright.serve.engine import Engine
from scalewright.serve.server.app import make_app
from scalewright.serve.server.calls import Calls, Limits
from scalewright.serve.server.template import ChatTemplate
from scalewright.spec.common.formatting import counted
from scalewright.spec.common.ports import listener
from scalewright.spec.errors import RunError, UserError

CUT_S = 1.0  # for errors to reach who waits, after a second signal
STANDS_STILL_S = 60  # a reader that takes nothing for so long loses its connection


def serve(
    engine: Engine,
    source: str | Path,
    host: str,
    port: int,
    api_key: str | None,
    limits: Limits,
    ready: Callable[[str, str], None],
    name: str | None = None,
) -> None:
    """Serves the engine's model, of `source`, as `name` until a signal; `ready(url, name)` once it listens.

    Raises UserError for an address that can't be taken, RunError where the engine failed.
    """
    calls = Calls(engine, name or model_name(Path(source)), ChatTemplate(source), limits)
    with listening(host, port) as sock:
        host, port = sock.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        config = uvicorn.Config(
            make_app(calls, host, api_key), log_config=None, access_log=False, server_header=False, lifespan="on",
            ws="none", timeout_keep_alive=30, timeout_graceful_shutdown=STANDS_STILL_S,
        )  # fmt: skip
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        asyncio.run(Server(config, calls, lambda: ready(url, calls.name)).serve(sockets=[sock]))
    runner = calls.started
    runner.stop()
    if runner.cut:
        raise RunError(f"stopped by a second signal: {counted(runner.cut, 'requests')} had no answer yet")
    if runner.why:
        raise RunError(f"{runner.why}; the engine failed")
    if runner.broken:
        raise RunError("the engine failed; its traceback is above")


def model_name(source: Path) -> str:
    """The folder's name; of a checkpoint that of its run: runs/mine/checkpoints/step-00000010 is `mine`."""
    folder = source.resolve()
    return folder.parent.parent.name if folder.parent.name == "checkpoints" else folder.name


class Server(uvicorn.Server):
    """uvicorn's, which ends when all that was accepted is finished."""

    def __init__(self, config: uvicorn.Config, calls: Calls, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._calls, self._ready = calls, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second doesn't wait."""
        runner = self._calls.runner
        if runner is None:
            self.should_exit = self.force_exit = True
        elif runner.draining:
            self._loop.call_soon_threadsafe(self._cut)
        else:
            runner.draining = True

    def _cut(self) -> None:
        """Answers all with an error, and ends: a reader that stands still gets no more than a second."""
        if not self.should_exit:
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # tracebacks of what is cancelled
            self.should_exit = True
            self._calls.started.cut_off()
            self._loop.call_later(CUT_S, setattr, self, "force_exit", True)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether it is time to end."""
        runner = self._calls.started
        return await super().on_tick(counter) or runner.broken or (runner.draining and not runner.tickets)


def listening(host: str, port: int) -> socket.socket:
    """A socket that is bound; raises UserError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # asyncio turns Nagle's algorithm off only where the protocol is named: 40 ms an answer
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STANDS_STILL_S * 1000)
        sock.bind((host, port))
        return sock
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise UserError(f"cannot listen at {host}:{port}: {error.strerror}", "--host", "take 127.0.0.1") from None
        holder = f" by {who}" if (who := listener(port)) else ""
        how = f"take another, --port {port + 1}, or any free one, --port 0"
        raise UserError(f"port {port} is taken{holder}", "--port", how) from None
