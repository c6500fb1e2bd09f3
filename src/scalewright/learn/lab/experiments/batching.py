"""Continuous batching and the paged cache, in this package's own engine: requests together, blocks, a shared prefix.

    one request      every token reads all weights           batch of n: the same read for n tokens
    paged cache      ceil(tokens / 64) blocks a row          a prefix that two rows share is held once
    continuous       a row that ends makes room at once      no row waits for the longest of its batch

What a request gets is the same, bit by bit, alone or in company.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scalewright.learn.lab.bench import Bench
from scalewright.learn.lab.outcome import Curve, Outcome, Value, curves, table
from scalewright.spec.serving import BLOCK, blocks_for

if TYPE_CHECKING:
    from scalewright.serve.engine import Engine
    from scalewright.serve.request import Request

MODEL = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 6}
PROMPTS = (20, 70, 150)  # tokens
NEW = 24
COUNTS = (1, 2, 4, 8, 16)
PREFIX = 2 * BLOCK  # tokens that all requests of the second part share


def run(bench: Bench) -> Outcome:
    """Blocks by count, texts alone and together, tokens a second by requests at once."""
    counts = COUNTS[:2] if bench.short else COUNTS
    seen = bench.part("blocks and texts", lambda: _counted(bench))
    rates = {int(n): rate for n, rate in bench.timed("tokens a second", lambda: _rates(bench, counts)).items()}
    values = [
        Value("blocks of three requests after their prompts", seen["blocks"], sum(blocks_for(size) for size in PROMPTS),
              "blocks", "ceil(tokens / 64) each", 0.0, "counted"),
        Value("blocks of four requests with a shared prefix", seen["shared"], PREFIX // BLOCK + 4, "blocks",
              "the prefix once, and one each", 0.0, "counted"),
        Value("prompt tokens that came from the prefix cache", seen["cached"], 3 * PREFIX, "tokens",
              "whole blocks of all but the first", 0.0, "counted"),
        Value("tokens that differ in company", seen["differ"], 0.0, "tokens", "none", 0.0, "bit by bit"),
        Value("tokens a second of the most at once, over one", rates[counts[-1]] / rates[counts[0]], 1.2, "times",
              "one read of the weights for all", 0.0, "more with a larger model", "at least", timed=True),
    ]  # fmt: skip
    rows = [[f"{count}", f"{rate:,.0f}", f"{rate / rates[counts[0]]:.1f}"] for count, rate in rates.items()]
    return Outcome(
        values,
        [curves("tokens a second by requests at once", "requests", "tokens a second",
                [Curve("this engine", list(rates.items())),
                 Curve("as many times one", [(n, n * rates[counts[0]]) for n in rates], expected=True)], log="xy"),
         table(f"{NEW} new tokens each", ["at once", "tokens/s", "times one"], rows)],
    )  # fmt: skip


def rows_that_fit(blocks: int, tokens: int) -> int:
    """Rows of so many tokens for which a cache has whole blocks."""
    return blocks // blocks_for(tokens)


def _engine(bench: Bench, blocks: int = 256) -> Engine:
    """An engine with random weights, which cost as much as trained ones."""
    import torch

    from scalewright.model.decoder import Decoder
    from scalewright.model.init import initialize
    from scalewright.serve.engine import Engine, Settings
    from scalewright.serve.load import Loaded
    from scalewright.spec.model import ModelSpec

    torch.set_num_threads(1)
    spec = ModelSpec.parse({"vocab_size": 512, **MODEL})
    model = Decoder(spec)
    initialize(model, spec, bench.seed)
    return Engine(Loaded(model.eval(), None, frozenset()), Settings(kv_blocks=blocks))


def _requests(sizes: Sequence[int], seed: int, prefix: int = 0) -> list[Request]:
    import numpy as np

    from scalewright.serve.request import Request

    generator = np.random.default_rng(seed)
    first = generator.integers(0, 512, prefix).tolist()
    return [Request([*first, *generator.integers(0, 512, size).tolist()], NEW, stop_ids=frozenset()) for size in sizes]


def _texts(engine: Engine, requests: Sequence[Request]) -> dict[int, list[int]]:
    """The tokens of each request, by its place."""
    numbers = {engine.add(request): place for place, request in enumerate(requests)}
    texts: dict[int, list[int]] = {place: [] for place in numbers.values()}
    while not engine.idle:
        for update in engine.step():
            texts[numbers[update.number]] += update.tokens
    return texts


def _counted(bench: Bench) -> dict[str, int]:
    engine = _engine(bench)
    requests = _requests(PROMPTS, bench.seed)
    for request in requests:
        engine.add(request)
    while engine.stats().waiting or engine.stats().generated_tokens < len(requests):
        engine.step()
    blocks = engine.stats().blocks_used
    while not engine.idle:
        engine.step()
    together = _texts(engine, requests)
    alone = {place: _texts(engine, [request])[0] for place, request in enumerate(requests)}
    differ = sum(a != b for place in together for a, b in zip(together[place], alone[place], strict=True))
    engine.close()
    # With blocks to spare rows are copied into pieces of their own, which attention reads faster.
    engine = _engine(bench, blocks=PREFIX // BLOCK + 5)
    first, *others = _requests((10,) * 4, bench.seed + 1, PREFIX)
    engine.add(first)
    while engine.stats().running == 0 or engine.stats().waiting:
        engine.step()
    for request in others:
        engine.add(request)
    while engine.stats().waiting:
        engine.step()
    engine.step()
    shared, cached = engine.stats().blocks_used, engine.stats().prefix_tokens
    engine.close()
    return {"blocks": blocks, "shared": shared, "cached": cached, "differ": differ}


def _rates(bench: Bench, counts: Sequence[int]) -> dict[int, float]:
    engine = _engine(bench)
    rates: dict[int, float] = {}
    _texts(engine, _requests((40,), bench.seed))
    for count in counts:
        begun = time.perf_counter()
        written: dict[int, Any] = _texts(engine, _requests((40,) * count, bench.seed + count))
        rates[count] = sum(map(len, written.values())) / (time.perf_counter() - begun)
    engine.close()
    return rates
