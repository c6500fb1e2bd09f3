"""Text that must be JSON of a schema, or match a regular expression: llguidance says which tokens may come next.

    schema or regex ──Grammars.json / .regex──► a grammar per request: mask(logits), accept(token), finished()

llguidance (https://github.com/guidance-ai/llguidance, MIT) is the optional extra `grammar`. Its matcher walks the
vocabulary's bytes, so a token that ends in the middle of a word is as good as any.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalewright.serve.load import Loaded
from scalewright.spec.errors import UserError, install


class Grammars:
    """Grammars over one vocabulary; raises UserError where the library isn't there."""

    def __init__(self, loaded: Loaded) -> None:
        try:
            import llguidance
        except ImportError:
            raise UserError("llguidance isn't installed", "response_format", install("grammar")) from None
        self._library = llguidance
        self._ends = sorted(loaded.end_of_text)
        size = loaded.tokenizer.get_vocab_size(with_added_tokens=True)
        text = loaded.tokenizer.to_str()
        self._tokenizer = llguidance.LLTokenizer(text, n_vocab=size, eos_token=self._ends or None)

    def json(self, schema: dict[str, Any], param: str = "response_format") -> Callable[[], Matched]:
        """JSON that the schema, given as `param`, describes; raises UserError for one that can't be followed."""
        compact: Any = {"whitespace_flexible": False}  # small models write spaces without end where they may
        return self._maker(lambda: self._library.LLMatcher.grammar_from_json_schema(json.dumps(schema), compact), param)

    def regex(self, pattern: str, param: str = "guided_regex") -> Callable[[], Matched]:
        """A text that the whole pattern matches."""
        return self._maker(lambda: self._library.LLMatcher.grammar_from_regex(pattern), param)

    def _maker(self, write: Callable[[], str], param: str) -> Callable[[], Matched]:
        try:
            grammar = write()
            first = self._library.LLMatcher(self._tokenizer, grammar, log_level=0)
            mistake = first.get_error()
        except (ValueError, UnicodeError) as error:
            mistake = str(error)
        if mistake:
            how = "https://github.com/guidance-ai/llguidance has what schemas and patterns may contain"
            raise UserError(f"no grammar can be made of it: {mistake.splitlines()[0]}", param, how)
        return lambda: Matched(first.deep_copy())


class Matched:
    """The grammar of one request (`serve.request.Grammar`)."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def mask(self, logits: Tensor) -> Tensor:
        """Logits [V], those of tokens that can't come next at -inf; V may be padded beyond the vocabulary."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = torch.from_numpy(np.unpackbits(bits, bitorder="little").astype(bool))[: logits.shape[-1]]
        masked = torch.full_like(logits, float("-inf"))
        masked[: len(allowed)] = logits[: len(allowed)].masked_fill(~allowed.to(logits.device), float("-inf"))
        return masked

    def accept(self, token: int) -> None:
        """Goes on by a token that the mask allowed."""
        self._matcher.consume_token(token)

    def finished(self) -> bool:
        """Whether nothing but the end can follow."""
        return bool(self._matcher.is_stopped())
