"""A call from its body to its answer.

    body ──prompts──► Requests ──Runner.submit──► Ticket ──updates──► shapes ──► one document, or events

Texts become tokens in a worker thread, as a long one takes longer than others should wait. A client that goes away is
noticed while its answer is written, and its requests are cancelled.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Call
from starlette.responses import Response

from scalewright.serve.engine import Engine
from scalewright.serve.grammar import Grammars
from scalewright.serve.request import Grammar, Request, Update
from scalewright.serve.server.bodies import Body, Chat, Completion, Detokenize, Tokenize, Written, drawn_seed, mistake
from scalewright.serve.server.infill import infill
from scalewright.serve.server.metrics import Metrics
from scalewright.serve.server.reply import Events, Failure, Json, late, until_gone
from scalewright.serve.server.runner import Broken, Full, Runner, Ticket
from scalewright.serve.server.shapes import ChatShape, CompletionShape, TokenTexts
from scalewright.serve.server.template import ChatTemplate
from scalewright.spec.errors import nearest

B = TypeVar("B", bound=Body)
CHAT_TOKENS = 1024  # of an answer to a chat that names no limit


@dataclass(frozen=True)
class Limits:
    """What a server takes at once."""

    max_queue: int = 256  # requests without a first token
    timeout: float = 600.0  # seconds a request
    body: int = 8 << 20  # bytes


@dataclass
class Work:
    """The requests of one call, and how each is written."""

    requests: list[Request]
    shapes: Sequence[CompletionShape | ChatShape]
    prompt_tokens: int
    drop: bool = False  # of an echo without new tokens the one that is written
    cached: dict[int, int] = field(default_factory=dict)  # prompt tokens from the prefix cache, by request


class Calls:
    """The endpoints that ask the engine."""

    def __init__(self, engine: Engine, name: str, template: ChatTemplate, limits: Limits) -> None:
        self.engine, self.loaded, self.name, self.template, self.limits = engine, engine.loaded, name, template, limits
        self.metrics = Metrics()
        self.runner: Runner | None = None  # from the start of the event loop on
        self._texts = TokenTexts(self.loaded)
        self._grammars: Grammars | None = None  # made when it is first asked for
        self.metrics.watch(lambda: self.started.stats)

    def start(self) -> None:
        """Starts the engine's thread; called in the event loop."""
        self.runner = Runner(self.engine, self.limits.max_queue, self.metrics.observe)

    @property
    def started(self) -> Runner:
        """The runner."""
        assert self.runner is not None
        return self.runner

    async def completions(self, call: Call) -> Response:
        """/v1/completions."""
        body = await self._read(call, Completion)
        return await self._answer(call, body, await to_thread.run_sync(self._completion, body))

    async def chat(self, call: Call) -> Response:
        """/v1/chat/completions."""
        body = await self._read(call, Chat)
        return await self._answer(call, body, await to_thread.run_sync(self._chat, body))

    async def tokenize(self, call: Call) -> Response:
        """/tokenize."""
        body = await self._read(call, Tokenize)
        ids = await to_thread.run_sync(self._tokens, body)
        return Json({"tokens": ids, "count": len(ids), "max_model_len": self.started.stats.max_model_len})

    async def detokenize(self, call: Call) -> Response:
        """/detokenize."""
        body = await self._read(call, Detokenize)
        self._known(body.tokens, "tokens")
        return Json({"prompt": await to_thread.run_sync(self.loaded.decode, body.tokens)})

    async def picture(self, call: Call) -> Response:
        """/picture: the batch and the blocks as they are, and the steps after `since`, for the page."""
        try:
            since = float(call.query_params.get("since", "0"))
        except ValueError:
            raise Failure(400, "since is no number", "since") from None
        with anyio.move_on_after(10):
            return Json(await self.started.picture(since))
        raise Failure(503, "the engine gives no answer")

    async def _read(self, call: Call, kind: type[B]) -> B:
        """The body, checked; raises Failure."""
        if self.started.draining:
            raise Failure(503, "the server is about to end; it finishes what it has accepted")
        content, size = bytearray(), call.headers.get("content-length", "")
        most = f"the body may have {self.limits.body:,} bytes at most"
        if size.isdigit() and int(size) > self.limits.body:
            raise Failure(413, most)
        try:
            with anyio.fail_after(self.limits.timeout):
                async for part in call.stream():
                    content += part
                    if len(content) > self.limits.body:
                        raise Failure(413, most)
        except ClientDisconnect:
            raise Failure(400, "the body is incomplete") from None
        except TimeoutError:
            raise late(self.limits.timeout) from None
        try:
            body = kind.model_validate(from_json(bytes(content), allow_inf_nan=False))
        except ValidationError as error:
            raise _invalid(error, kind) from None
        except ValueError as error:
            raise Failure(400, f"the body is no JSON: {error}") from None
        if body.model is not None and body.model != self.name:
            message = f"the model '{body.model}' isn't here: this server has '{self.name}'"
            raise Failure(404, message, "model", "model_not_found")
        return body

    def _completion(self, body: Completion) -> Work:
        self._known(body.logit_bias or (), "logit_bias")
        drop, stop_ids = body.max_tokens == 0, None
        prompts: list[tuple[list[int], str, list[int]]]
        if body.suffix is None:
            prompts = [self._prompt(each) for each in _several(body.prompt)]
        elif isinstance(body.prompt, str):
            ids, stop_ids = infill(self.loaded, body.prompt, body.suffix)
            prompts = [(ids, "", ids)]
        else:
            raise Failure(400, "suffix needs a prompt that is one string", "suffix")
        grammar, drawn, n = self._grammar(body), drawn_seed(), body.n or 1
        self._fits(len(prompts) * n)
        requests, shapes = [], []
        for number, (ids, text, shown) in enumerate(prompts):
            for choice in range(n):
                requests.append(Request(
                    ids, body.max_tokens or (1 if drop else 16), body.sampling(drawn, number, choice), body.stops,
                    stop_ids, body.logprobs, bool(body.echo) and body.logprobs is not None, grammar(),
                ))  # fmt: skip
                echo = (text, shown) if body.echo else None
                shapes.append(CompletionShape(self._texts, number * n + choice, body.logprobs, echo))
        return Work(requests, shapes, sum(len(ids) for ids, *_ in prompts), drop)

    def _chat(self, body: Chat) -> Work:
        self._known(body.logit_bias or (), "logit_bias")
        messages = [message.model_dump() for message in body.messages]
        ids = self._raw(self.template.render(messages, body.chat_template_kwargs))
        grammar, drawn, n = self._grammar(body), drawn_seed(), body.n or 1
        self._fits(n)
        most = max(1, min(CHAT_TOKENS, self.engine.room(len(ids))))
        tokens, logprobs = body.max_completion_tokens or body.max_tokens or most, bool(body.logprobs)
        top = (body.top_logprobs or 0) if logprobs else None
        ends = self.template.ends(self.loaded)
        requests = [
            Request(ids, tokens, body.sampling(drawn, 0, choice), body.stops, ends, logprobs=top, grammar=grammar())
            for choice in range(n)
        ]
        return Work(requests, [ChatShape(self._texts, choice, logprobs) for choice in range(n)], len(ids))

    def _prompt(self, prompt: str | list[int]) -> tuple[list[int], str, list[int]]:
        """Tokens, and what an echo has of them: the text, its tokens. An empty text's beginning isn't part of it."""
        if isinstance(prompt, str):
            ids = self.loaded.encode(prompt)
            return ids, prompt, ids if prompt else []
        return prompt, self.loaded.decode(prompt), prompt

    def _tokens(self, body: Tokenize) -> list[int]:
        if body.messages is not None:
            return self._raw(self.template.render([message.model_dump() for message in body.messages]))
        text = body.prompt or ""
        return self.loaded.encode(text) if body.add_special_tokens else self._raw(text)

    def _raw(self, text: str) -> list[int]:
        """Tokens of a text that has its own beginning."""
        return list(self.loaded.tokenizer.encode(text, add_special_tokens=False).ids)

    def _grammar(self, body: Written) -> Callable[[], Grammar | None]:
        """What makes the grammar of each request."""
        if body.grammar is None and body.guided_regex is None:
            return lambda: None
        self._grammars = self._grammars or Grammars(self.loaded)
        if body.guided_regex is not None:
            return self._grammars.regex(body.guided_regex, "guided_regex")
        return self._grammars.json(body.grammar or {}, "response_format" if body.guided_json is None else "guided_json")

    def _known(self, tokens: Iterable[int], param: str) -> None:
        """Raises Failure for a token that the model doesn't have."""
        size = self.engine.spec.vocab_size
        if (beyond := next((token for token in tokens if not 0 <= token < size), None)) is not None:
            raise Failure(400, f"{param}: token {beyond} is outside the model's vocabulary of {size:,}", param)

    def _fits(self, count: int) -> None:
        if count > self.limits.max_queue:
            message = f"{count} choices at once: {self.limits.max_queue} requests may wait (--max-queue)"
            raise Failure(400, message, "n")

    async def _answer(self, call: Call, body: Completion | Chat, work: Work) -> Response:
        try:
            ticket = await self.started.submit(work.requests, work.drop)
        except Full:
            message = f"{self.limits.max_queue} requests are waiting already: try again in a second"
            raise Failure(429, message, code="rate_limit_exceeded") from None
        except Broken:
            raise self._broken() from None
        kinds = work.shapes[0]
        head: dict[str, Any] = {"id": f"{'chatcmpl' if isinstance(body, Chat) else 'cmpl'}-{uuid.uuid4().hex}"}
        head |= {"object": kinds.kind, "created": int(time.time()), "model": self.name}
        if body.stream:
            head["object"] = kinds.chunk_kind
            usage = body.stream_options is not None and body.stream_options.include_usage
            events = self._events(head, work, ticket, usage)
            return Events(events, self.limits.timeout, lambda: self.started.close(ticket))
        try:
            with anyio.move_on_after(self.limits.timeout):
                chunks = await until_gone(call.receive, self._collect(work, ticket))
                if chunks is None:  # nobody is there to read it
                    return Response(status_code=499)
                choices = [shape.whole(part) for shape, part in zip(work.shapes, chunks, strict=True)]
                return Json({**head, "choices": choices, "usage": _usage(work, ticket)})
        except Broken:
            raise self._broken() from None
        finally:
            self.started.close(ticket)
        raise late(self.limits.timeout)

    def _broken(self) -> Failure:
        if self.started.cut:
            return Failure(503, self.started.why)
        return Failure(500, "the engine has failed")

    async def _collect(self, work: Work, ticket: Ticket) -> list[list[dict[str, Any]]]:
        chunks: list[list[dict[str, Any]]] = [[] for _ in work.shapes]
        async for index, update in ticket.updates():
            chunks[index] += _chunks(work, index, update)
        return chunks

    async def _events(
        self, head: dict[str, Any], work: Work, ticket: Ticket, usage: bool
    ) -> AsyncIterator[dict[str, Any]]:
        more: dict[str, Any] = {"usage": None} if usage else {}
        for shape in work.shapes:
            for chunk in shape.opening():
                yield {**head, "choices": [chunk], **more}
        try:
            async for index, update in ticket.updates():
                for chunk in _chunks(work, index, update):
                    yield {**head, "choices": [chunk], **more}
        except Broken:
            yield self._broken().body
            return
        if usage:
            yield {**head, "choices": [], "usage": _usage(work, ticket)}


def _chunks(work: Work, index: int, update: Update) -> list[dict[str, Any]]:
    work.cached[index] = work.cached.get(index, 0) or update.cached
    return work.shapes[index].chunks(update, work.drop)


def _usage(work: Work, ticket: Ticket) -> dict[str, Any]:
    written = 0 if work.drop else sum(ticket.tokens)
    return {
        "prompt_tokens": work.prompt_tokens, "completion_tokens": written,
        "total_tokens": work.prompt_tokens + written,
        "prompt_tokens_details": {"cached_tokens": min(sum(work.cached.values()), work.prompt_tokens)},
    }  # fmt: skip


def _several(prompt: str | list[int] | list[str] | list[list[int]]) -> Sequence[str | list[int]]:
    """The prompts of a body."""
    if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int):
        return [prompt]  # type: ignore[list-item]
    return prompt


def _invalid(error: ValidationError, kind: type[Body]) -> Failure:
    """The first key that is wrong, with all that it may be."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    param, message = mistake(errors)
    if errors[0]["type"] == "extra_forbidden":
        param = ".".join(map(str, errors[0]["loc"]))
        near = nearest(param, kind.model_fields, 1)
        message = f"{param}: this key isn't taken here" + (f": did you mean {near[0]}?" if near else "")
    return Failure(400, message, param)
