"""A user's own module is found in the working directory, seeded, and its mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scalewright.model.python import build_python_model
from scalewright.spec.errors import UserError
from scalewright.spec.user_code import import_object

SOURCE = """
import torch

def build(vocab, width=8):
    return torch.nn.Sequential(torch.nn.Embedding(vocab, width), torch.nn.Linear(width, vocab))

def nothing():
    return 3

def broken():
    raise ValueError("too small")

constant = 7
"""


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_model.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)


def test_it_is_built_with_its_arguments_and_the_seed() -> None:
    first = build_python_model("my_own_model:build", {"vocab": 11, "width": 4}, seed=3)
    again = build_python_model("my_own_model:build", {"vocab": 11, "width": 4}, seed=3)
    other = build_python_model("my_own_model:build", {"vocab": 11, "width": 4}, seed=4)
    assert first(torch.zeros(2, 5, dtype=torch.long)).shape == (2, 5, 11)
    assert torch.equal(first[0].weight, again[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("no_such_module_here:build", "cannot import 'no_such_module_here'"),
        ("my_own_model:buidl", "has no 'buidl'"),
        ("my_own_model:constant", "can't be called"),
        ("my_own_model", r"not package\.module:name"),
    ],
)
def test_a_wrong_reference_is_named(ref: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        import_object(ref)
    assert "\n" not in str(caught.value)


def test_wrong_arguments_and_results_are_named() -> None:
    with pytest.raises(UserError, match=r"width_.*my_own_model:build"):
        build_python_model("my_own_model:build", {"vocab": 3, "width_": 1}, seed=0)
    with pytest.raises(UserError, match="gave int"):
        build_python_model("my_own_model:nothing", {}, seed=0)
    with pytest.raises(ValueError, match="too small"):  # its own error, with its own traceback
        build_python_model("my_own_model:broken", {}, seed=0)
