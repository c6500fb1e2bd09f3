"""Where the head is part of the loss's loop over chunks of tokens, and what either way keeps."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.plan.cost.work import AFTER, Kernel, RegionKept, work
from scalewright.spec import block
from scalewright.spec.loss_chunks import HEAD_TOKENS, LOGITS_AT_ONCE, LossSizes, chunk_tokens, head_tokens
from scalewright.spec.presets import load_model_spec
from scalewright.spec.primitives import Sizes

LLAMA = 128256, 4096  # columns, hidden size


@pytest.mark.parametrize(
    ("tokens", "width", "expected"),
    [
        (2 * (4096 + 2092), 4, False),  # just half
        (2 * (4096 + 2092) + 1, 4, True),
        (2 * (8192 + 2092), 2, False),
        (2 * (8192 + 2092) + 1, 2, True),
    ],
)
def test_the_head_is_in_chunks_where_that_halves_what_exists(tokens, width, expected):
    """Whole logits, against the sum of the weight's gradient and a chunk's logits."""
    columns, hidden = LLAMA
    sizes = LossSizes(tokens, columns, hidden, width)
    whole, weight_sum = tokens * columns * width, 4 * columns * hidden
    assert (2 * (weight_sum + head_tokens(columns) * columns * width) < whole) is expected
    assert sizes.head_in_chunks == expected
    assert sizes.kept == (weight_sum + tokens * hidden * width if expected else whole)


def test_one_chunk_is_whole_logits():
    """Of a small vocabulary all logits are computed at once, even of many tokens of a small head."""
    assert chunk_tokens(256) == 1 << 18
    assert not LossSizes(2 * ((1 << 18) + 16), 256, 16, 4).head_in_chunks
    assert LossSizes(2 * ((1 << 18) + 16) + 1, 256, 16, 4).head_in_chunks
    assert chunk_tokens(LOGITS_AT_ONCE + 1) == 1


@pytest.mark.parametrize("columns", [128256, 128256 // 8, 32000, 262144, LOGITS_AT_ONCE + 1])
def test_a_head_s_chunk_is_some_of_the_loss(columns):
    """Enough tokens that the sum of the weight's gradient isn't read and written for each few of them."""
    tokens, of_loss = head_tokens(columns), chunk_tokens(columns)
    assert tokens % of_loss == 0
    assert HEAD_TOKENS <= tokens < max(HEAD_TOKENS, of_loss) + of_loss


def test_columns_of_numbers_have_the_same_answers():
    tokens, columns = np.array([1024.0, 8192.0, 65536.0]), np.array([128256.0, 128256.0, 1 << 27])
    together = LossSizes(tokens, columns, 4096, np.array([2.0, 4.0, 4.0]))
    for index in range(3):
        alone = LossSizes(int(tokens[index]), int(columns[index]), 4096, (2, 4, 4)[index])
        for name in ("several", "head_in_chunks", "kept", "traffic"):
            assert getattr(together, name)[index] == pytest.approx(getattr(alone, name), rel=1e-12), name


def test_operators_and_planner_follow_the_rule():
    """Also where batches of one and two differ in it, so that the planner can't draw a line through them."""
    model = load_model_spec("llama-3.1-8b")
    kept = RegionKept._fields.index("none")
    for batch, in_chunks in ((1, False), (2, False), (5, False), (6, True), (8, True)):
        sizes = Sizes(batch, 4096, 1, False, 1, 1, 1, 2, "fused", kernels="cuda")
        listed, found = tuple(block.after(model, sizes)), work(model, sizes)
        assert found.head_in_chunks == in_chunks
        assert found.kept[AFTER, kept] == pytest.approx(sum(o.saved for o in listed), rel=1e-12)
        head = found.kernels[found.kernels[:, Kernel._fields.index("early")] > 0]
        assert len(head) == (4 if in_chunks else 0)  # three products, and their sum over chunks
        others = work(model, Sizes(batch, 4096, 1, False, 1, 1, 1, 2, "fused"))
        assert not others.head_in_chunks  # other trainers have whole logits
        flops = Kernel._fields.index("flops")
        assert found.kernels[:, flops].sum() == pytest.approx(others.kernels[:, flops].sum(), rel=1e-12)
