"""One request on its way: its tokens, its blocks, its random numbers, and the text that may be given by now.

logits ──penalties, grammar, draw──► token ──► pieces of text ──► held back while a stop string may begin ──► Update
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from scalewright.serve.blocks import block_keys
from scalewright.serve.load import Loaded
from scalewright.serve.request import Logprob, Request, StoppedBy, Update
from scalewright.serve.sampling import choose, penalized
from scalewright.serve.text import Detokenizer, StopText
from scalewright.spec.serving import BLOCK, Row, blocks_for

State = Literal["waiting", "running"]


class Sequence:
    """A request, with everything that changes while it runs."""

    def __init__(self, number: int, request: Request, loaded: Loaded) -> None:
        self.number, self.request = number, request
        self.tokens = list(request.prompt)
        self.prompt = len(self.tokens)
        self.ends = loaded.end_of_text if request.stop_ids is None else request.stop_ids
        self.keys = [] if request.prompt_logprobs else block_keys(self.tokens)
        self.table: list[int] = []
        self.computed = self.registered = 0  # tokens in the cache; blocks that others can have
        self.drafts: list[int] = []
        self.cached = 0  # tokens that the prefix cache gave
        self.prompt_logprobs: list[Logprob | None] = [None]
        self._generator = request.sampling.generator()
        self._pieces = Detokenizer(loaded.decode, self.tokens) if loaded.tokenizer is not None else None
        self._gate = StopText(request.stop)

    @property
    def written(self) -> list[int]:
        """The tokens behind the prompt."""
        return self.tokens[self.prompt :]

    @property
    def limit(self) -> int:
        """Tokens that it has at most, its prompt included."""
        return self.prompt + self.request.max_new_tokens

    @property
    def may_guess(self) -> bool:
        """Whether tokens behind the next one may be guessed: a grammar's state doesn't go back."""
        return self.limit - len(self.tokens) > 1 and self.request.grammar is None

    @property
    def shareable(self) -> int:
        """Whole blocks of its prompt that the cache may give: one token is left to compute."""
        return min(len(self.keys), (self.prompt - 1) // BLOCK)

    def row(self, own: int = 0, hits: int = 0, idle_hits: int = 0) -> Row:
        """As the scheduler sees it."""
        return Row(
            self.number, self.prompt, len(self.tokens), self.limit, self.computed, len(self.table), own,
            len(self.drafts), idle_hits, hits,
        )  # fmt: skip

    def missing_blocks(self, end: int) -> int:
        """Blocks that its table lacks to hold its first `end` tokens."""
        return max(0, blocks_for(end) - len(self.table))

    def choose(self, logits: Tensor) -> int:
        """The next token for logits [V]; draws once."""
        request = self.request
        sampling = request.sampling
        scores = penalized(logits, sampling, self.tokens[: self.prompt], self.written) if sampling.penalizes else logits
        if request.grammar is not None:
            scores = request.grammar.mask(scores)
        return choose(scores, sampling, self._generator)

    @property
    def plain(self) -> bool:
        """Whether its next token is the likeliest, and nothing else is asked: no work of its own."""
        request = self.request
        sampling = request.sampling
        return sampling.greedy and not sampling.penalizes and request.grammar is None and request.logprobs is None

    def add(self, token: int, update: Update, logits: Tensor | None) -> None:
        """Goes on by a token, and puts what may be given of it into the update; `logits`: [V], where asked for."""
        self.tokens.append(token)
        update.tokens.append(token)
        if self.request.logprobs is not None and logits is not None:
            update.logprobs.append(logprob(logits, token, self.request.logprobs))
        ended: StoppedBy | None = None
        if token in self.ends:
            ended = "end_of_text"
        elif self._pieces is not None:
            update.text += self._gate.add(self._pieces.add(token))
            ended = "stop" if self._gate.stopped else None
        if self.request.grammar is not None and token not in self.ends:
            self.request.grammar.accept(token)
            if ended is None and self.request.grammar.finished():
                ended = "stop"
        if ended is None and len(self.tokens) >= self.limit:
            ended = "length"
        if ended is not None:
            self._finish(update, ended)

    def _finish(self, update: Update, ended: StoppedBy) -> None:
        if self._pieces is not None and not self._gate.stopped:
            update.text += self._gate.add(self._pieces.rest())
            ended = "stop" if self._gate.stopped else ended
            update.text += self._gate.rest()  # empty where a stop string was removed
        update.finished = ended


def logprob(logits: Tensor, token: int, most: int) -> Logprob:
    """The logarithm of a token's probability under logits [V], and the `most` likeliest."""
    logs = logits.float().log_softmax(dim=-1)
    values, tokens = logs.topk(min(most, len(logs)))
    top = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
    return Logprob(token, float(logs[token]), top)
