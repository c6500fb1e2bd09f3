"""Blocks are held by who took them, and by nobody else; prefixes are found by their tokens."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from scalewright.serve.blocks import Blocks, block_keys
from scalewright.spec.serving import BLOCK, blocks_for


def test_a_key_depends_on_all_tokens_before() -> None:
    tokens = list(range(200))
    keys = block_keys(tokens)
    assert len(keys) == 3
    assert block_keys(tokens[:130]) == keys[:2]
    assert block_keys([1, *tokens[1:]])[2] != keys[2]
    assert [blocks_for(n) for n in (0, 1, 64, 65)] == [0, 1, 1, 2]


def test_rows_lie_in_one_piece_where_they_can() -> None:
    blocks = Blocks(12)
    tables: list[list[int]] = [[], [], []]
    for _ in range(4):
        for table in tables:
            table.append(blocks.take(table[-1] if table else None, 4))
    apart = sum(b - a != 1 for table in tables for a, b in pairwise(table))
    assert apart == 0
    assert [table[0] for table in tables] == [0, 4, 8]
    assert sorted(block for table in tables for block in table) == list(range(12))
    with pytest.raises(IndexError):
        blocks.take()


def test_a_prefix_is_kept_until_its_block_is_needed() -> None:
    blocks, tokens = Blocks(3), list(range(128))
    keys = block_keys(tokens)
    table = [blocks.take(), blocks.take()]
    for index, block in enumerate(table):
        blocks.register(block, keys[index], tokens[index * BLOCK : (index + 1) * BLOCK])
    assert blocks.lookup(keys[0], tokens[:BLOCK]) == table[0]
    assert blocks.lookup(keys[0], tokens[1 : BLOCK + 1]) is None  # another text of the same digest
    blocks.release(table)
    assert blocks.available == 3
    assert blocks.kept == [table[1], table[0]]  # the end of the row goes first
    blocks.share(table[0])
    others = [blocks.take(), blocks.take()]
    assert table[0] not in others
    assert blocks.lookup(keys[1], tokens[BLOCK:]) is None
    assert blocks.lookup(keys[0], tokens[:BLOCK]) == table[0]


def test_a_run_of_blocks() -> None:
    blocks = Blocks(6)
    held = [blocks.take(), blocks.take(), blocks.take()]
    blocks.release([held[1]])
    run = blocks.take_run(2)
    assert run is not None
    assert run[1] - run[0] == 1
    assert blocks.take_run(5) is None


def test_ten_thousand_random_operations() -> None:
    """Nothing leaks, nothing is held twice, a prefix that is found is the one that was put there."""
    rnd, blocks = random.Random(0), Blocks(40)
    rows: list[tuple[list[int], list[int]]] = []  # tokens, table
    content: dict[int, tuple[int, ...]] = {}  # what was computed into each block
    texts = [[rnd.randrange(5) for _ in range(64 * 6)] for _ in range(6)]
    for _ in range(10_000):
        action = rnd.random()
        if action < 0.3 and len(rows) < 8:
            rows.append((texts[rnd.randrange(6)][: rnd.randint(1, 6) * BLOCK], []))
        elif action < 0.8 and rows:
            tokens, table = rows[rnd.randrange(len(rows))]
            index = len(table)
            if index * BLOCK >= len(tokens):
                continue
            key, part = block_keys(tokens)[index], tokens[index * BLOCK : (index + 1) * BLOCK]
            if (block := blocks.lookup(key, part)) is not None:
                assert content[block] == tuple(tokens[: (index + 1) * BLOCK])
                blocks.share(block)
                table.append(block)
            elif blocks.available:
                block = blocks.take(table[-1] if table else None)
                assert all(block not in other for _, other in rows)
                content[block] = tuple(tokens[: (index + 1) * BLOCK])
                table.append(block)
                blocks.register(block, key, part)
        elif rows:
            blocks.release(rows.pop(rnd.randrange(len(rows)))[1])
        held = {block for _, table in rows for block in table}
        assert blocks.available == 40 - len(held)
        for block in held:
            assert blocks.counts[block] == sum(table.count(block) for _, table in rows)
    for _, table in rows:
        blocks.release(table)
    assert blocks.available == 40
    assert not any(blocks.counts)
