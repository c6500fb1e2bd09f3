"""Greedy text equals transformers' generate; batches, seeds, stops and streams do what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from model.tiny_families import CASES, save
from scalewright.model.load import load_model
from scalewright.serve.generate import continue_text, generate, generate_text
from scalewright.serve.load import load_for_generation
from scalewright.serve.sampling import Sampling
from scalewright.spec.errors import UserError

TEXT = "To be, or not to be: that is the question. Whether 'tis nobler in the mind to suffer. é — 🦊 " * 3


def make_tokenizer(folder: Path) -> None:
    """A byte-level vocabulary of 300 in `folder`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a tokenizer of its own size."""
    path = tmp_path_factory.mktemp("llama")
    kind, keys = CASES["llama-gqa"]
    CASES["llama-300"] = (kind, {**keys, "vocab_size": 300})
    model = save("llama-300", path)
    with torch.no_grad():
        model.get_output_embeddings().weight[0] = 0  # its logit stays 0, so that greedy text never ends by itself
    model.save_pretrained(path)
    del CASES["llama-300"]
    make_tokenizer(path)
    return path


def _theirs(model: Any, ids: list[int], count: int) -> list[int]:
    out = model.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=count, do_sample=False
    )
    return list(out[0, len(ids) :].tolist())


SAME = [case for case in CASES if "yarn" not in case]


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if turn % 3 == 0 else [pytest.mark.slow]) for turn, case in enumerate(SAME)]
)
def test_greedy_equals_transformers(case: str, tmp_path: Path) -> None:
    theirs = save(case, tmp_path)
    ours = load_model(tmp_path)
    prompts = [[5, 17, 80, 3, 44, 9, 61], [70, 2, 31, 8, 90, 11, 11], [1, 20, 3, 40, 5, 60, 7]]
    found = generate(ours, prompts, max_new_tokens=40, temperature=0)
    assert found == [_theirs(theirs, prompt, 40) for prompt in prompts]
    assert len({token for row in found for token in row}) > 3  # a comparison of one token would prove little


@pytest.mark.parametrize("case", ["gpt2", "bloom", "mistral-window", "gemma3", "gpt-oss", "llama4"])
def test_prompts_of_different_lengths_share_a_batch(case: str, tmp_path: Path) -> None:
    save(case, tmp_path)
    model = load_model(tmp_path)
    prompts = [[5, 17, 80, 3, 44, 9, 61], [12], [33, 2, 71]]
    together = generate(model, prompts, max_new_tokens=20, temperature=0)
    assert together == [generate(model, [p], max_new_tokens=20, temperature=0)[0] for p in prompts]


def test_a_module_without_a_cache_gives_the_same(folder: Path) -> None:
    model = load_model(folder)

    class Bare(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(tokens)
            return out

    prompts = [[5, 17, 80], [12]]
    keys = {"max_new_tokens": 12, "temperature": 0.9, "top_p": 0.9, "seed": 4}
    assert generate(Bare(), prompts, **keys) == generate(model, prompts, **keys)


def test_the_seed_decides(folder: Path) -> None:
    model = load_model(folder)
    runs = [generate(model, [[5, 6]], max_new_tokens=30, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_rows_end_at_their_stop_token(folder: Path) -> None:
    model = load_model(folder)
    (free,) = generate(model, [[5, 17, 80]], max_new_tokens=20, temperature=0)
    stop = free[7]
    (row,) = generate(model, [[5, 17, 80]], max_new_tokens=20, temperature=0, stop=[stop])
    assert row == free[: free.index(stop) + 1]


def test_text_equals_transformers_and_streams(folder: Path) -> None:
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt = "To be, or not"
    expected = tokenizer.decode(_theirs(theirs, tokenizer.encode(prompt).ids, 48))
    pieces: list[str] = []
    result = generate_text(str(folder), prompt, max_new_tokens=48, temperature=0, stream=pieces.append)
    assert result.text == expected
    assert "".join(pieces) == expected
    assert len(pieces) > 5
    assert (len(result.tokens), result.stopped_by) == (48, "length")
    assert result.tokens_per_s > 0


def test_a_stop_string_across_tokens(folder: Path) -> None:
    loaded = load_for_generation(str(folder))
    free = continue_text(loaded, "To be", 48, Sampling(temperature=0)).text
    stop = free[9:13]
    assert len(loaded.encode(stop)) > 1
    pieces: list[str] = []
    result = continue_text(loaded, "To be", 48, Sampling(temperature=0), [stop, "never there"], pieces.append)
    assert result.text == "".join(pieces) == free[: free.index(stop)]
    assert result.stopped_by == "stop"
    assert len(result.tokens) < 48


def test_the_end_of_text_token_ends_it(folder: Path) -> None:
    loaded = load_for_generation(str(folder))
    assert loaded.end_of_text == {0}
    free = continue_text(loaded, "To be", 48, Sampling(temperature=0))
    ending = type(loaded)(loaded.model, loaded.tokenizer, frozenset([free.tokens[10]]))
    result = continue_text(ending, "To be", 48, Sampling(temperature=0))
    assert result.stopped_by == "end_of_text"
    assert result.tokens == free.tokens[: free.tokens.index(free.tokens[10]) + 1]


def test_an_empty_prompt_starts_a_document(folder: Path) -> None:
    assert load_for_generation(str(folder)).encode("") == [0]
    assert len(generate_text(str(folder), "", max_new_tokens=5).tokens) <= 5


def test_mistakes_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        generate_text(str(tmp_path / "nothing"), "x")
    save("gpt2", tmp_path)
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        generate_text(str(tmp_path), "x")
    model = load_model(tmp_path)
    with pytest.raises(UserError, match="64"):
        generate(model, [[1, 2, 3]], max_new_tokens=62)
    with pytest.raises(UserError, match="vocabulary of 96"):
        generate(model, [[1, 200]], max_new_tokens=2)
    with pytest.raises(UserError, match="no tokens"):
        generate(model, [[]], max_new_tokens=2)
    with pytest.raises(UserError, match="max_new_tokens is 99999999999"):
        generate(model, [[1]], max_new_tokens=99_999_999_999)
    with pytest.raises(UserError, match="no UTF-8 text"):
        generate_text(str(folder), "a \udcff b")
