"""Which keys a query sees, by the definition; and tiles that hold every visible pair once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model.packed_rows import LENGTH, documents_of, random_lengths
from scalewright.model import visible
from scalewright.model.visible import Span, added_mask, first_keys, is_visible, tiles
from scalewright.spec.zigzag import SequenceCut

INDEX = torch.arange(LENGTH)


def by_definition(documents: torch.Tensor | None, window: int | None, chunks: bool) -> torch.Tensor:
    """Bool [B or 1, 1, T, T]."""
    away = INDEX[:, None] - INDEX[None, :]
    seen = (away >= 0)[None]
    if window is not None and chunks:
        begin = torch.zeros_like(INDEX)[None]
        if documents is not None:  # each of a document's tokens has its first one
            begin = (documents[:, :, None] == documents[:, None, :]).int().argmax(dim=2)
        chunk = (INDEX - begin) // window
        seen = seen & (chunk[:, :, None] == chunk[:, None, :])
    elif window is not None:
        seen = seen & (away < window)
    if documents is not None:
        seen = seen & (documents[:, :, None] == documents[:, None, :])
    return seen[:, None]


RULES = [
    (seed, window, chunks)
    for seed in (None, 0, 1, 2)
    for window, chunks in ((None, False), (1, False), (37, False), (37, True), (200, False), (1000, True))
]


@pytest.mark.parametrize(("seed", "window", "chunks"), RULES)
def test_the_rule_is_its_definition(seed: int | None, window: int | None, chunks: bool) -> None:
    documents = None
    if seed is not None:
        documents = documents_of((random_lengths(seed), random_lengths(seed + 10)))
    first = first_keys(INDEX, documents, window, chunks)
    assert torch.equal(is_visible(INDEX, INDEX, first), by_definition(documents, window, chunks))


def test_numbers_of_documents_only_have_to_change() -> None:
    """Padding before a prompt is document -1."""
    first = first_keys(torch.arange(6), torch.tensor([[-1, -1, 0, 0, 7, 3]]))
    assert first.tolist() == [[0, 0, 2, 2, 4, 5]]


def test_a_mask_hides_by_a_finite_number() -> None:
    """A query that sees nothing has then numbers in its softmax that merge to nothing, and no NaN."""
    mask = added_mask(torch.tensor([0, 5]), torch.tensor([3, 4]), torch.tensor([[0, 4]]), None, torch.bfloat16, -1e30)
    assert mask.shape == (1, 1, 2, 2)
    assert (mask == 0).tolist() == [[[[False, False], [False, True]]]]
    assert mask.isfinite().all()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("most", [16, 100, 512])
@pytest.mark.parametrize(("seed", "window", "chunks"), RULES)
def test_tiles_hold_every_visible_pair_once(
    seed: int | None, window: int | None, chunks: bool, most: int, whole: bool
) -> None:
    documents = None if seed is None else documents_of((random_lengths(seed), random_lengths(seed + 10)))
    first = first_keys(INDEX, documents, window, chunks)
    span = Span(INDEX.numpy(), INDEX.numpy(), first.numpy())
    check(span, most, whole)


@pytest.mark.parametrize("kind", ["ring", "ulysses"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tiles_of_parts_of_rows(seed: int, kind: str) -> None:
    """Queries of one rank of context parallelism, keys of another."""
    first = first_keys(INDEX, documents_of((random_lengths(seed),) * 2)).numpy()
    for rank in range(3):
        for source in range(3):
            cut = SequenceCut(kind, 3, rank)
            query, key = cut.tokens(LENGTH), cut.tokens(LENGTH, source)
            check(Span(query, key, first[:, query]), 64, True)


def check(span: Span, most: int, whole: bool) -> None:
    """Every visible pair is in one tile, and a tile without a mask has no other pairs."""
    assert span.first is not None
    seen = (span.key <= span.query[:, None]) & (span.key >= span.first[..., None])
    count = np.zeros(seen.shape, int)
    for tile in tiles(span, most, whole=whole):
        at = (tile.rows, tile.queries, tile.keys)
        inside, (rows, queries, keys) = seen[at], seen[at].shape
        count[at] += 1
        assert rows == 1 or len(seen) == 1
        if tile.kind == "all":
            assert inside.all()
        elif tile.kind == "causal":
            assert queries == keys
            assert (inside == np.tri(queries, dtype=bool)).all()
        if tile.kind == "masked" or not whole:
            assert queries <= most
    assert (count[seen] == 1).all()
    assert count.max() <= 1


def test_invisible_tiles_are_left_out() -> None:
    """Ten documents of 200 tokens: a twentieth of the square's pairs, each document without a mask."""
    index = np.arange(2000)
    plan = tiles(Span(index, index, (index // 200 * 200)[None]), 512, whole=True)
    assert [tile.kind for tile in plan] == ["causal"] * 10
    # a window of 64 at 2,000 tokens: blocks of 128 queries, and the 63 keys before each
    first = np.maximum(index - 63, 0)[None]
    plan = tiles(Span(index, index, first), 512, whole=False)
    pairs = sum((t.queries.stop - t.queries.start) * (t.keys.stop - t.keys.start) for t in plan)
    assert pairs < 2000 * (128 + 63)


def test_short_documents_share_a_tile_but_not_with_a_long_one() -> None:
    lengths = (3, 4, 5, 900, 2, 2)
    first = np.repeat(np.cumsum((0, *lengths[:-1])), lengths)[None]
    plan = tiles(Span(np.arange(916), np.arange(916), first), 64, whole=True)
    assert [(t.queries.start, t.queries.stop, t.kind) for t in plan] == [
        (0, 12, "masked"), (12, 912, "causal"), (912, 916, "masked"),
    ]  # fmt: skip
    assert visible.LEAST <= 900


def test_where_the_host_has_no_documents_only_later_keys_are_left_out() -> None:
    index = np.arange(100)
    plan = tiles(Span(index, index, None), 40, whole=True)
    assert [(t.keys.stop, t.kind) for t in plan] == [(40, "masked"), (80, "masked"), (100, "masked")]
