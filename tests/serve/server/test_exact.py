"""What the server gives is what the model computes: probabilities beside those of a plain forward, over HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

from model.tiny_specs import SPECS
from scalewright.model.decoder import Decoder
from scalewright.model.init import initialize
from scalewright.serve.engine import Engine, Settings
from scalewright.serve.load import Loaded
from serve.server.fake import byte_tokenizer, serving
from serve.server.test_load import send, wait

TOLERANCE = 1e-5  # fp32 sums in another order; logits of a few units


@pytest.fixture(scope="module")
def model() -> Decoder:
    spec = SPECS["llama"].replace(vocab_size=262)
    model = Decoder(spec).eval()
    initialize(model, spec, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() > 1 else 1)  # probabilities that differ
    return model


@pytest.fixture(scope="module")
def server(model: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Engine]]:
    loaded = Loaded(model, byte_tokenizer(), frozenset({256}), end=256)
    engine = Engine(loaded, Settings(kv_blocks=12, max_concurrency=6))
    with serving(tmp_path_factory.mktemp("served") / "tiny", engine) as (url, _):
        yield url, engine
    engine.close()


def ask(url: str, **body: Any) -> dict[str, Any]:
    answer = httpx2.post(f"{url}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_probabilities_are_the_model_s(server: tuple[str, Engine], model: Decoder) -> None:
    tokens = list(b"the quick brown fox jumps over the lazy dog and goes on " * 3)
    answer = ask(server[0], prompt=tokens, max_tokens=5, temperature=0, logprobs=3, echo=True)["choices"][0]["logprobs"]
    with torch.inference_mode():
        expected = model(torch.tensor([tokens]))[0].log_softmax(-1)
    for place, value in enumerate(answer["token_logprobs"][1 : len(tokens)]):
        assert value == pytest.approx(float(expected[place, tokens[place + 1]]), abs=TOLERANCE)
    first = answer["token_logprobs"][len(tokens)]
    assert first == pytest.approx(float(expected[-1].max()), abs=TOLERANCE)
    assert max(answer["top_logprobs"][len(tokens)].values()) == first


def test_a_text_does_not_depend_on_its_neighbours(server: tuple[str, Engine]) -> None:
    """Eight at once, in a cache for three of them, have the same texts as one by one."""
    bodies = [
        {"prompt": f"{n} " + "words " * (9 + 4 * n), "max_tokens": 40, "seed": n, "temperature": 1.0} for n in range(8)
    ]
    alone = [ask(server[0], **body)["choices"][0] for body in bodies]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda body: ask(server[0], **body)["choices"][0], bodies))
    assert together == alone


def test_json_and_patterns_by_a_real_model(server: tuple[str, Engine]) -> None:
    number = {"type": "integer", "minimum": 0, "maximum": 99}
    schema = {"type": "object", "properties": {"n": number}, "required": ["n"], "additionalProperties": False}
    for seed in range(3):
        choice = ask(server[0], prompt="x", max_tokens=40, seed=seed, guided_json=schema)["choices"][0]
        assert 0 <= json.loads(choice["text"])["n"] <= 99
        assert choice["finish_reason"] == "stop"
    text = ask(server[0], prompt="x", max_tokens=40, seed=1, guided_regex="(ab|cd){3}")["choices"][0]["text"]
    assert re.fullmatch("(ab|cd){3}", text)


def test_who_goes_away_frees_the_blocks(server: tuple[str, Engine], tmp_path: Path) -> None:
    url, engine = server
    connections = [send(url, prompt="abc" * 60, max_tokens=500, temperature=1, n=3, stream=n == 0) for n in range(2)]
    wait(lambda: engine.stats().running > 1)
    for connection in connections:
        connection.close()
    wait(lambda: engine.idle)
    wait(lambda: engine.calls.started.stats.blocks_used == 0)  # type: ignore[attr-defined]
    assert httpx2.get(f"{url}/picture").json()["requests"] == []


def test_lm_evaluation_harness_reads_its_scores(server: tuple[str, Engine], model: Decoder) -> None:
    """As its `local-completions` asks, and by its own parser."""
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    ids, context = list(b"a question? an answer"), 11
    keys: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    answer = ask(server[0], model="tiny", prompt=[ids, ids[:15]], **keys)
    scores = LocalCompletionsAPI.parse_logprobs(answer, [ids, ids[:15]], [context, context])
    with torch.inference_mode():
        expected = model(torch.tensor([ids]))[0].log_softmax(-1)
    for tokens, (score, greedy) in zip((ids, ids[:15]), scores, strict=True):
        parts = [float(expected[place - 1, tokens[place]]) for place in range(context, len(tokens))]
        assert score == pytest.approx(sum(parts), abs=TOLERANCE * len(parts))
        assert greedy is False
