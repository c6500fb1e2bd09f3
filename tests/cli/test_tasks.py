"""What `evaluate --tasks` gives the harness to write with: it stops where a task's stop strings say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import scalewright.serve.generate  # noqa: F401  before the patch: a first import under it would keep the fake
from scalewright.cli.verbs.evaluate import score_tasks

pytest.importorskip("lm_eval")


class Alphabet(torch.nn.Module):
    """After each byte the next one of the alphabet is likeliest; counts its forwards."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.rows = 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.rows += len(tokens)
        return torch.nn.functional.one_hot(tokens + 1, 256).float() + self.weight


def test_writing_ends_with_the_stop_strings_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows end at their own stop string, and all of it when every row has."""
    model = Alphabet()
    loaded = SimpleNamespace(
        model=model,
        tokenizer=object(),
        end_of_text=frozenset([ord("z")]),
        beginning=None,
        end=ord("z"),
        start=(),
        decode=lambda ids: bytes(ids).decode(),
    )
    monkeypatch.setattr("scalewright.serve.load.load_for_generation", lambda *_, **__: loaded)
    subjects: list[Any] = []
    monkeypatch.setattr("scalewright.evaluate.harness.evaluate_tasks", lambda subject, *_: subjects.append(subject))
    score_tasks(Path("nowhere"), "some", None, None, 2, None, "cpu")
    (subject,) = subjects

    def written(stops: list[str]) -> list[str]:
        prompts = [list(b"a"), list(b"ae")]
        return [bytes(row).decode() for row in subject.generate(prompts, 100, 0.0, stops)]

    assert written(["xx", "hi"]) == ["bcdefghi", "fghi"]
    assert model.rows == 8 + 4  # of 200
    assert written(["d", "j"]) == ["bcd", "fghij"]
    assert written([]) == ["bcdefghijklmnopqrstuvwxyz", "fghijklmnopqrstuvwxyz"]
