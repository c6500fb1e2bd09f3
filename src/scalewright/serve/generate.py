"""Text from a model: requests to an engine of one's own, until they are finished.

"To be" -> ids -> Request ──Engine──> tokens, pieces of text as they come
                          └─ a module of the user's own has no cache: everything is read again at each token
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from scalewright.model.decoder import Decoder
from scalewright.serve.engine import Engine, Settings
from scalewright.serve.load import Loaded, load_for_generation
from scalewright.serve.request import Request, StoppedBy, Update
from scalewright.serve.sampling import Sampling
from scalewright.serve.sequence import Sequence as Running
from scalewright.spec.errors import UserError
from scalewright.spec.serving import blocks_for

LONGEST = 1 << 20  # new tokens: room for their keys and values is reserved at the start
AT_ONCE = 32  # requests


@dataclass(frozen=True)
class Generated:
    """The text after the prompt."""

    text: str  # without the stop string or the end-of-text token
    tokens: list[int]
    tokens_per_s: float  # new tokens over all of the time, reading the prompt included
    stopped_by: StoppedBy


def generate_text(
    source: str,
    prompt: str,
    *,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: Sequence[str] = (),
    device: str = "cpu",
    dtype: str = "float32",
    stream: Callable[[str], None] | None = None,
    trust_code: bool = False,
    verify: bool = True,
    on_loaded: Callable[[], None] | None = None,
) -> Generated:
    """Continues `prompt` with the model at `source`: a Hugging Face folder, a run's folder or a checkpoint.

    Temperature 0 takes the most likely token each time; `stream` is given the text piece by piece, after
    `on_loaded` was called. `trust_code` and `verify` are those of `load_model`. Raises UserError.
    """
    sampling = Sampling(temperature, top_k or 0, 1.0 if top_p is None else top_p, seed)
    loaded = load_for_generation(source, device, dtype, trust_code, verify)
    if on_loaded is not None:
        on_loaded()
    return continue_text(loaded, prompt, max_new_tokens, sampling, stop, stream)


def continue_text(
    loaded: Loaded,
    prompt: str,
    max_new_tokens: int,
    sampling: Sampling,
    stop: Sequence[str] = (),
    stream: Callable[[str], None] | None = None,
) -> Generated:
    """As `generate_text`, with a model that is loaded already."""
    request = Request(loaded.encode(prompt), max_new_tokens, sampling, tuple(stop))
    text, tokens = list[str](), list[int]()
    stopped: StoppedBy = "length"
    began = time.perf_counter()
    for update in answers(loaded, [request]):
        tokens += update.tokens
        if update.text:
            text.append(update.text)
            if stream is not None:
                stream(update.text)
        stopped = update.finished or stopped
    seconds = time.perf_counter() - began
    return Generated("".join(text), tokens, len(tokens) / seconds if tokens else 0.0, stopped)


def generate(
    model: nn.Module,
    prompt_ids: Sequence[Sequence[int]],
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: Sequence[int] = (),
) -> list[list[int]]:
    """The new tokens of each prompt; a row ends with the first of its tokens that is in `stop`, and keeps it.

    Row n draws with `seed + n`. Raises UserError.
    """
    drawn = [
        Sampling(temperature, top_k or 0, 1.0 if top_p is None else top_p, seed + n) for n in range(len(prompt_ids))
    ]
    requests = [Request(ids, max_new_tokens, way) for ids, way in zip(prompt_ids, drawn, strict=True)]
    return tokens_of(Loaded(model, None, frozenset(stop)), requests)


def tokens_of(loaded: Loaded, requests: Sequence[Request]) -> list[list[int]]:
    """The new tokens of each request; raises UserError."""
    rows: list[list[int]] = [[] for _ in requests]
    for update in answers(loaded, requests):
        rows[update.number] += update.tokens
    return rows


def answers(loaded: Loaded, requests: Sequence[Request]) -> Iterator[Update]:
    """The updates of all requests, numbered from 0, as they come; raises UserError before anything runs."""
    for request in requests:
        if not 1 <= request.max_new_tokens <= LONGEST:
            raise UserError(f"max_new_tokens is {request.max_new_tokens}", "generate", f"use 1 to {LONGEST:,}")
        if not request.prompt:
            raise UserError("the prompt has no tokens", "prompt", "write a prompt")
    if not isinstance(loaded.model, Decoder):
        return _read_again(loaded, requests)
    return _by_engine(loaded, requests)


def _by_engine(loaded: Loaded, requests: Sequence[Request]) -> Iterator[Update]:
    sizes = sorted((blocks_for(len(r.prompt) + r.max_new_tokens) for r in requests), reverse=True)
    engine = Engine(loaded, Settings(max(1, sum(sizes[:AT_ONCE])), AT_ONCE))
    try:
        number_of = {engine.add(request): number for number, request in enumerate(requests)}
        for update in engine.run():
            update.number = number_of[update.number]
            yield update
    finally:
        engine.close()


@torch.inference_mode()
def _read_again(loaded: Loaded, requests: Sequence[Request]) -> Iterator[Update]:
    """For a module of the user's own: row by row, without a cache."""
    device = next(loaded.model.parameters()).device
    for number, request in enumerate(requests):
        row, update = Running(number, request, loaded), Update(number)
        while update.finished is None:
            update = Update(number)
            logits = loaded.model(torch.tensor([row.tokens], device=device))[0, -1]
            row.add(row.choose(logits), update, logits)
            yield update
