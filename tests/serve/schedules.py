"""Random requests for the engine, and random ways to run them: arrivals, room, budgets, guesses, cancellations."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from model.tiny_specs import SPECS, make
from scalewright.model.decoder import Decoder
from scalewright.model.init import initialize
from scalewright.serve.drafts import NGram
from scalewright.serve.engine import Engine, Settings, Stats
from scalewright.serve.load import Loaded
from scalewright.serve.request import Logprob, Request
from scalewright.serve.sampling import Sampling
from scalewright.spec.model import MoE

_MIXTURE = {"num_experts": 6, "top_k": 2, "moe_intermediate_size": 24, "first_k_dense": 1, "num_shared_experts": 1}
# one for each way that keys are seen, or a token is computed
ARCHITECTURES = ["shared-norm", "llama", "latent", "gemma3", "sinks", "mixture", "tied", "bloom"]


def model_of(name: str) -> Decoder:
    """A tiny model of an architecture, whose logits depend on all its parts; more positions than others test."""
    if name == "mixture":
        spec = SPECS["llama"].replace(name=name, moe=MoE.parse(_MIXTURE, "moe"))
        model = Decoder(spec)
        initialize(model, spec, 0)
        return model.eval()
    return make(name).eval()


@dataclass
class Answer:
    """What a request got."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    finished: str | None = None


def requests(number: int, seed: int, vocabulary: int = 64, longest: int = 40) -> list[Request]:
    """Prompts of 1 to 130 tokens, most with a beginning in common, greedy and drawn in several ways;
    and two of one token that write 150, so that rows outgrow what is free."""
    rnd = random.Random(seed)
    common = [rnd.randrange(vocabulary) for _ in range(200)]
    out = list[Request]()
    for _ in range(number):
        length = rnd.choice([1, 17, 50, 63, 64, 65, 100, 128, 129])
        prompt = common[:length] if rnd.random() < 0.6 else [rnd.randrange(vocabulary) for _ in range(length)]
        if rnd.random() < 0.5:
            prompt = [*prompt, rnd.randrange(vocabulary)]
        sampling = rnd.choice(
            [
                Sampling(0),
                Sampling(0.9, top_k=20, seed=rnd.randrange(100)),
                Sampling(1.2, top_p=0.8, min_p=0.01, presence_penalty=0.5, seed=rnd.randrange(100)),
                Sampling(0, repetition_penalty=1.2, logit_bias={3: 2.0}),
            ]
        )
        out.append(Request(prompt, rnd.randint(1, longest), sampling, logprobs=vocabulary))
    writers = [Request([token], 150, Sampling(0), logprobs=vocabulary) for token in (1, 2)]
    return [*out, *writers]


def run(model: Decoder, asked: list[Request], seed: int | None = None, **settings: Any) -> tuple[list[Answer], Stats]:
    """The answers of all, by an engine of its own, and its counts at the end."""
    engine = Engine(Loaded(model, None, frozenset()), Settings(**settings))
    answers, stats = send(engine, asked, seed), engine.stats()
    engine.close()
    return answers, stats


def send(engine: Engine, asked: list[Request], seed: int | None = None) -> list[Answer]:
    """The answers of all; with a seed they come at random moments, in any order."""
    rnd = random.Random(seed)
    todo, answers, number_of = list(enumerate(asked)), [Answer() for _ in asked], dict[int, int]()
    if seed is not None:
        rnd.shuffle(todo)
    while todo or not engine.idle:
        while todo and (seed is None or rnd.random() < 0.4):
            number, request = todo.pop()
            number_of[engine.add(request)] = number
        for update in engine.step():
            answer = answers[number_of[update.number]]
            answer.tokens += update.tokens
            answer.logprobs += update.logprobs
            answer.finished = update.finished
    return answers


def random_settings(seed: int) -> dict[str, Any]:
    """Room for three to forty blocks, few or many rows at once, small or large steps, with and without guesses."""
    rnd = random.Random(seed)
    rows = rnd.choice([2, 4, 6, 12])
    return {
        "kv_blocks": rnd.choice([3, 4, 6, 12, 40]),
        "max_concurrency": rows,
        "step_tokens": rnd.choice([rows + 64, rows + 70, 150, 300]),
        "prefix_cache": rnd.random() < 0.8,
        "drafter": rnd.choice([None, NGram(), NGram(8, 1)]),
    }
