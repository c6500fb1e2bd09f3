"""A chat in the terminal: turns in, text out as it is written, the turns so far kept.

you ──► the chat template, or the text so far ──► engine ──► pieces of text
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scalewright.serve.engine import Engine
from scalewright.serve.request import Request
from scalewright.serve.sampling import Sampling, seed_at
from scalewright.serve.server.template import ChatTemplate


class Chat:
    """One conversation. Without a template the model continues the text of all turns."""

    def __init__(
        self, engine: Engine, template: ChatTemplate, sampling: Sampling, max_new_tokens: int, system: str = ""
    ) -> None:
        self._engine, self._template, self._sampling, self._most = engine, template, sampling, max_new_tokens
        self._system, self._turns = system, 0
        self.reset()

    def reset(self) -> None:
        """Forgets all turns."""
        self._text = self._system
        self._messages = [{"role": "system", "content": self._system}] if self._system else []

    def answer(self, turn: str) -> Iterator[str]:
        """The answer, piece by piece; closing it ends the writing and keeps what was written.

        Raises UserError for a turn that can't be answered, which is not kept then.
        """
        messages, text = [*self._messages, {"role": "user", "content": turn}], self._text + turn
        loaded = self._engine.loaded
        stop = loaded.end_of_text
        if self._template.there:
            stop = self._template.ends(loaded)
            ids = loaded.tokenizer.encode(self._template.render(messages), add_special_tokens=False).ids
        else:
            ids = loaded.encode(text)
        most = max(1, min(self._most, self._engine.room(len(ids))))
        sampling = replace(self._sampling, seed=seed_at(self._sampling.seed, self._turns))
        number, written = self._engine.add(Request(ids, most, sampling, stop_ids=stop)), ""
        self._turns += 1  # also those that /reset forgets: the same words may have another answer
        try:
            while not self._engine.idle:
                for update in self._engine.step():
                    written += update.text
                    if update.text:
                        yield update.text
        finally:
            self._engine.cancel(number)
            self._messages, self._text = [*messages, {"role": "assistant", "content": written}], text + written + "\n"
