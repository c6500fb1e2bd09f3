"""A request gets the same bits alone, among others, preempted, from the prefix cache, and guessed ahead.

They are those of the model's own forward of the whole text, but for the order of its sums.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from model.tiny_specs import SPECS
from scalewright.api import inference
from scalewright.model.decoder import Decoder
from scalewright.model.init import initialize
from scalewright.serve.drafts import DraftModel, Guessed, NGram
from scalewright.serve.engine import Engine, Settings
from scalewright.serve.invariant import Product, threads
from scalewright.serve.load import Loaded
from scalewright.serve.pages import token_bytes
from scalewright.serve.request import Request
from scalewright.serve.sampling import Sampling, filtered
from scalewright.spec.errors import UserError
from scalewright.spec.serving import BLOCK
from serve.schedules import ARCHITECTURES, model_of, random_settings, requests, run

# the same sums in another order, in fp32: the issue's own limit for logits of order 1
NEAR = 1e-5


@pytest.fixture(params=ARCHITECTURES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_logits_are_those_of_a_whole_forward(name: str) -> None:
    model, asked = model_of(name), requests(4, seed=3)
    answers, stats = run(model, asked)
    assert stats.blocks_used == 0
    for request, answer in zip(asked, answers, strict=True):
        text = torch.tensor([[*request.prompt, *answer.tokens]])
        with torch.inference_mode():
            whole = model(text)[0].log_softmax(dim=-1)
        for place, logprob in enumerate(answer.logprobs, start=len(request.prompt) - 1):
            assert len(logprob.top) == 64
            assert max(abs(float(whole[place, token]) - value) for token, value in logprob.top) <= NEAR
        assert answer.finished == "length"
        assert len(answer.tokens) == request.max_new_tokens


def check_same(name: str, seed: int, ways: list[tuple[int | None, dict[str, Any]]]) -> tuple[int, ...]:
    """Runs random requests alone, and in other orders and ways; (preemptions, tokens from prefixes, kept guesses)."""
    model, asked = model_of(name), requests(5, seed)
    alone = [run(model, [request])[0][0] for request in asked]
    counts = [0, 0, 0]
    for order, settings in ways:
        answers, stats = run(model, asked, order, **settings)
        if not stats.invariant:
            pytest.skip("this processor's products depend on their neighbours, and the engine tells so")
        assert stats.blocks_used == 0
        assert answers == alone, f"order {order}, {settings}"
        more = stats.preempted, stats.prefix_tokens, stats.accepted_tokens
        counts = [a + b for a, b in zip(counts, more, strict=True)]
    return tuple(counts)


def test_neighbours_change_no_bit(name: str) -> None:
    ways = [(None, {"kv_blocks": 3, "max_concurrency": 6}), (1, {"drafter": NGram(8, 1), "step_tokens": 70})]
    assert min(check_same(name, 0, ways)) > 0  # all was tried


def test_threads_change_no_bit() -> None:
    """Of two, with products whose sums a library shares out, and units that the vectors of two don't divide."""
    spec = SPECS["llama"].replace(hidden_size=512, intermediate_size=1376, num_hidden_layers=2)
    model = Decoder(spec)
    initialize(model, spec, 0)
    model.eval()
    asked = [replace(request, max_new_tokens=5) for request in requests(4, seed=2)]
    with threads(2):
        alone = [run(model, [request])[0][0] for request in asked]
        answers, stats = run(model, asked, 1, drafter=NGram())
    assert stats.invariant
    assert answers == alone


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 500, 25))
def test_neighbours_change_no_bit_in_many_schedules(name: str, seed: int) -> None:
    check_same(name, seed, [(n, random_settings(n)) for n in range(seed, seed + 25)])


def test_a_prefix_is_computed_once() -> None:
    model = model_of("llama")
    engine = Engine(Loaded(model, None, frozenset()), Settings(kv_blocks=20))
    prompt = list(range(60)) * 3  # 180 tokens: two whole blocks of 64 and some
    cached = []
    for more in ([1, 2, 3], [4, 5], [1, 2, 3]):
        engine.add(Request([*prompt, *more], 4, Sampling(0)))
        cached += [update.cached for update in engine.run() if update.cached or update.finished]
    assert [n for n in cached if n] == [2 * BLOCK] * 2
    assert engine.stats().blocks_cached == 2
    assert engine.stats().prefix_tokens == 4 * BLOCK


def test_a_cancelled_request_returns_its_blocks() -> None:
    engine = Engine(Loaded(model_of("llama"), None, frozenset()), Settings(kv_blocks=9, max_concurrency=2))
    numbers = [engine.add(request) for request in requests(5, seed=1)]
    for _ in range(3):
        engine.step()
    for number in numbers:
        engine.cancel(number)
        engine.cancel(number)
    assert engine.idle
    assert engine.step() == []
    assert engine.stats().blocks_used == 0


def test_the_longest_request_is_what_the_model_was_made_for() -> None:
    """Or the cache's size, where that is less."""
    model = model_of("llama")
    for context, longest in ((100, 100), (4096, 128)):
        model.spec = model.spec.replace(context=context)
        engine = Engine(Loaded(model, None, frozenset()), Settings(kv_blocks=2, max_concurrency=1))
        assert engine.stats().max_model_len == longest
        engine.close()


def test_what_can_never_run_is_refused() -> None:
    engine = Engine(Loaded(model_of("llama"), None, frozenset()), Settings(kv_blocks=2, max_concurrency=1))
    for request, words in [
        (Request([], 4), "no tokens"),
        (Request([1], 0), "max_new_tokens is 0"),
        (Request([1, 64], 4), "outside the model's vocabulary of 64"),
        (Request([1] * 100, 29), "room for 129 tokens; the cache has 128 .*--kv-memory"),
    ]:
        with pytest.raises(UserError, match=words):
            engine.add(request)
    assert engine.idle


def test_prompts_have_logprobs_too() -> None:
    model = model_of("llama")
    prompt = list(range(60)) * 2
    engine = Engine(Loaded(model, None, frozenset()), Settings(kv_blocks=20))
    for _ in range(2):  # a second time: the prefix cache gives nothing then
        engine.add(Request(prompt, 2, Sampling(0), logprobs=1, prompt_logprobs=True))
        updates = list(engine.run())
        first = updates[0].prompt_logprobs
        assert first is not None
        assert first[0] is None
        with torch.inference_mode():
            whole = model(torch.tensor([prompt]))[0].log_softmax(dim=-1)
        values = [logprob.value for logprob in first[1:] if logprob is not None]
        wanted = [float(whole[place, token]) for place, token in enumerate(prompt[1:])]
        assert max(abs(a - b) for a, b in zip(values, wanted, strict=True)) <= NEAR
        assert updates[0].cached == 0


def test_memory_is_what_a_token_takes(name: str) -> None:
    model = model_of(name)
    engine = Engine(Loaded(model, None, frozenset()), Settings(kv_blocks=3, max_concurrency=1))
    engine.add(Request([1, 2, 3], 2, Sampling(0)))
    list(engine.run())
    assert engine.compute.pages.bytes == 3 * BLOCK * token_bytes(model.spec, 4)
    planned = inference(model.spec, "rtx4090", 8, 8, precision="fp32", kv_precision="fp32", engine="scalewright")
    assert planned["kv_bytes_per_token"] == token_bytes(model.spec, 4)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mixture", "bloom"])
def test_an_engine_holds_no_more_than_is_planned(name: str) -> None:
    """Weights, turned or joined, once; and the cache. What a forward makes comes on top, and is planned apart."""
    model = model_of(name)
    engine = Engine(Loaded(model, None, frozenset()), Settings(kv_blocks=3, max_concurrency=1))
    engine.add(Request([1, 2, 3], 2, Sampling(0)))
    list(engine.run())
    forwards = [getattr(vars(module).get("forward"), "__self__", None) for module in model.modules()]
    forwards += [getattr(module, "joined", None) for module in model.modules()]
    parts = [product.parts for product in forwards if isinstance(product, Product)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (*model.parameters(), *parts)}
    assert parts
    planned = inference(model.spec, "rtx4090", 8, 8, precision="fp32", kv_precision="fp32", engine="scalewright")
    cache = planned["kv_bytes_per_token"] * engine.stats().kv_tokens
    held = sum(storages.values()) + engine.compute.pages.bytes
    assert held <= 4 * planned["model"]["params"] + cache
    engine.close()


def test_a_model_is_given_back_as_it_was() -> None:
    model = model_of("mixture")
    before = {key: (value.clone(), value.stride()) for key, value in model.state_dict().items()}
    run(model, requests(2, seed=0))
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key][0])
        assert value.stride() == before[key][1]


def test_guesses_are_checked_not_trusted() -> None:
    """A drafter that is always wrong, and one that is always right, change nothing but the number of steps."""
    model, request = model_of("llama"), Request([5, 6, 7], 30, Sampling(0.8, seed=3))
    (plain,), _ = run(model, [request])

    class Right:
        def guess(self, rows: Sequence[Guessed]) -> list[list[int]]:
            return [plain.tokens[len(row.tokens) - 3 :][:5] for row in rows]

    class Wrong:
        def guess(self, rows: Sequence[Guessed]) -> list[list[int]]:
            return [[(token + 1) % 64 for token in plain.tokens[len(row.tokens) - 3 :][:5]] for row in rows]

    for drafter, accepted in ((Right(), True), (Wrong(), False)):
        (answer,), stats = run(model, [request], drafter=drafter)
        assert answer.tokens == plain.tokens
        assert stats.drafted_tokens > 20
        assert stats.accepted_tokens == (stats.drafted_tokens if accepted else 0)


def test_guesses_leave_the_probabilities() -> None:
    """Pairs of drawn tokens, the second of which was guessed or not, are as frequent as the model says."""
    model, count, prompt = model_of("llama"), 1200, [1, 2, 3, 4] * 3

    def probabilities(text: list[int]) -> dict[int, float]:
        with torch.inference_mode():
            logits = model(torch.tensor([text]))[0, -1]
        scores = filtered(logits[None], Sampling(0.7, top_k=3))[0].softmax(dim=-1)
        return {token: float(scores[token]) for token in scores.nonzero()[:, 0].tolist()}

    first = probabilities(prompt)
    after = {token: probabilities([*prompt, token]) for token in first}

    class Likeliest:
        def guess(self, rows: Sequence[Guessed]) -> list[list[int]]:
            options = [after.get(row.tokens[-1], {0: 1.0}) for row in rows]
            return [[max(option, key=option.__getitem__)] for option in options]

    drawn = [Request(prompt, 3, Sampling(0.7, top_k=3, seed=seed)) for seed in range(count)]
    answers, stats = run(model, drawn, drafter=Likeliest(), kv_blocks=40)
    assert 0 < stats.accepted_tokens < stats.drafted_tokens
    seen = Counter(tuple(answer.tokens[:2]) for answer in answers)
    wanted = {(a, b): p * q for a, p in first.items() for b, q in after[a].items()}
    assert set(seen) <= set(wanted)
    often = {pair: p for pair, p in wanted.items() if p * count >= 5}  # below that the statistic isn't chi-square
    statistic = sum((seen[pair] - p * count) ** 2 / (p * count) for pair, p in often.items())
    assert len(often) > 3
    assert statistic < 26.1  # of 8 degrees of freedom, exceeded once in 1,000


@pytest.mark.parametrize("same", [True, False])
def test_another_model_guesses(same: bool) -> None:
    """One that is the same model, whose guesses are all right, and one of another shape."""
    model = model_of("llama")
    asked = [replace(request, sampling=Sampling(0)) for request in requests(5, seed=4)]
    plain, _ = run(model, asked)
    drafter = DraftModel(copy.deepcopy(model) if same else model_of("gemma3"), 30, 3)
    answers, stats = run(model, asked, 2, drafter=drafter, kv_blocks=30)
    assert answers == plain
    missed = stats.drafted_tokens - stats.accepted_tokens
    assert (missed == 0) == same
    assert stats.drafted_tokens > 100


def test_the_prediction_module_guesses() -> None:
    """Its guess is what `Decoder.draft` says of the same text, and changes no token."""
    spec = SPECS["llama"].replace(mtp_layers=1)
    model = Decoder(spec)
    initialize(model, spec, 0)
    model.eval()
    asked = [request for request in requests(6, seed=4) if request.sampling.greedy]
    plain, _ = run(model, asked)
    answers, stats = run(model, asked, 2, mtp=True)
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in plain]
    assert answers == plain
    assert stats.drafted_tokens > 100
    engine = Engine(Loaded(model, None, frozenset()), Settings(kv_blocks=9, mtp=True))
    number = engine.add(asked[0])
    for _ in range(6):
        engine.step()
        row = engine._running.get(number)
        if row is None or not row.drafts:
            continue
        text = torch.tensor([row.tokens])
        with torch.inference_mode():
            hidden = model.features(text[:, :-1])
            wanted = model.draft(hidden, text[:, 1:])[1][0, -1].argmax()
        assert row.drafts == [int(wanted)]


def test_prompt_lookup() -> None:
    assert NGram(3).after([1, 2, 3, 4, 1, 2]) == [3, 4, 1]
    assert NGram(3).after([1, 2, 9, 4, 2, 7, 5, 2]) == [7, 5, 2]  # the most recent of two
    assert NGram().after([1, 2, 3]) == []
    assert NGram().after([1]) == []
