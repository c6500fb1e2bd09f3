"""Answers: JSON, server-sent events, and errors in OpenAI's shape.

    {"error": {"message", "type", "param", "code"}}                  data: {...}\n\n  ...  data: [DONE]\n\n

Text is escaped to ASCII: a lone surrogate that a client sent can be sent back.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

TYPES = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error", 504: "timeout"}
AGAIN = {"Retry-After": "1"}


class Failure(Exception):
    """What a client is given instead of an answer."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(AGAIN) if status in (429, 503) else {}
        if status == 401:
            self.headers["WWW-Authenticate"] = "Bearer"
        if status == 504:
            self.headers["X-Should-Retry"] = "false"  # OpenAI's client: the same again would take as long
        kind = TYPES.get(status, "invalid_request_error")
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    def response(self) -> Response:
        """The whole answer."""
        return Json(self.body, self.status, self.headers)


class Json(Response):
    """A JSON document."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Its bytes."""
        return json.dumps(content, separators=(",", ":")).encode()


class Events(Response):
    """A stream of events; `close` is called when it has ended, its reader has gone, or `seconds` are over."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[dict[str, Any]], seconds: float, close: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events, self._seconds, self._close = events, seconds, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends them; a reader that takes none of them in time loses its connection."""
        try:
            with anyio.move_on_after(self._seconds + min(self._seconds, 5)):  # for a reader that stands still
                await until_gone(receive, self._write(send))
        finally:
            self._close()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        with anyio.move_on_after(self._seconds) as limit:
            async for event in self._events:
                await send(_body(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"))
        if limit.cancelled_caught:
            body = json.dumps(late(self._seconds).body, separators=(",", ":"))
            await send(_body(f"data: {body}\n\n".encode()))
        await send(_body(b"data: [DONE]\n\n", more=False))


def _body(content: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


def late(seconds: float) -> Failure:
    """The error of a request that took too long."""
    message = f"the request took more than {seconds:g} s: ask for fewer tokens, or start with a larger --timeout"
    return Failure(504, message)


async def until_gone(receive: Receive, work: Any) -> Any:
    """What `work` returns; None where the client goes away first, and then it is cancelled."""
    result, error = None, None
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        group.start_soon(watch)
        try:
            result = await work
        except Exception as raised:  # out of the group, which would wrap it
            error = raised
        group.cancel_scope.cancel()
    if error is not None:
        raise error
    return result
