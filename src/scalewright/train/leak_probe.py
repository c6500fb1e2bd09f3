"""A look before the first step: do tokens see other documents of their row? For layouts that cut rows.

    row       A A A B B B B C C      the loss of B and C, before A's tokens are changed and after
              x x x B B B B C C      the same number, if B and C don't see A

Masks of a cut row are made by parts, which is where such a fault would hide: it spoils what is learned, and
shows in no loss curve. Two forwards of one micro-batch; what is learned isn't touched.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from scalewright.data.batch import IGNORED, Batch
from scalewright.parallel.collectives import all_sum
from scalewright.parallel.execute import Loss
from scalewright.parallel.inputs import micro_batches, wanted_by
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import Parallel
from scalewright.parallel.shard import release
from scalewright.spec.errors import RunError

# What a sum of losses may differ by where a kernel adds in another order from call to call. Documents that
# see each other move it by 3e-4 in the tests' model: three hundred times that.
NOISE = 1e-6


def check_leaks(parallel: Parallel, mesh: Mesh, loss: Loss, micro_batch: int, seq_len: int, vocabulary: int) -> None:
    """Raises RunError where a document's tokens move the loss of others; all ranks call it."""
    change = leak(parallel, mesh, loss, _rows(micro_batch, seq_len, vocabulary), vocabulary)
    if not change <= NOISE:
        raise RunError(
            f"with this layout tokens see other documents of their row: other tokens there move the loss of "
            f"the rest by {change:.1e}; train with layout.cp=1, and please report this"
        )


@torch.no_grad()
def leak(parallel: Parallel, mesh: Mesh, loss: Loss, rows: Batch, vocabulary: int) -> float:
    """By how much, relatively, the later documents' loss moves when each row's first has other tokens."""
    assert rows.documents is not None
    first = rows.documents == 0
    others = replace(rows, targets=np.where(first, IGNORED, rows.targets))
    changed = replace(others, tokens=np.where(first, (rows.tokens + 1) % vocabulary, rows.tokens))
    sums, wanted = [], wanted_by(parallel.model)
    for batch in (others, changed):
        (micro,) = micro_batches(batch, len(batch.tokens), mesh.device, wanted)
        sums.append(parallel.executor.total(micro, loss))
    release(parallel.model)
    before, after = all_sum(torch.stack(sums).double(), mesh, "world").tolist()
    change: float = abs(after - before) / abs(before)
    return change


def _rows(count: int, length: int, vocabulary: int) -> Batch:
    """Rows of three documents, of any tokens."""
    random = np.random.default_rng(0)
    tokens = random.integers(0, vocabulary, (count, length + 1))
    starts = np.array([0, length // 3, length * 3 // 4])
    index = np.arange(length)
    documents = np.searchsorted(starts, index, side="right") - 1
    positions = index - starts[documents]
    return Batch(
        tokens[:, :-1], tokens[:, 1:], np.tile(positions, (count, 1)),
        np.tile(documents.astype(np.int32), (count, 1)), np.arange(count),
    )  # fmt: skip
