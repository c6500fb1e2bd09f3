"""The schedule, played with rows that only count: everybody's turn comes, and no block is promised twice."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from scalewright.spec.serving import BLOCK, Item, Limits, Row, Step, blocks_for, pieces, schedule


@dataclass
class Played:
    """A request of the game."""

    number: int
    prompt: int
    new: int
    written: int = 0
    computed: int = 0
    blocks: int = 0
    waited: int = 0
    drafts: int = 0

    def row(self) -> Row:
        return Row(
            self.number, self.prompt, self.prompt + self.written, self.prompt + self.new, self.computed, self.blocks,
            own=self.blocks, drafts=self.drafts,
        )  # fmt: skip


def play(step: Step, running: dict[int, Played], waiting: dict[int, Played], free: int, rnd: random.Random) -> int:
    """Carries a step out; the blocks that are free afterwards."""
    for number in step.preempted:
        row = waiting[number] = running.pop(number)
        free, row.blocks, row.computed = free + row.blocks, 0, 0
    for number in step.admitted:
        running[number] = waiting.pop(number)
    for item in step.items:
        row = running[item.number]
        assert item.start == row.computed
        assert item.length > 0
        more = max(0, blocks_for(item.end) - row.blocks)
        free, row.blocks, row.computed = free - more, row.blocks + more, item.end
        assert free >= 0, "a block is given that nobody has"
        if row.computed >= row.prompt + row.written:
            accepted = rnd.randint(0, row.computed - row.prompt - row.written)
            row.written += 1 + accepted
            row.computed = row.prompt + row.written - 1
        if row.written >= row.new:
            del running[row.number]
            free += row.blocks
    return free


@pytest.mark.parametrize("seed", range(6))
def test_random_play(seed: int) -> None:
    rnd = random.Random(seed)
    rows = rnd.choice([1, 3, 8])
    limits, total = Limits(rows + 64 + rnd.choice([0, 5, 200]), rows), rnd.choice([4, 6, 20])
    running: dict[int, Played] = {}
    waiting: dict[int, Played] = {}
    free, count, oldest_stood = total, 0, 0
    for turn in range(1_700):
        if turn < 1_200 and rnd.random() < 0.15 and len(waiting) < 6:
            prompt = rnd.choice([1, 63, 64, 65, 130, rnd.randint(1, 150)])
            waiting[count] = Played(count, prompt, rnd.randint(1, min(100, total * BLOCK - prompt)))
            count += 1
        if running and rnd.random() < 0.02:  # somebody leaves
            free += running.pop(rnd.choice(list(running))).blocks
        for row in running.values():
            left = row.new - row.written - 1
            decodes = row.computed == row.prompt + row.written - 1 and row.written
            row.drafts = rnd.randint(0, min(4, left)) if decodes and left > 0 else 0
        step = schedule(
            [r.row() for r in running.values()],
            [w.row() for w in sorted(waiting.values(), key=lambda w: w.number)],
            free,
            limits,
        )
        assert sum(item.length for item in step.items) <= limits.tokens
        assert len(running) - len(step.preempted) + len(step.admitted) <= limits.rows
        oldest = min(running, default=None)
        assert oldest not in step.preempted
        before = running[oldest].computed if oldest is not None else 0
        free = play(step, running, waiting, free, rnd)
        if oldest is not None and oldest in running:
            oldest_stood = 0 if running[oldest].computed > before else oldest_stood + 1
            assert oldest_stood <= 1, "the oldest row stands still"
    assert not running
    assert not waiting
    assert free == total


def test_decodes_come_first_and_prompts_in_whole_blocks() -> None:
    running = [Row(1, 200, 200, computed=64, blocks=1), Row(2, 10, 12, computed=11, blocks=1)]
    step = schedule(running, [], 10, Limits(64 + 4, 4))
    assert step.items == [Item(2, 11, 1), Item(1, 64, 64)]
    assert pieces(Row(1, 130, 140), 0, 1000) == [Item(1, 0, 64), Item(1, 64, 64), Item(1, 128, 2), Item(1, 130, 10)]
    assert pieces(Row(1, 130, 140), 128, 5) == [Item(1, 128, 2), Item(1, 130, 3)]
    assert pieces(Row(1, 130, 140), 0, 63) == []


def test_the_youngest_gives_way() -> None:
    running = [Row(n, 64, 65, computed=64, blocks=1, own=1) for n in (1, 2, 3)]
    step = schedule(running, [], 0, Limits(80, 8))
    assert step.preempted == [3]  # the first takes its block; the second waits with its own
    assert step.items == [Item(1, 64, 1)]


def test_nobody_is_let_in_who_would_be_thrown_out() -> None:
    running = [Row(1, 64, 64, 300, computed=63, blocks=1, own=1)]
    wants = Row(2, 100, 100, 120)
    assert schedule(running, [wants], 2, Limits(200, 4)).admitted == []  # two blocks, and one is the first's soon
    assert schedule(running, [wants], 3, Limits(200, 4)).admitted == [2]
    hit = Row(2, 100, 100, 120, hits=1)
    assert schedule(running, [hit], 2, Limits(200, 4)).admitted == [2]
    assert schedule([], [wants, Row(3, 1, 1)], 2, Limits(200, 4)).admitted == [2]  # in their order


def test_a_long_prompt_holds_up_no_short_one() -> None:
    """The oldest has a piece of every step, and what comes after it is read by the fewest tokens first."""
    long = Row(1, 10_000, 10_000, computed=640, blocks=10)
    step = schedule([long], [Row(2, 300, 300), Row(3, 5, 5)], 500, Limits(192, 8))
    assert step.admitted == [2, 3]
    assert step.items == [Item(1, 640, 64), Item(3, 0, 5), Item(2, 0, 64)]
    alone = schedule([long], [], 500, Limits(192, 8))
    assert alone.items == [Item(1, 640, 64), Item(1, 704, 64), Item(1, 768, 64)]
