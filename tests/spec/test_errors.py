"""Errors: one line of what, where and how; a misspelt name gets the nearest ones."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from scalewright.spec.errors import Mistakes, UserError, nearest, unknown


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


def fails(*parts: str) -> Callable[[], None]:
    def check() -> None:
        raise UserError(*parts)

    return check


def test_mistakes_are_named_together_and_each_once() -> None:
    mistakes = Mistakes()
    assert mistakes.of(lambda: 7) == 7
    mistakes.stop()  # none yet
    assert mistakes.of(fails("no image", "launch.container", "name one")) is None
    with pytest.raises(UserError, match=r"^no image \(launch.container\): name one$"):
        mistakes.stop()
    mistakes.of(fails("no image", "launch.container", "name one"))
    mistakes.of(fails("which GPU?", "launch.gpu", "H100"))
    words = "2 things to mend: no image (launch.container): name one; which GPU? (launch.gpu): H100"
    with pytest.raises(UserError) as caught:
        mistakes.stop()
    assert str(caught.value) == words
    outer = Mistakes()
    outer.of(mistakes.stop)
    outer.of(fails("no data"))
    assert str(outer.together()) == words.replace("2 things", "3 things") + "; no data"
    assert outer.together().what == "no image; which GPU?; no data"
    assert str(pickle.loads(pickle.dumps(mistakes.together()))).startswith("2 things to mend: no image")


def test_very_many_mistakes_are_cut() -> None:
    mistakes = Mistakes()
    for number in range(30):
        mistakes.of(fails(f"wrong {number}"))
    assert str(mistakes.together()).endswith("wrong 7; and 22 more")
