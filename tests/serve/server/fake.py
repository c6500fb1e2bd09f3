"""An engine without a model, by the interface of serve/engine.py: it writes the prompt again, token by token.

A vocabulary of bytes, so that a character of two bytes lies across two tokens; `<|endoftext|>` comes after three times
the prompt. Seeds move the text by so many tokens, except at temperature 0.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import uvicorn
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from scalewright.serve.load import Loaded
from scalewright.serve.request import Logprob, Request, Update
from scalewright.serve.server.app import make_app
from scalewright.serve.server.calls import Calls, Limits
from scalewright.serve.server.shapes import byte_letters
from scalewright.serve.server.start import Server, listening
from scalewright.serve.server.template import ChatTemplate
from scalewright.serve.text import Detokenizer, StopText
from scalewright.spec.errors import UserError

SPECIAL = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
TEMPLATE = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}<|assistant|>"


def byte_tokenizer(special: list[str] = SPECIAL) -> Tokenizer:
    """256 bytes, and the special tokens after them."""
    tokenizer = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in byte_letters().items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    return tokenizer


def loaded() -> Loaded:
    """The tokenizer with its end of text, and no model."""
    return Loaded(None, byte_tokenizer(), frozenset({256}), end=256)  # type: ignore[arg-type]


@dataclass
class Stats:
    waiting: int = 0
    running: int = 0
    blocks: int = 256
    blocks_used: int = 0
    blocks_cached: int = 0
    prefix_tokens: int = 0
    prompt_tokens: int = 0
    preempted: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    generated_tokens: int = 0
    block_size: int = 16
    kv_tokens: int = 4096
    max_model_len: int = 2048
    max_concurrency: int = 8


@dataclass
class Running:
    number: int
    request: Request
    pieces: Detokenizer
    gate: StopText
    written: list[int] = field(default_factory=list)


class FakeEngine:
    """`seconds` a step; `fails_at`: the step that raises."""

    def __init__(self, seconds: float = 0.0, fails_at: int | None = None) -> None:
        self.loaded, self.seconds, self.fails_at = loaded(), seconds, fails_at
        self.spec = SimpleNamespace(vocab_size=262)
        self.queue: deque[Running] = deque()
        self.running: list[Running] = []
        self.numbers, self.steps, self.cancelled = 0, 0, 0
        self.threads: set[int] = set()
        self.go = threading.Event()  # steps wait for it
        self.go.set()
        self.calls: Any = None  # those of its server
        self._stats = Stats()

    def add(self, request: Request) -> int:
        self.threads.add(threading.get_ident())
        if not request.prompt:
            raise UserError("the prompt has no tokens", "prompt", "write a prompt")
        if max(request.prompt) >= 262:
            raise UserError(f"token {max(request.prompt)} is outside the vocabulary of 262", "prompt", "use its own")
        if len(request.prompt) + request.max_new_tokens > self._stats.kv_tokens:
            raise UserError("the prompt and max_tokens are too long", "prompt", "ask for less")
        self.numbers += 1
        pieces = Detokenizer(self.loaded.decode, request.prompt)
        self.queue.append(Running(self.numbers, request, pieces, StopText(request.stop)))
        self._stats.prompt_tokens += len(request.prompt)
        return self.numbers

    def cancel(self, number: int) -> None:
        self.threads.add(threading.get_ident())
        before = len(self.queue) + len(self.running)
        self.queue = deque(each for each in self.queue if each.number != number)
        self.running = [each for each in self.running if each.number != number]
        assert len(self.queue) + len(self.running) == before - 1, "cancelled twice, or after its end"
        self.cancelled += 1

    def check(self) -> None:
        self.threads.add(threading.get_ident())

    @property
    def idle(self) -> bool:
        return not self.queue and not self.running

    def room(self, prompt: int) -> int:
        return self._stats.kv_tokens - prompt

    def step(self) -> list[Update]:
        self.threads.add(threading.get_ident())
        self.steps += 1
        self.go.wait(30)
        if self.steps == self.fails_at:
            raise RuntimeError("a secret of the engine's")
        if self.seconds:
            time.sleep(self.seconds)
        while self.queue and len(self.running) < self._stats.max_concurrency:
            self.running.append(self.queue.popleft())
        updates = [self._write(each) for each in self.running]
        ended = {update.number for update in updates if update.finished}
        self.running = [each for each in self.running if each.number not in ended]
        self._stats.generated_tokens += len(updates)
        return updates

    def _write(self, each: Running) -> Update:
        request, count = each.request, len(each.written)
        prompt = list(request.prompt)
        seed = 0 if request.sampling.greedy else request.sampling.seed
        token = prompt[(count + seed) % len(prompt)] if count < 3 * len(prompt) else 256
        if request.grammar is not None:
            token = int(request.grammar.mask(torch.zeros(262)).argmax())
            request.grammar.accept(token)
        each.written.append(token)
        update = Update(each.number, [token])
        if request.logprobs is not None:
            top = tuple((token - n, math.log(0.5 / 2**n)) for n in range(min(request.logprobs, token + 1)))
            update.logprobs = [Logprob(token, math.log(0.5), top)]
        if request.prompt_logprobs and count == 0:
            update.prompt_logprobs = [None, *(Logprob(t, math.log(0.25), ((t, math.log(0.25)),)) for t in prompt[1:])]
        if token in (request.stop_ids or self.loaded.end_of_text):
            update.finished = "end_of_text"
        else:
            update.text = each.gate.add(each.pieces.add(token))
            update.finished = "stop" if each.gate.stopped else None
        if update.finished is None and len(each.written) == request.max_new_tokens:
            update.finished = "length"
        if update.finished in ("length", "end_of_text"):
            update.text += each.gate.add(each.pieces.rest()) + each.gate.rest()
        return update

    def stats(self) -> Stats:
        self._stats.waiting, self._stats.running = len(self.queue), len(self.running)
        self._stats.blocks_used = 4 * len(self.running)
        return Stats(**vars(self._stats))

    def picture(self) -> dict[str, Any]:
        rows = [
            {"number": each.number, "state": "decode", "tokens": len(each.request.prompt) + len(each.written),
             "of": len(each.request.prompt) + each.request.max_new_tokens, "blocks": list(range(4 * n, 4 * n + 4))}
            for n, each in enumerate(self.running)
        ]  # fmt: skip
        rows += [
            {"number": each.number, "state": "waiting", "tokens": 0, "of": each.request.max_new_tokens, "blocks": []}
            for each in self.queue
        ]
        batch = [{"number": each.number, "start": len(each.written), "count": 1} for each in self.running]
        return {"blocks": 256, "block_size": 16, "requests": rows, "cached": [100, 101], "batch": batch}


@contextmanager
def serving(
    folder: Path, engine: Any = None, api_key: str | None = None, template: str | None = TEMPLATE, **limits: Any
) -> Iterator[tuple[str, Any]]:
    """(url, engine) of a server in a thread; `folder` is named after the model."""
    folder.mkdir(exist_ok=True)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    engine = engine or FakeEngine()
    calls = Calls(engine, folder.name, ChatTemplate(folder), Limits(**limits))
    engine.calls, ready = calls, threading.Event()
    with listening("127.0.0.1", 0) as sock:
        config = uvicorn.Config(make_app(calls, "127.0.0.1", api_key), log_config=None, access_log=False, ws="none")
        server = Server(config, calls, ready.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        assert ready.wait(30)
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}", engine
        finally:
            server.should_exit = True
            thread.join(30)
    assert not thread.is_alive()
