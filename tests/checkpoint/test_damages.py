"""Damages at random are found and their place is named; the newest sound checkpoint is taken."""

from __future__ import annotations

import pytest

from checkpoint.damages import DAMAGES, SMALL_PIECE, try_damage
from checkpoint.ranks import save
from checkpoint.test_kills import ALONE
from scalewright.checkpoint import pieces, sums


@pytest.fixture
def root(tmp_path, monkeypatch):
    for module in (pieces, sums):
        monkeypatch.setattr(module, "PIECE", SMALL_PIECE)
    for step in (8, 12):
        save(tmp_path, step)
    return tmp_path


def test_some_damages(root):
    """Each kind once."""
    assert len({try_damage(root, seed, ALONE)[0] for seed in range(len(DAMAGES))}) == len(set(DAMAGES))


@pytest.mark.slow
def test_a_thousand_damages(root):
    for seed in range(100, 1100):
        try_damage(root, seed, ALONE)
