"""What steps of a server take, as measured there: seconds for each thing that a step's forwards do.

    step    3: one token behind 210          forward  2 (of at most `room` tokens)    token  129
            5: 128 of its prompt, behind 64  alone    1, which sees 211 keys           piece  2 of 64 tokens
                                             pairs    64 x 128 + 64 x 192              word   1 (a next token)

    seconds(step) = sum of a coefficient x its number

`scalewright bench serve` fits the coefficients to the steps of a real engine; `inference --measured` adds them up again
for steps that the schedule (serving.py) makes of another load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import Field

from scalewright.spec.base import Spec
from scalewright.spec.serving import BLOCK, Item, forwards

FEW = 16


class Turn(NamedTuple):
    """Tokens of one row in a step, and what tells how they are computed."""

    item: Item
    prompt: int  # tokens of the row
    tokens: int  # of the prompt, and those written so far


class Work(NamedTuple):
    """What a step does; counts, in the order of the coefficients."""

    step: float = 0.0
    forward: float = 0.0
    token: float = 0.0
    few: float = 0.0  # of a forward's tokens the first 16: products of so few rows wait for their weights
    alone: float = 0.0  # tokens that were written: each is attended by itself
    key: float = 0.0  # that those see
    piece: float = 0.0  # of a prompt, attended at once
    pair: float = 0.0  # of a piece's tokens and the keys that they are multiplied with
    word: float = 0.0  # tokens whose next ones are due


def work(turns: Sequence[Turn], room: int) -> Work:
    """What a step of these turns does, in forwards of at most `room` tokens."""
    of_row = {turn.item.number: turn for turn in turns}
    count = dict.fromkeys(Work._fields, 0.0)
    count["step"] = 1.0
    for group in forwards([turn.item for turn in turns], room):
        count["forward"] += 1
        count["few"] += min(FEW, sum(item.length for item in group))
        for item in group:
            row = of_row[item.number]
            read = max(0, min(item.end, row.prompt) - item.start)
            count["token"] += item.length
            count["alone"] += item.length - read
            count["key"] += sum(range(item.start + read + 1, item.end + 1))
            count["piece"] += read > 0
            count["pair"] += read * (item.start + read)
            count["word"] += item.end >= row.tokens
    return Work(**count)


class ServingCost(Spec):
    """A server as it was measured: what its steps take, and its limits."""

    model: str
    params: int
    threads: int
    dtype: str
    room: int = Field(gt=0)  # tokens of a forward
    step_tokens: int = Field(gt=0)
    max_concurrency: int = Field(gt=0)
    kv_tokens: int = Field(ge=BLOCK)
    seconds: dict[str, float]  # by the names of Work; one that isn't there is 0
    steps: int  # that were timed
    error: float  # the median of |fitted / measured - 1| over steps that the fit didn't see
    when: str = ""
    software: dict[str, str] = Field(default_factory=dict)

    def of(self, done: Work) -> float:
        """Seconds of a step."""
        return sum(self.seconds.get(name, 0.0) * value for name, value in zip(Work._fields, done, strict=True))
