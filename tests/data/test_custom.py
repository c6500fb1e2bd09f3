"""A user's own dataset in the place of ours."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scalewright.data.batch import Batch
from scalewright.data.dataset import open_data
from scalewright.spec.errors import UserError
from scalewright.spec.run import PythonRef

MODULE = """
import numpy as np
from scalewright.data.batch import Batch

class Numbers:
    vocab_size = 7
    def __init__(self, split, seed, width=4):
        self.split, self.seed, self.width = split, seed, width
    def __len__(self):
        return 100
    def batch(self, indices):
        rows = np.asarray(indices, np.int64)[:, None] + np.arange(self.width + 1)
        positions = np.tile(np.arange(self.width), (len(rows), 1))
        return Batch(rows[:, :-1] % 7, rows[:, 1:] % 7, positions, None, np.asarray(indices, np.int64))

class Short(Numbers):
    def batch(self, indices):
        return super().batch(list(indices)[:1])

def nothing():
    return object()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module beside the run file, where the command runs."""
    name = f"my_data_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return name


def opened(name, **keys):
    return open_data(PythonRef.parse({"python": name, **keys}), "train", seed=3)


def test_arguments_split_and_seed_arrive(module):
    data = opened(f"{module}:Numbers", width=6)
    assert (data.inner.split, data.inner.seed, data.inner.width) == ("train", 3, 6)
    batch = data.batch(range(2, 5))
    assert isinstance(batch, Batch)
    assert np.array_equal(batch.sample_ids, [2, 3, 4])
    assert len(data) == 100
    assert (data.vocab_size, data.eod, data.tokenizer_path) == (7, None, None)
    assert math.isnan(data.bytes_per_token)


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("no_such_module:x", {}, "cannot import 'no_such_module'"),
        ("{}:Nombers", {}, "has no 'Nombers'"),
        ("{}:Numbers", {"depth": 3}, "can't be called so"),
        ("{}:nothing", {}, r"no items and no batch\(indices\)"),
    ],
)
def test_mistakes(module, name, keys, message):
    with pytest.raises(UserError, match=message):
        opened(name.format(module), **keys)


def test_a_batch_of_the_wrong_size(module):
    with pytest.raises(UserError, match=r"a Batch of 1 rows.*of 3 rows"):
        opened(f"{module}:Short").batch(range(3))
