"""What the next forward computes: a pure function of the rows that run, those that wait, and the free blocks.

    running  3: 210 of 210 + 1   decodes        ──► (3, start 210, 1 token)
             5:  64 of 500       reads on       ──► (5, start  64, 64 tokens), (5, start 128, 64 tokens)
    waiting  8:   0 of  90       is let in, if the blocks of its whole prompt are free

One step has a budget of tokens. Rows that decode come first, so that a long prompt doesn't hold up their next tokens;
then the oldest prompt has a piece; what is left goes to those with the fewest tokens to read, so that a long one holds
up no short one. Pieces are whole blocks that begin at multiples of one: how a prompt is cut depends on nothing else
that runs. (Agrawal et al. 2024, arXiv 2403.02310 §4; Yu et al. 2022, OSDI, §4.)

Where a row needs a block and none is free, the youngest row gives up all of its own, waits at the front, and is
computed again later (Kwon et al. 2023, arXiv 2309.06180 §4.5). The oldest row never does, and goes on in every step:
nothing starves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

BLOCK = 64  # tokens of a block, of a chunk of a prompt, and the unit in which prefixes are shared


def blocks_for(tokens: int) -> int:
    """How many blocks hold so many tokens."""
    return -(-tokens // BLOCK)


@dataclass(frozen=True)
class Limits:
    """How much runs at once."""

    tokens: int = 160  # of a step
    rows: int = 32  # that run

    def __post_init__(self) -> None:
        assert self.tokens >= self.rows + BLOCK, "a step must have room for a token of every row and for a block"


@dataclass(frozen=True)
class Row:
    """A request, as its turn depends on it."""

    number: int  # lower: came earlier
    prompt: int  # tokens
    tokens: int  # of the prompt, and those written so far
    limit: int = 1 << 60  # tokens that it may have in the end
    computed: int = 0  # tokens whose keys and values are in the cache
    blocks: int = 0  # in its table
    own: int = 0  # of them those that nobody else holds
    drafts: int = 0  # guesses of the tokens behind the last
    idle_hits: int = 0  # blocks of its prefix that are kept, and count as free until it takes them
    hits: int = 0  # blocks of its prefix that the cache has, idle or held by others

    @property
    def decodes(self) -> bool:
        """Whether only its last token isn't in the cache."""
        return self.computed == self.tokens - 1 and self.computed >= self.prompt

    def missing(self, count: int) -> int:
        """Blocks that it lacks for `count` tokens more; guesses that failed may have left it one."""
        return max(0, blocks_for(self.computed + count) - self.blocks)

    @property
    def soon(self) -> int:
        """The tokens that it will have a block from now."""
        return min(self.tokens + BLOCK, max(self.limit, self.tokens))


class Item(NamedTuple):
    """Tokens of one row that a forward computes: a piece of its prompt, or tokens that it wrote."""

    number: int
    start: int
    length: int

    @property
    def end(self) -> int:
        """Behind its last token."""
        return self.start + self.length


@dataclass
class Step:
    """What to do next, in this order: take back, let in, compute."""

    preempted: list[int] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)


def schedule(running: Sequence[Row], waiting: Sequence[Row], free: int, limits: Limits) -> Step:
    """The next step; `free`: blocks that no row holds. `waiting` comes in the order of turns."""
    step, budget = Step(), limits.tokens
    alive = sorted(running, key=lambda row: row.number)
    decoding = [row for row in alive if row.decodes]
    reading = [row for row in alive if not row.decodes]
    spare = max(0, budget - len(decoding) - (BLOCK if reading or waiting else 0))
    for row in decoding:
        if row.number in step.preempted:
            continue
        drafts = min(row.drafts, spare)
        more = row.missing(1 + drafts)
        if more > free and drafts:
            drafts, more = 0, row.missing(1)
        free = _make_room(step, alive, row, more, free)
        if more > free:
            continue
        step.items.append(Item(row.number, row.computed, 1 + drafts))
        free, budget, spare = free - more, budget - 1 - drafts, spare - drafts
    begun = {row.number: (row.computed, row.blocks) for row in reading}
    for row in reading[:1]:
        if row.number not in step.preempted:
            first = pieces(row, row.computed, budget)[:1]
            free = _make_room(step, alive, row, row.missing(sum(piece.length for piece in first)), free)
            begun[row.number], free, budget = _take(step, first, row.blocks, free, budget, row.computed)
    if not step.preempted:
        for row in _admitted(step, alive, waiting, free, limits):
            begun[row.number], free = (row.hits * BLOCK, row.hits), free - row.idle_hits
            reading.append(row)
    for row in sorted(reading, key=lambda row: (row.tokens - begun[row.number][0], row.number)):
        if row.number not in step.preempted:
            start, blocks = begun[row.number]
            _, free, budget = _take(step, pieces(row, start, budget), blocks, free, budget, start)
    return step


def pieces(row: Row, start: int, budget: int) -> list[Item]:
    """What of a row's tokens from `start` on fits into the budget: whole blocks of its prompt, then what it wrote."""
    out = list[Item]()
    while start < row.prompt:
        count = min((start // BLOCK + 1) * BLOCK, row.prompt) - start
        if count > budget:
            return out
        out.append(Item(row.number, start, count))
        start, budget = start + count, budget - count
    count = min(row.tokens - start, budget)
    return [*out, Item(row.number, start, count)] if count > 0 else out


def _take(
    step: Step, items: Sequence[Item], blocks: int, free: int, budget: int, start: int
) -> tuple[tuple[int, int], int, int]:
    """Adds a row's pieces as far as blocks are free; ((where it is then, its blocks), free blocks, budget)."""
    for item in items:
        more = max(0, blocks_for(item.end) - blocks)
        if more > free:
            break
        step.items.append(item)
        free, blocks, budget, start = free - more, blocks + more, budget - item.length, item.end
    return (start, blocks), free, budget


def _make_room(step: Step, alive: list[Row], row: Row, more: int, free: int) -> int:
    """Takes back the blocks of rows younger than `row`, the youngest first, until `more` are free; the free ones."""
    while more > free:
        younger = [r for r in alive if r.number > row.number and r.number not in step.preempted]
        if not younger:
            return free
        last = younger[-1]
        step.preempted.append(last.number)
        end = max((item.end for item in step.items if item.number == last.number), default=0)
        step.items = [item for item in step.items if item.number != last.number]
        free += last.own + max(0, blocks_for(end) - last.blocks)
    return free


def _admitted(step: Step, alive: Sequence[Row], waiting: Sequence[Row], free: int, limits: Limits) -> Iterator[Row]:
    """Lets rows in, in their order, while the blocks of their prompts are free beside what earlier rows will need:
    all of their own prompts, and a block each to go on."""
    planned = {row.number: row.blocks for row in alive}
    for item in step.items:
        planned[item.number] = max(planned[item.number], blocks_for(item.end))
    owed = sum(max(0, blocks_for(row.soon) - planned[row.number]) for row in alive)
    for row in waiting[: max(0, limits.rows - len(alive))]:
        if blocks_for(row.tokens) - row.hits + row.idle_hits + owed > free:
            return
        step.admitted.append(row.number)
        free -= row.idle_hits
        owed += max(0, blocks_for(row.soon) - row.hits)
        yield row


def forwards(items: list[Item], room: int) -> Iterator[list[Item]]:
    """Items of one forward each, of at most `room` tokens; a piece of a prompt isn't cut."""
    group, size = list[Item](), 0
    for item in items:
        start = item.start
        while (end := item.end) > start:
            if size == room:
                yield group
                group, size = [], 0
            count = min(end - start, room - size) if item.length > BLOCK else end - start
            if size + count > room:
                yield group
                group, size = [], 0
                continue
            group.append(Item(item.number, start, count))
            start, size = start + count, size + count
    if group:
        yield group
