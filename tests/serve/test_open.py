"""Folders become engines: with the cache that fits, and with who guesses ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.tiny_families import save
from scalewright.serve.open import open_engine
from scalewright.serve.request import Request
from scalewright.serve.sampling import Sampling
from scalewright.spec.errors import UserError
from serve.schedules import send
from serve.test_generate import make_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("folder")
    save("llama-gqa", path)
    make_tokenizer(path)
    return path


def test_another_folder_guesses_ahead(folder: Path) -> None:
    """The model itself: all of its guesses are right."""
    asked = [Request([5, 17, 80], 30, Sampling(0)), Request([9], 12, Sampling(0))]
    plain, engine = send(open_engine(folder), asked), open_engine(folder, draft=str(folder), draft_tokens=3)
    assert send(engine, asked) == plain
    stats = engine.stats()
    assert stats.drafted_tokens == stats.accepted_tokens > 20


def test_the_cache_fits_into_its_memory(folder: Path) -> None:
    engine = open_engine(folder, kv_memory_gib=0.001)
    assert 0 < engine.stats().blocks * engine.stats().block_size < 65_536
    assert open_engine(folder).stats().kv_tokens == 65_536
    with pytest.raises(UserError, match="no block of the cache fits"):
        open_engine(folder, kv_memory_gib=1e-9)


def test_who_cannot_guess(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no prediction module"):
        open_engine(folder, draft="mtp")
    with pytest.raises(UserError, match="runs in one process"):
        open_engine(folder, draft="mtp", tp=2)
    with pytest.raises(UserError, match="no such folder"):
        open_engine(folder, draft=str(tmp_path / "nothing"))
