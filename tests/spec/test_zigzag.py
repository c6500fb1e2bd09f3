"""Which tokens a rank of context parallelism has."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.spec.zigzag import SequenceCut, chunks


@pytest.mark.parametrize("kind", ["ring", "allgather", "ulysses"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_have_every_token_once(kind: str, ranks: int) -> None:
    length = 5 * chunks(kind, ranks)
    parts = [SequenceCut(kind, ranks, rank).tokens(length) for rank in range(ranks)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(length))
    assert all((np.diff(part) > 0).all() for part in parts)
    assert {len(part) for part in parts} == {length // ranks}


def test_a_rings_ranks_have_the_same_work_and_ulysses_have_not() -> None:
    """Under the causal mask token i sees i + 1 keys."""
    work = {
        kind: [int((SequenceCut(kind, 4, rank).tokens(64) + 1).sum()) for rank in range(4)]
        for kind in ("ring", "ulysses")
    }
    assert len(set(work["ring"])) == 1
    assert work["ulysses"][3] > 6 * work["ulysses"][0]


def test_another_ranks() -> None:
    cut = SequenceCut("ring", 2, 0)
    assert cut.tokens(8).tolist() == [0, 1, 6, 7]
    assert cut.tokens(8, 1).tolist() == [2, 3, 4, 5]
