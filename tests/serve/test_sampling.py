"""What may be drawn is what transformers' own processors leave, and draws follow the seed and the probabilities."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from scalewright.serve.sampling import Sampling, choose, filtered, penalized, seed_at
from scalewright.spec.errors import UserError


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
@pytest.mark.parametrize("top_k", [0, 1, 5, 500])
@pytest.mark.parametrize("top_p", [0.05, 0.6, 0.99, 1.0])
def test_equal_to_transformers(temperature: float, top_k: int, top_p: float) -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)) * 3
    logits[:, 7] = logits[:, 3]  # a tie
    warpers = [TemperatureLogitsWarper(temperature)]
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    expected = LogitsProcessorList(warpers)(torch.zeros(4, 1, dtype=torch.long), logits.clone())
    assert torch.equal(filtered(logits, Sampling(temperature, top_k, top_p)), expected)


def test_draws_follow_the_probabilities() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    sampling = Sampling(temperature=0.8, top_k=3, seed=1)
    generator, count = sampling.generator(), 4000
    drawn = torch.tensor([choose(logits[0], sampling, generator) for _ in range(count)])
    expected = filtered(logits, sampling).softmax(-1)[0]
    found = torch.bincount(drawn, minlength=4) / count
    assert found[3] == 0
    # four standard errors of a frequency
    assert ((found - expected).abs() <= 4 * (expected * (1 - expected) / count).sqrt()).all()


def test_temperature_zero_takes_the_likeliest() -> None:
    assert choose(torch.tensor([0.1, 3.0, 2.0]), Sampling(temperature=0), torch.Generator()) == 1


@pytest.mark.parametrize("keys", [
    {"temperature": -1}, {"top_k": -2}, {"top_p": 0.0}, {"top_p": 1.1}, {"temperature": 1e-320},
    {"temperature": float("nan")}, {"seed": 1 << 64}, {"seed": -1}, {"min_p": 1.1}, {"presence_penalty": 2.1},
    {"frequency_penalty": float("nan")}, {"repetition_penalty": 0.0}, {"logit_bias": {3: 101.0}},
])  # fmt: skip
def test_nonsense_is_refused(keys: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(keys))):
        Sampling(**keys)  # type: ignore[arg-type]


def test_min_p_is_that_of_transformers() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1)) * 3
    expected = MinPLogitsWarper(0.1)(torch.zeros(6, 1, dtype=torch.long), logits.clone())
    assert torch.equal(filtered(logits, Sampling(1.0, min_p=0.1)), expected)
    assert 0 < torch.isfinite(expected).sum() < expected.numel()


def test_repetition_is_that_of_transformers() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1)) * 3
    prompt, written = [3, 7, 7, 20], [8, 3]
    expected = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt + written]), logits[None].clone())[0]
    assert torch.equal(penalized(logits, Sampling(repetition_penalty=1.3), prompt, written), expected)


def test_penalties_count_what_was_written_alone() -> None:
    """As OpenAI's documentation: mu[j] - c[j] frequency - (c[j] > 0) presence, and biases are added."""
    logits = torch.zeros(6)
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25, logit_bias={4: 3.0})
    assert penalized(logits, sampling, [5], [1, 1, 1, 2]).tolist() == [0.0, -1.25, -0.75, 0.0, 3.0, 0.0]
    assert torch.equal(logits, torch.zeros(6))


def test_seeds_of_several_texts_are_apart() -> None:
    """Those of neighbouring seeds, too; the first is the seed itself."""
    places = [(prompt, choice) for prompt in range(8) for choice in range(8)]
    seeds = [seed_at(seed, *place) for seed in range(8) for place in places]
    assert len(set(seeds)) == len(seeds)
    assert [seed_at(seed, 0, 0) for seed in (0, 7)] == [0, 7]
    assert all(0 <= seed < 1 << 63 for seed in seeds)
