"""Routes, and who may ask.

    a request ──Door: its Host, its Origin, its key──► Starlette's routes ──► calls.py
                        403    403        401          404, 405

A page of another site can send requests to this machine under a name of its own; its Origin or Host give it away.
No other site may read an answer: there is no CORS.
"""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as Call
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from scalewright.serve.server.bodies import Chat, Completion
from scalewright.serve.server.calls import Calls
from scalewright.serve.server.page import page_text
from scalewright.serve.server.reply import Failure, Json
from scalewright.spec.errors import UserError

OPEN = ("/", "/health")  # without a key
LOCAL = ("127.0.0.1", "localhost", "::1")


def make_app(calls: Calls, host: str = "127.0.0.1", api_key: str | None = None) -> ASGIApp:
    """The application; `host` is the address that it listens at."""
    page = page_text(calls.name, calls.template.there, bool(api_key))

    async def front(call: Call) -> Response:
        return HTMLResponse(page, headers={"Cache-Control": "no-store", "X-Frame-Options": "DENY"})

    async def health(call: Call) -> Response:
        runner = calls.started
        state = "broken" if runner.broken else "draining" if runner.draining else "ok"
        return Json({"status": state}, 200 if state == "ok" else 503)

    async def metrics(call: Call) -> Response:
        return Response(calls.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(call: Call) -> Response:
        card = {"id": calls.name, "object": "model", "created": 0, "owned_by": "scalewright",
                "max_model_len": calls.started.stats.max_model_len}  # fmt: skip
        if (wanted := call.path_params.get("name")) is None:
            return Json({"object": "list", "data": [card]})
        if wanted != calls.name:
            raise Failure(404, f"the model '{wanted}' isn't here", "model", "model_not_found")
        return Json(card)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        calls.start()
        yield
        calls.started.stop()

    async def failed(call: Call, error: Exception) -> Response:
        failure = _failure(error)
        calls.metrics.refuse(failure.status)
        return failure.response()

    routes = [
        Route("/", front), Route("/health", health), Route("/metrics", metrics),
        Route("/v1/models", models), Route("/v1/models/{name:path}", models), Route("/picture", calls.picture),
        Route("/v1/completions", calls.completions, methods=["POST"]),
        Route("/v1/chat/completions", calls.chat, methods=["POST"]),
        Route("/tokenize", calls.tokenize, methods=["POST"]),
        Route("/detokenize", calls.detokenize, methods=["POST"]),
    ]  # fmt: skip
    handlers = dict.fromkeys((Failure, UserError, HTTPException, Exception), failed)
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Door(app, host in LOCAL, api_key)


def _failure(error: Exception) -> Failure:
    """What a client is told of an error: of one of ours that it happened."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, UserError):
        keys = Completion.model_fields.keys() | Chat.model_fields.keys()
        param = error.where if error.where in keys else None
        return Failure(400, error.what + (f": {error.how}" if error.how else ""), param)
    if isinstance(error, HTTPException):
        return Failure(error.status_code, str(error.detail))
    return Failure(500, "an error of the server's, which its log has")


class Door:
    """Lets those in who may ask."""

    def __init__(self, app: ASGIApp, local: bool, api_key: str | None) -> None:
        self._app, self._local, self._key = app, local, api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers it."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (self._app if refusal is None else refusal.response())(scope, receive, send)

    def _refusal(self, scope: Scope) -> Failure | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self._local and _name(f"//{host}") not in LOCAL:
            return Failure(403, "this server is for its own machine: ask for 127.0.0.1")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and origin.partition("//")[2].lower() != host.lower():
            return Failure(403, "requests of another site's pages are not answered")
        if self._key is None or scope["path"] in OPEN:
            return None
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._key.encode()):
            return None
        return Failure(401, "the API key is missing or wrong: send 'Authorization: Bearer KEY'", code="invalid_api_key")


def _name(address: str) -> str:
    """The host of an address, without port and brackets."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
