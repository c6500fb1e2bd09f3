"""The tokens whose loss is computed at once, and whether the head's product is part of that loop.

    n = 2^26 logits of a rank    of a loss: 256 MiB in fp32, 523 tokens of a vocabulary of 128,256
    m >= 2,048 tokens            of a head's product, several n

Smaller chunks would save little beside what is kept. A head's are larger, since each reads and writes the
sum of the weight's gradient: in 16 bits 12 V D bytes beside 6 m V D FLOPs. Where a device has 300 FLOPs a
byte, that is 0.3 of the products' time with 2,048 tokens, and 1.1 with 523. Of N tokens, V columns of a rank,
hidden size D and w bytes a number:

                      keeps for the backward                               and beside it
    whole logits      N V w    the logits' gradient, in their place        4 n V    a chunk's probabilities
                      N D w    the head's input
    head in chunks    4 V D    the sum of the weight's gradient, in fp32   4 n V    and w m V, the logits
                      N D w    the gradient of the head's input            N D w    the head's input

(In 16 bits log-softmax makes an fp32 copy, 4 n V more, unless tp cuts the vocabulary; a cap's slope takes
w n V; capped logits lie in the place of the others.) The head is in chunks where there are several of them
and they at least halve what exists at once, N w > 2 (4 D + m w): in fp32 for more than 2 D + 2 m tokens, in
16 bits for more than 4 D + 2 m. For less the sum's traffic, priced at 3% of a step of a 1B, is too dear. The
trainer, the dry run and the planner apply the same rule, to whole numbers or to columns of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scalewright.spec.memory import FP32

Number = Any  # an int, a float, or an array of them

LOGITS_AT_ONCE = 1 << 26
HEAD_TOKENS = 2048
WORTH = 2.0  # whole logits over the sum and a chunk's logits


def chunk_tokens(columns: Number) -> Number:
    """Tokens of a chunk of the loss, for logits with so many columns on a rank."""
    tokens = LOGITS_AT_ONCE // columns
    return tokens + (tokens < 1)


def head_tokens(columns: Number) -> Number:
    """Tokens of a chunk of the head: chunks of the loss that have `HEAD_TOKENS` together."""
    tokens = chunk_tokens(columns)
    return -(-HEAD_TOKENS // tokens) * tokens


@dataclass(frozen=True)
class LossSizes:
    """Sizes of head and loss of a micro-batch on one rank, and what they keep in bytes."""

    tokens: Number
    columns: Number  # of the vocabulary, on this rank
    hidden: Number
    width: Number  # bytes of an activation

    @property
    def several(self) -> Number:
        """Whether there is more than one chunk of the head."""
        return self.tokens > head_tokens(self.columns)

    @property
    def head_in_chunks(self) -> Number:
        """Whether the head's product is part of the loop, where gradients are wanted."""
        of_chunk = self.columns * head_tokens(self.columns) * self.width
        return self.several & (WORTH * (self._sum + of_chunk) < self._whole)

    @property
    def kept(self) -> Number:
        """Bytes that the loss keeps for the backward; the head's input is apart."""
        in_chunks = self._sum + self.tokens * self.hidden * self.width
        return self._whole + self.head_in_chunks * (in_chunks - self._whole)

    @property
    def traffic(self) -> Number:
        """Bytes that the sum of the weight's gradient moves: read and written in every chunk, in fp32.

        In 16 bits each chunk's product is written and read beside it.
        """
        moved = 2.0 * FP32 + 2.0 * self.width * (self.width < FP32)
        return self.columns * self.hidden * moved * self.tokens / head_tokens(self.columns)

    @property
    def _whole(self) -> Number:
        return self.tokens * self.columns * self.width

    @property
    def _sum(self) -> Number:
        return FP32 * self.columns * self.hidden
