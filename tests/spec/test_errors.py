"""Errors: one line of what, where and how; a misspelt name gets the nearest ones."""

from __future__ import annotations

import pickle

from scalewright.spec.errors import UserError, nearest, unknown


def test_one_line_of_what_where_and_how() -> None:
    assert str(UserError("lr is -1", "optimizer", "use 3e-4")) == "lr is -1 (optimizer): use 3e-4"
    assert str(UserError("lr is -1")) == "lr is -1"


def test_near_names_are_found_whatever_their_case() -> None:
    assert nearest("LLAMA-3.1-8b", ["llama-3.1-8b", "gpt2"]) == ["llama-3.1-8b"]
    assert nearest("zzz", ["llama", "gpt2"]) == []
    assert "did you mean 'gpt2'" in str(unknown("model", "gtp2", ["llama", "gpt2"]))
    assert "use one of a, b" in str(unknown("kind", "zzz", ["a", "b"]))


def test_errors_can_be_pickled() -> None:
    error = UserError("what", "where", "how")
    back = pickle.loads(pickle.dumps(error))
    assert str(back) == str(error)
