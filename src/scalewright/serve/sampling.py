"""The next token out of logits: the most likely one, or a draw after temperature, top-k and top-p.

    logits / temperature -> keep the k largest -> keep the fewest whose probabilities reach p -> draw

The order and the rules at the edges are those of transformers: ties with the k-th logit stay, and top-p keeps
the token that crosses p.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scalewright.spec.errors import UserError

COLDEST = 1e-6  # a temperature; logits divided by less may overflow fp32


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; temperature 0 takes the most likely one."""

    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or COLDEST <= self.temperature < float("inf")):
            how = f"use 0 (the most likely token), or {COLDEST} or more"
            raise UserError(f"temperature is {self.temperature}", "generate", how)
        if not 0 <= self.seed < 1 << 63:  # a row's number is added, and torch takes 64 bits
            raise UserError(f"seed is {self.seed}", "generate", "use a number from 0 to 2^63 - 1")
        if self.top_k < 0:
            raise UserError(f"top_k is {self.top_k}", "generate", "use 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}", "generate", "use a number above 0, up to 1 (all tokens)")

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0

    def generator(self, row: int) -> torch.Generator:
        """Row `row`'s own random numbers: its draws don't depend on its neighbours in the batch."""
        return torch.Generator().manual_seed(self.seed + row)


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [B, V] after temperature, top-k and top-p; the excluded ones are -inf."""
    scores = logits.float() / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        kth = scores.topk(sampling.top_k, dim=-1).values[..., -1, None]
        scores = scores.masked_fill(scores < kth, float("-inf"))
    if sampling.top_p < 1:
        ordered, index = scores.sort(dim=-1, descending=False)
        unlikely = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - sampling.top_p
        unlikely[..., -1] = False  # the likeliest always stays
        scores = scores.masked_fill(unlikely.scatter(-1, index, unlikely), float("-inf"))
    return scores


def choose(logits: Tensor, sampling: Sampling, generators: list[torch.Generator]) -> Tensor:
    """The next token of each row, [B] on the CPU, for logits [B, V]."""
    if sampling.greedy:
        return logits.argmax(dim=-1).cpu()
    probabilities = filtered(logits, sampling).softmax(dim=-1).cpu()
    return torch.cat([torch.multinomial(row, 1, generator=g) for row, g in zip(probabilities, generators, strict=True)])
