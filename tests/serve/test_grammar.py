"""Random tokens under a grammar always make a text that it describes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import torch

from scalewright.serve.grammar import Grammars, Matched
from scalewright.spec.errors import UserError
from serve.server.fake import loaded

SCHEMA: dict[str, Any] = {
    "type": "object", "required": ["name", "tags", "age"], "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 3, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(loaded())


def written(make: Callable[[], Matched], seed: int) -> str:
    """Tokens drawn evenly from those that are allowed, of a vocabulary that the model has padded to 300."""
    grammar, tokens, draw = make(), list[int](), torch.Generator().manual_seed(seed)
    for _ in range(500):
        logits = grammar.mask(torch.zeros(300))
        assert logits[262:].eq(float("-inf")).all()
        token = int(torch.multinomial(logits.softmax(0), 1, generator=draw))
        grammar.accept(token)
        if token == 256:
            break
        tokens.append(token)
        if grammar.finished():
            break
    return bytes(tokens).decode()


@pytest.mark.parametrize("seed", range(10))
def test_json_of_a_schema(grammars: Grammars, seed: int) -> None:
    jsonschema.validate(json.loads(written(grammars.json(SCHEMA), seed)), SCHEMA)


@pytest.mark.parametrize("seed", range(10))
def test_a_regular_expression(grammars: Grammars, seed: int) -> None:
    assert re.fullmatch(r"[a-c]{2,4}-(é|xyz)", written(grammars.regex(r"[a-c]{2,4}-(é|xyz)"), seed))


def test_requests_do_not_share_their_state(grammars: Grammars) -> None:
    make = grammars.regex("ab")
    first = make()
    first.accept(ord("a"))
    assert int(first.mask(torch.zeros(262)).argmax()) == ord("b")
    assert int(make().mask(torch.zeros(262)).argmax()) == ord("a")


@pytest.mark.parametrize("wrong", [{"type": "nothing"}, {"$ref": "#/missing"}, {"allOf": 3}], ids=str)
def test_a_schema_that_cannot_be_followed(grammars: Grammars, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="no grammar can be made"):
        grammars.json(wrong)


def test_a_pattern_that_is_none(grammars: Grammars) -> None:
    with pytest.raises(UserError, match="no grammar can be made"):
        grammars.regex("(")
