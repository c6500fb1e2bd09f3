"""What stands in for a tensor's numbers in a dry run; a real run's tensors go to the functions themselves."""

from __future__ import annotations

import pytest
import torch

from scalewright.dry_run.no_numbers import STAND_INS, use_stand_ins
from scalewright.model import moe
from scalewright.model.torch_private import NEEDS_VALUES, FakeTensorMode
from scalewright.parallel import context


def test_counts_are_spread_evenly_and_add_up() -> None:
    use_stand_ins()
    with FakeTensorMode():
        counts = [torch.ones(3, dtype=torch.int64), torch.ones(4, dtype=torch.int64)]
        with pytest.raises(NEEDS_VALUES):
            moe.on_host.__wrapped__(counts, [10, 8])  # type: ignore[attr-defined]
        assert moe.on_host(counts, [10, 8]) == [[3, 3, 4], [2, 2, 2, 2]]


def test_documents_of_a_batch_have_no_first_keys() -> None:
    use_stand_ins()
    with FakeTensorMode():
        first, documents = torch.zeros(1, 8, dtype=torch.int64), torch.zeros(1, 8, dtype=torch.int64)
        assert context.first_keys_on_host(first, documents, None, window=None, chunks=False) is None
        known = context.first_keys_on_host(first, None, None, window=3, chunks=False)
    assert known is not None
    assert known.tolist() == [[0, 0, 0, 1, 2, 3, 4, 5]]


def test_a_real_run_beside_a_dry_run_has_its_own_numbers() -> None:
    """A run may train in one thread while another thread asks for a dry run."""
    for _ in range(2):
        use_stand_ins()
    assert all(not hasattr(getattr(module, name).__wrapped__, "__wrapped__") for module, name, _ in STAND_INS)
    assert moe.on_host([torch.tensor([7, 1])], [8]) == [[7, 1]]  # not 4 and 4
    first, documents = torch.zeros(1, 8, dtype=torch.int64), torch.zeros(1, 8, dtype=torch.int64)
    assert context.first_keys_on_host(first, documents, None, window=None, chunks=False) is not None
