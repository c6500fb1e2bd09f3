"""The decoder as a pipeline's layers, without DeepSpeed: the same logits, whatever is in a row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from runs import MODEL
from scalewright.model.decoder import Decoder
from scalewright.parallel.chunked_loss import IGNORED
from scalewright.parallel.inputs import Micro
from scalewright.spec.model import ModelSpec
from scalewright.train.deepspeed.runners import Block, Feed, Head, Norm, Words, _filled, tied_logits, watch_updates

ROWS, TOKENS = 2, 12


def micro(seed: int, *, packed: bool, rows: int = ROWS) -> Micro:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 67, (rows, TOKENS), generator=generator)
    targets = torch.randint(0, 67, (rows, TOKENS), generator=generator)
    if not packed:
        return Micro(tokens, targets, {})
    documents = (torch.arange(TOKENS) >= 5).int().expand(rows, TOKENS)
    positions = torch.cat([torch.arange(5), torch.arange(TOKENS - 5)]).expand(rows, TOKENS)
    return Micro(tokens, targets, {"documents": documents, "positions": positions})


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"tie_word_embeddings": True}, {"positions": "learned", "learned_positions": 16}],
    ids=["rope", "tied", "learned"],
)
def test_layers_in_a_row_are_the_decoder(changes: dict[str, Any], packed: bool) -> None:
    spec = ModelSpec.parse({**MODEL, **changes})
    torch.manual_seed(0)
    decoder = Decoder(spec)
    feed = Feed(decoder)
    words = Words(feed)
    blocks = [Block(feed, number) for number in range(spec.num_hidden_layers)]
    layers = [words, *blocks, Norm(feed)]
    tied = spec.tie_word_embeddings
    micros = [micro(1, packed=packed), micro(2, packed=False)]
    feed.begin(micros)
    for entry in micros:
        feed.advance()
        x: Tensor = entry.tokens
        for layer in layers:
            x = layer(x)
        logits = tied_logits(words, x) if tied else Head(feed)(x)
        assert torch.equal(logits, decoder(entry.tokens, **entry.arguments))


def test_a_later_stage_makes_its_own_context() -> None:
    """Positions and documents are every rank's own: only hidden states travel."""
    spec = ModelSpec.parse(MODEL)
    torch.manual_seed(0)
    last = Decoder(spec, range(1, 3), first=False)
    feed, given = Feed(last), micro(3, packed=True)
    hidden = torch.randn(ROWS, TOKENS, spec.hidden_size)
    feed.begin([given])
    feed.advance()
    x = hidden
    for number in (1, 2):
        x = Block(feed, number)(x)
    assert torch.equal(Head(feed)(Norm(feed)(x)), last(hidden, **given.arguments))


def test_a_short_micro_batch_is_filled_with_rows_that_do_not_count() -> None:
    short = micro(4, packed=True, rows=1)
    filled = _filled(short, 3)
    assert filled.tokens.shape == filled.targets.shape == (3, TOKENS)
    assert torch.equal(filled.targets[0], short.targets[0])
    assert (filled.targets[1:] == IGNORED).all()
    assert torch.equal(filled.tokens[2], short.tokens[0])
    assert _filled(filled, 3) is filled


@pytest.mark.parametrize("finite", [True, False])
def test_an_update_asks_first(finite: bool) -> None:
    calls: list[str] = []
    engine = SimpleNamespace(
        _take_model_step=lambda arguments: calls.append("update"),
        zero_grad=lambda: calls.append("cleared"),
        skipped_steps=0,
    )
    watch_updates(engine, lambda: finite)
    engine._take_model_step(None)
    assert calls == (["update"] if finite else ["cleared"])
    assert engine.skipped_steps == (0 if finite else 1)
