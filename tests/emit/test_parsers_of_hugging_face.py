"""Accelerate's, the Trainer's and DeepSpeed's own parsers take what is written for random runs."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from emit import test_accelerate, test_deepspeed, test_transformers
from emit.narrowed import narrowed

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "comparisons"))
AXES: dict[str, Any] = {
    "accelerate": test_accelerate.AXES,
    "transformers": test_transformers.AXES,
    "deepspeed": test_deepspeed.AXES,
}


@pytest.mark.slow
@pytest.mark.parametrize("trainer", AXES)
def test_its_parser_takes_forty_random_runs(trainer: str, tmp_path: Path) -> None:
    if find_spec(trainer) is None:
        pytest.skip(f"{trainer} is not installed")
    judge = import_module(f"harness.parsers.{trainer}")
    judge.prepare()
    skipped = 0
    for number, (settings, emitted, _) in enumerate(narrowed(trainer, 40, 6, AXES[trainer])):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in emitted.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        reason = judge.refusal(folder, emitted, settings)
        skipped += reason == "DeepSpeed is not installed"
        assert reason in ("", "DeepSpeed is not installed"), settings.layout
    assert skipped < 40
