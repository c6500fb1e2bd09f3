"""Text from a model: a prompt goes in once, then one token a step, its keys and values cached.

    "To be" -> ids --one forward--> cache, logits -> token -> forward of that token -> logits -> token ...

Prompts of different lengths share a batch: shorter ones are padded on the left, the padding is a document of its own
that nothing else can see, and positions count from each prompt's first token. The next token is the most likely one, or
a draw after temperature, top-k and top-p:

    logits / temperature -> keep the k largest -> keep the fewest whose probabilities reach p -> draw

The order and the rules at the edges are those of transformers: ties with the k-th logit stay, and top-p keeps the token
that crosses p.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from scalewright.model.cache import Cache
from scalewright.model.decoder import Decoder
from scalewright.serve.load import Loaded, load_for_generation
from scalewright.serve.sampling import Sampling, choose
from scalewright.serve.text import Detokenizer, StopText
from scalewright.spec.errors import UserError

StoppedBy = Literal["length", "end_of_text", "stop"]

LONGEST = 1 << 20  # new tokens: memory for their keys and values is taken at the start


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
    ids = loaded.encode(prompt)
    pieces, tokens = Detokenizer(loaded.decode, ids), list[int]()
    gate, text = StopText(stop), list[str]()
    stopped: StoppedBy = "length"

    def put(piece: str) -> None:
        if piece:
            text.append(piece)
            if stream is not None:
                stream(piece)

    began = time.perf_counter()
    for (token,) in steps(loaded.model, [ids], max_new_tokens, sampling):
        tokens.append(token)
        if token in loaded.end_of_text:
            stopped = "end_of_text"
            break
        put(gate.add(pieces.add(token)))
        if gate.stopped:
            stopped = "stop"
            break
    seconds = time.perf_counter() - began
    if stopped != "stop":
        put(gate.add(pieces.rest()))
        if gate.stopped:
            stopped = "stop"
        put(gate.rest())  # empty where a stop string was removed
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
    on_step: Callable[[list[int]], None] | None = None,
    ends: Callable[[list[int]], bool] | None = None,
) -> list[list[int]]:
    """The new tokens of each prompt; a row ends with the first of its tokens that is in `stop`, and keeps it.

    A row also ends when `ends` is true of its new tokens so far (`serve.text.holds_stop`). `on_step` is given
    every row's newest token after each step, also of those that ended. Raises UserError.
    """
    sampling = Sampling(temperature, top_k or 0, 1.0 if top_p is None else top_p, seed)
    rows: list[list[int]] = [[] for _ in prompt_ids]
    ended = [False] * len(rows)
    for newest in steps(model, prompt_ids, max_new_tokens, sampling):
        for number, (row, token) in enumerate(zip(rows, newest, strict=True)):
            if not ended[number]:
                row.append(token)
                ended[number] = token in stop or (ends is not None and ends(row))
        if on_step is not None:
            on_step(newest)
        if all(ended):
            break
    return rows


def steps(model: nn.Module, prompts: Sequence[Sequence[int]], count: int, sampling: Sampling) -> Iterator[list[int]]:
    """Up to `count` steps, each the newest token of every row."""
    _check(model, prompts, count)
    if not isinstance(model, Decoder):
        return _steps_without_cache(model, prompts, count, sampling)
    return _steps_with_cache(model, prompts, count, sampling)


def _steps_with_cache(
    model: Decoder, prompts: Sequence[Sequence[int]], count: int, sampling: Sampling
) -> Iterator[list[int]]:
    device = next(model.parameters()).device
    tokens, positions, documents = (None if t is None else t.to(device) for t in left_padded(prompts))
    assert tokens is not None
    cache = Cache(tokens.shape[1] + count)
    generators = [sampling.generator(row) for row in range(len(prompts))]
    for _ in range(count):
        with torch.inference_mode():
            hidden = model.features(tokens, positions, documents, cache)
            newest = choose(model.logits(hidden[:, -1]), sampling, generators)
        yield newest.tolist()
        tokens = newest[:, None].to(device)
        if positions is not None and documents is not None:
            positions, documents = positions[:, -1:] + 1, torch.zeros_like(tokens)


def _steps_without_cache(
    model: nn.Module, prompts: Sequence[Sequence[int]], count: int, sampling: Sampling
) -> Iterator[list[int]]:
    """For a module of the user's own, without a cache: everything is read again at each step, row by row."""
    device = next(model.parameters()).device
    rows = [torch.tensor([list(prompt)], device=device) for prompt in prompts]
    generators = [sampling.generator(row) for row in range(len(prompts))]
    for _ in range(count):
        with torch.inference_mode():
            logits = torch.cat([model(row)[:, -1] for row in rows])
            newest = choose(logits, sampling, generators)
        rows = [torch.cat([row, token.view(1, 1).to(device)], dim=1) for row, token in zip(rows, newest, strict=True)]
        yield newest.tolist()


def left_padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Tokens, positions and documents [B, T]; prompts of one length need no positions and documents.

    Padding is document -1: it sees itself (a row of attention must see something) and nothing sees it.
    """
    longest = max(len(prompt) for prompt in prompts)
    missing = torch.tensor([longest - len(prompt) for prompt in prompts])
    tokens = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    if not missing.any():
        return tokens, None, None
    positions = torch.arange(longest)[None] - missing[:, None]
    return tokens, positions.clamp(min=0), -(positions < 0).long()


def _check(model: nn.Module, prompts: Sequence[Sequence[int]], count: int) -> None:
    """Raises UserError for a request that can't work, before any of it runs."""
    if not 1 <= count <= LONGEST:
        raise UserError(f"max_new_tokens is {count}", "generate", f"use 1 to {LONGEST:,}")
    if not prompts or any(len(prompt) == 0 for prompt in prompts):
        raise UserError("the prompt has no tokens", "generate", "write a prompt")
    if isinstance(model, Decoder):
        longest, rows = max(len(prompt) for prompt in prompts), model.spec.learned_positions
        if model.spec.positions == "learned" and longest + count > rows:
            raise UserError(
                f"a prompt of {longest} tokens and {count} new ones need {longest + count} positions",
                f"the model has learned {rows}",
                f"use max_new_tokens {max(rows - longest, 0)} or less, or a shorter prompt",
            )
        vocabulary = model.spec.vocab_size
        beyond = [token for prompt in prompts for token in prompt if not 0 <= token < vocabulary]
        if beyond:
            problem = f"token {beyond[0]} is outside the model's vocabulary of {vocabulary}"
            raise UserError(problem, "prompt", "use the tokenizer that the model was trained with")
