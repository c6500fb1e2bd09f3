"""What may be drawn is what transformers' own warpers leave, and draws follow the seed."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from scalewright.serve.sampling import Sampling, choose, filtered
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
    generators = [sampling.generator(0)]
    count = 4000
    drawn = torch.cat([choose(logits, sampling, generators) for _ in range(count)])
    expected = filtered(logits, sampling).softmax(-1)[0]
    found = torch.bincount(drawn, minlength=4) / count
    assert found[3] == 0
    # four standard errors of a frequency
    assert ((found - expected).abs() <= 4 * (expected * (1 - expected) / count).sqrt()).all()


def test_a_row_draws_the_same_in_any_batch() -> None:
    logits = torch.randn(3, 30, generator=torch.Generator().manual_seed(2))
    sampling = Sampling(seed=9)
    together = choose(logits, sampling, [sampling.generator(row) for row in range(3)])
    alone = [choose(logits[row : row + 1], sampling, [sampling.generator(row)]).item() for row in range(3)]
    assert together.tolist() == alone


def test_temperature_zero_takes_the_likeliest() -> None:
    assert choose(torch.tensor([[0.1, 3.0, 2.0]]), Sampling(temperature=0), []).tolist() == [1]


@pytest.mark.parametrize("keys", [
    {"temperature": -1}, {"top_k": -2}, {"top_p": 0.0}, {"top_p": 1.1}, {"temperature": 1e-320},
    {"temperature": float("nan")}, {"seed": 1 << 64}, {"seed": -1},
])  # fmt: skip
def test_nonsense_is_refused(keys: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(keys))):
        Sampling(**keys)  # type: ignore[arg-type]
