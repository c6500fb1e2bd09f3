"""What a step computes, in this process: the model, its cache, and how many threads its products have.

    forward(tokens, pieces, wanted) ──► hidden of all ──► logits [len(wanted), V]
                                          └─ kept for `guess`: what the prediction module makes of them

An engine has one; so has every rank of a tensor-parallel one (ranks.py), which is told what to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from scalewright.model.decoder import Decoder
from scalewright.serve.batches import hidden_agree
from scalewright.serve.invariant import (
    MOST,
    agree,
    agrees,
    even,
    least_rows,
    multiplied,
    padding,
    threads,
    turn_weights,
)
from scalewright.serve.pages import Pages, Piece, paged_forward, paged_prediction


class Compute:
    """A model with `blocks` of cache; `close` gives it back as it was."""

    def __init__(self, model: Decoder, blocks: int) -> None:
        self._threads = torch.get_num_threads() if next(model.parameters()).device.type == "cpu" else 1
        self.model, self.pages = model.eval(), Pages(model, blocks, self._threads)
        loops = even(model)
        self.multiple = 2 if loops else 1  # rows of a forward are a multiple of that
        self._outer = min(self._threads, 2) if loops else 1  # threads of all but products
        self._undo = turn_weights(model, self._threads)
        with threads(1):
            self.invariant = agrees(model) and hidden_agree(model)
        self._head_threads = 1  # a product has its own
        if model.head is None or model.head.weight is None:
            with threads(self._threads):
                tied = multiplied(model)[-1]
                self._head_threads = self._threads if agree(partial(F.linear, weight=tied), tied) else 1
        self._hidden, self._padding = torch.empty(0), padding(model)

    @property
    def room(self) -> int:
        """Tokens of a forward."""
        return MOST - MOST % self.multiple - self._padding

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], pieces: Sequence[Piece], wanted: Sequence[int]) -> Tensor:
        """Logits [len(wanted), V] of those of the pieces' tokens; all are put into the cache."""
        with threads(self._outer):
            self._hidden = paged_forward(self.model, self.pages, tokens, pieces, self._rows(len(tokens)))
            return self._logits(self._hidden, wanted)

    @torch.inference_mode()
    def guess(
        self, rows: Sequence[int], following: Sequence[int], pieces: Sequence[Piece], wanted: Sequence[int]
    ) -> list[int]:
        """The likeliest token after the next of some of the last forward's tokens, by the prediction module.

        `rows` of that forward, the token that follows each, and the pieces that they are; `wanted`: of these rows.
        """
        with threads(self._outer):
            size = self._rows(len(rows))
            index = torch.tensor([*rows, *[len(self._hidden) - 1] * (size - len(rows))], device=self._hidden.device)
            hidden = paged_prediction(self.model, self.pages, self._hidden[index], following, pieces)
            out: list[int] = self._logits(hidden, wanted).argmax(dim=-1).tolist() if wanted else []
            return out

    @torch.inference_mode()
    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies blocks of the cache."""
        self.pages.copy(sources, targets)

    def check(self) -> None:
        """Raises RunError where it can no longer compute; one process always can."""

    def close(self) -> None:
        """Stores the model's weights as they were."""
        self._undo()

    def _rows(self, tokens: int) -> int:
        """Rows of a forward of so many tokens, with padding."""
        return -(-max(tokens + self._padding, least_rows(self.model)) // self.multiple) * self.multiple

    def _logits(self, hidden: Tensor, wanted: Sequence[int]) -> Tensor:
        if not wanted:
            return hidden.new_empty(0, 1)
        size = self._rows(len(wanted))
        index = torch.tensor([*wanted, *[len(hidden) - 1] * (size - len(wanted))], device=hidden.device)
        with threads(self._head_threads):
            out: Tensor = self.model.logits(hidden[index])
        return out[: len(wanted)]
