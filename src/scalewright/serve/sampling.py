"""The next token: the likeliest, or a draw.

    logits [V] - penalties + bias -> / temperature -> keep the k largest -> keep the fewest whose probabilities
    reach p -> drop those below min_p times the likeliest's -> draw

The order and the rules at the edges are those of transformers: ties with the k-th logit stay, and top-p keeps the token
that crosses p. Penalties are OpenAI's, of the tokens written so far (a count n > 0 takes presence + n frequency from a
logit), and CTRL's repetition, of the prompt's tokens too (Keskar et al. 2019, arXiv 1909.05858 §4.1: positive logits
are divided by it, negative ones multiplied).

Every request draws with numbers of its own, one for each token that it keeps: its text depends on its seed, and on
nothing else that runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from scalewright.spec.errors import UserError

COLDEST = 1e-6  # a temperature; logits divided by less may overflow fp32


def seed_at(seed: int, *place: int) -> int:
    """The seed of one text of several: `seed` itself at (0, 0), elsewhere 63 bits of SHA-256, far from other seeds'."""
    if not any(place):
        return seed
    return int.from_bytes(hashlib.sha256(",".join(map(str, (seed, *place))).encode()).digest()[:8]) >> 1


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; temperature 0 takes the most likely one. Raises UserError for what can't be."""

    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token -> what is added to its logit

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or COLDEST <= self.temperature < float("inf")):
            how = f"use 0 (the most likely token), or {COLDEST} or more"
            raise UserError(f"temperature is {self.temperature}", "temperature", how)
        if not 0 <= self.seed < 1 << 63:  # torch takes 64 bits
            raise UserError(f"seed is {self.seed}", "seed", "use a number from 0 to 2^63 - 1")
        if self.top_k < 0:
            raise UserError(f"top_k is {self.top_k}", "top_k", "use 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}", "top_p", "use a number above 0, up to 1 (all tokens)")
        if not 0 <= self.min_p <= 1:
            raise UserError(f"min_p is {self.min_p}", "min_p", "use a number from 0 (all tokens) to 1")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise UserError(f"{name} is {getattr(self, name)}", name, "use a number from -2 to 2")
        if not 0.01 <= self.repetition_penalty <= 100:  # beyond it fp32 logits overflow
            how = "use a number from 0.01 to 100; 1 changes nothing"
            raise UserError(f"repetition_penalty is {self.repetition_penalty}", "repetition_penalty", how)
        for token, bias in self.logit_bias.items():
            if not (token >= 0 and -100 <= bias <= 100):
                raise UserError(f"logit_bias of token {token} is {bias}", "logit_bias", "use -100 to 100")

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0

    @property
    def penalizes(self) -> bool:
        """Whether logits depend on the tokens so far, or have a bias."""
        return bool(
            self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0 or self.logit_bias
        )

    def generator(self) -> torch.Generator:
        """A request's own random numbers."""
        return torch.Generator().manual_seed(self.seed)


def penalized(logits: Tensor, sampling: Sampling, prompt: Sequence[int], written: Sequence[int]) -> Tensor:
    """Logits [V] after penalties and biases, fp32; `prompt` and `written` are the tokens so far."""
    scores = logits.float().clone()
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*prompt, *written}), device=scores.device)
        held, factor = scores[seen], sampling.repetition_penalty
        scores[seen] = torch.where(held > 0, held / factor, held * factor)
    if written and (sampling.presence_penalty or sampling.frequency_penalty):
        counts = torch.bincount(torch.tensor(list(written), device=scores.device), minlength=len(scores))
        scores -= sampling.presence_penalty * (counts > 0) + sampling.frequency_penalty * counts
    for token, bias in sampling.logit_bias.items():
        if token < len(scores):
            scores[token] += bias
    return scores


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [..., V] after temperature, top-k, top-p and min-p; the excluded ones are -inf."""
    scores = logits.float() / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        kth = scores.topk(sampling.top_k, dim=-1).values[..., -1, None]
        scores = scores.masked_fill(scores < kth, float("-inf"))
    if sampling.top_p < 1:
        ordered, index = scores.sort(dim=-1, descending=False)
        unlikely = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - sampling.top_p
        unlikely[..., -1] = False  # the likeliest always stays
        scores = scores.masked_fill(unlikely.scatter(-1, index, unlikely), float("-inf"))
    if sampling.min_p > 0:
        probabilities = scores.softmax(dim=-1)
        least = probabilities.amax(dim=-1, keepdim=True) * sampling.min_p
        scores = scores.masked_fill(probabilities < least, float("-inf"))
    return scores


def choose(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """The next token for logits [V]; a draw takes one number of the generator's."""
    if sampling.greedy:
        return int(logits.argmax())
    probabilities = filtered(logits[None], sampling)[0].softmax(dim=-1).cpu()
    return int(torch.multinomial(probabilities, 1, generator=generator))
