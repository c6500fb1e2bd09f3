"""What stands in for a tensor's numbers in a dry run, and that a real run's functions are back afterwards."""

from __future__ import annotations

import contextlib

import pytest
import torch

from scalewright.dry_run.no_numbers import REPLACED, no_numbers
from scalewright.model import moe
from scalewright.model.torch_private import NEEDS_VALUES, FakeTensorMode
from scalewright.parallel import context


def test_counts_are_spread_evenly_and_add_up() -> None:
    with FakeTensorMode():
        counts = [torch.ones(3, dtype=torch.int64), torch.ones(4, dtype=torch.int64)]
        with pytest.raises(NEEDS_VALUES):
            moe.on_host(counts, [10, 8])
        with no_numbers():
            assert moe.on_host(counts, [10, 8]) == [[3, 3, 4], [2, 2, 2, 2]]


def test_documents_of_a_batch_have_no_first_keys() -> None:
    first, documents = torch.zeros(1, 8, dtype=torch.int64), torch.zeros(1, 8, dtype=torch.int64)
    assert context.first_keys_on_host(first, documents, None, window=None, chunks=False) is not None
    with FakeTensorMode(allow_non_fake_inputs=True), no_numbers():
        assert context.first_keys_on_host(first, documents, None, window=None, chunks=False) is None
        known = context.first_keys_on_host(first, None, None, window=3, chunks=False)
    assert known is not None
    assert known.tolist() == [[0, 0, 0, 1, 2, 3, 4, 5]]


def test_a_real_run_s_functions_are_back_even_after_an_error() -> None:
    before = [getattr(module, name) for module, name, _ in REPLACED]
    with contextlib.suppress(KeyError), no_numbers():
        assert all(getattr(module, name) is function for module, name, function in REPLACED)
        raise KeyError
    assert [getattr(module, name) for module, name, _ in REPLACED] == before
