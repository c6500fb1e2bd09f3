"""What is asked of the engine, and what comes back of it, token by token.

    Request ──Engine.add──► number        every Engine.step() ──► [Update(number, tokens, text, finished), ...]
                              └── Engine.cancel(number)

A request is tokens in, tokens out; text is made where they come out, since stop strings may lie across tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from scalewright.serve.sampling import Sampling

StoppedBy = Literal["length", "end_of_text", "stop", "cancelled"]


class Grammar(Protocol):
    """What the next token may be, of one request: it follows the tokens that were written."""

    def mask(self, logits: Tensor) -> Tensor:
        """Logits [V] with -inf for tokens that can't come next."""

    def accept(self, token: int) -> None:
        """Goes on by a token."""

    def finished(self) -> bool:
        """Whether nothing but the end can follow."""


@dataclass(frozen=True)
class Request:
    """A prompt to continue."""

    prompt: Sequence[int]  # tokens, at least one
    max_new_tokens: int = 128
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()  # text that ends it, and isn't given
    stop_ids: frozenset[int] | None = None  # tokens that end it; None: the model's own
    logprobs: int | None = None  # so many of the likeliest tokens beside each; 0: the token's own alone
    prompt_logprobs: bool = False  # of the prompt's tokens too, which no prefix cache serves then
    grammar: Grammar | None = None


class Logprob(NamedTuple):
    """Natural logarithms of probabilities under the model's own logits, before temperature and penalties."""

    token: int
    value: float
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens, likeliest first


@dataclass
class Update:
    """What a step gave one request."""

    number: int
    tokens: list[int] = field(default_factory=list)  # new ones, an end-of-text token included
    text: str = ""  # certain by now: before any stop string, of whole characters
    logprobs: list[Logprob] = field(default_factory=list)  # of `tokens`, where asked for
    prompt_logprobs: list[Logprob | None] | None = None  # once, before the first token; None for its first token
    finished: StoppedBy | None = None
    cached: int = 0  # prompt tokens that the prefix cache gave
