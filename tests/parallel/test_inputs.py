"""Tokens ahead and their targets, from whole rows, for any cut of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scalewright.data.batch import IGNORED, Batch
from scalewright.parallel.inputs import Wanted, ahead_of, micro_batches
from scalewright.spec.zigzag import SequenceCut

X = IGNORED
# two documents of a row, as in the picture at the top of parallel/inputs.py
TOKENS = np.array([[11, 12, 13, 0, 21, 22]])
TARGETS = np.array([[12, 13, 0, X, 22, 23]])
DOCUMENTS = np.array([[0, 0, 0, 0, 1, 1]], dtype=np.int32)


def test_targets_end_with_the_row_and_with_a_document() -> None:
    ahead, targets = ahead_of(TOKENS, TARGETS, DOCUMENTS, 2)
    assert ahead.tolist() == [[[12, 13, 0, 21, 22, 0]], [[13, 0, 21, 22, 0, 0]]]
    assert targets.tolist() == [[[13, 0, X, X, 23, X]], [[0, X, X, X, X, X]]]


def test_without_documents_only_the_row_ends() -> None:
    whole = np.array([[12, 13, 0, 21, 22, 23]])
    _, targets = ahead_of(TOKENS, whole, None, 2)
    assert targets.tolist() == [[[13, 0, 21, 22, 23, X]], [[0, 21, 22, 23, X, X]]]


def test_more_depths_than_tokens() -> None:
    ahead, targets = ahead_of(TOKENS[:, :2], TARGETS[:, :2], None, 3)
    assert ahead.tolist() == [[[12, 0]], [[0, 0]], [[0, 0]]]
    assert targets.tolist() == [[[13, X]], [[X, X]], [[X, X]]]


@pytest.mark.parametrize("kind", ["ring", "ulysses"])
def test_a_rank_gets_what_is_ahead_of_its_own_tokens(kind: str) -> None:
    length = 8
    tokens = np.arange(2 * length).reshape(2, length)
    rows = Batch(tokens, tokens + 1, np.tile(np.arange(length), (2, 1)), None, np.arange(2))
    device = torch.device("cpu")
    (whole,) = micro_batches(rows, 2, device, Wanted(ahead=2))
    for rank in (0, 1):
        cut = SequenceCut(kind, 2, rank)  # type: ignore[arg-type]
        (micro,) = micro_batches(rows, 2, device, Wanted(cut=cut, ahead=2))
        mine = torch.from_numpy(cut.tokens(length))
        assert torch.equal(micro.arguments["ahead"], whole.arguments["ahead"][..., mine])
        assert torch.equal(micro.targets, whole.targets[..., mine])
        assert micro.targets.shape == (3, 2, length // 2)
