"""The engine: requests come and go, and every step is one forward of all that run.

    add ──► waiting ──┐                                   ┌──► tokens, text ──► Update
                      ├─ schedule ─► pieces ─► forward ─► logits ─► next tokens
            running ──┘     ▲                                        │
               ▲            └────── blocks: taken, shared, returned ◄┤
               └─────────────────────────────────────────────────────┘

What a request gets doesn't depend on what else runs (pages.py, invariant.py, sampling.py): alone, among others,
preempted, with its prefix from the cache or guessed ahead, its logits are the same bits, on a CPU in one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor

from scalewright.model.decoder import Decoder
from scalewright.serve.blocks import Blocks
from scalewright.serve.compute import Compute
from scalewright.serve.drafts import Drafter, Guessed
from scalewright.serve.load import Loaded
from scalewright.serve.pages import Piece
from scalewright.serve.request import Request, Update
from scalewright.serve.sequence import Sequence, logprob
from scalewright.spec.errors import UserError
from scalewright.spec.serving import BLOCK, Item, Limits, Step, blocks_for, forwards, schedule

STRAIGHT = 4  # rows are moved into one piece while a quarter of the blocks is free


@dataclass(frozen=True)
class Settings:
    """How an engine runs."""

    kv_blocks: int = 256  # of 64 tokens
    max_concurrency: int = 32
    step_tokens: int = 160  # of a step: a forward of two blocks of prompts and 32 written tokens
    prefix_cache: bool = True
    drafter: Drafter | None = None
    mtp: bool = False  # the model's own prediction module guesses


@dataclass(frozen=True)
class Stats:
    """Counts since the engine began, and what is now."""

    waiting: int
    running: int
    blocks: int
    blocks_used: int  # held by rows
    blocks_cached: int  # held by none, kept for their prefixes
    prompt_tokens: int
    prefix_tokens: int  # of them from the prefix cache
    generated_tokens: int
    drafted_tokens: int
    accepted_tokens: int  # of the drafted
    preempted: int
    block_size: int
    kv_tokens: int
    max_model_len: int  # tokens of a request for which the model was made, where the cache has room for them
    max_concurrency: int
    invariant: bool


@dataclass
class _Counts:
    prompt_tokens: int = 0
    prefix_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preempted: int = 0


class Engine:
    """Serves requests with one model; not to be used by several threads at once. `close` gives the model back."""

    def __init__(self, loaded: Loaded, settings: Settings | None = None, compute: Compute | None = None) -> None:
        model = loaded.model
        if not isinstance(model, Decoder):
            raise UserError("a module of your own has no paged cache", "serve", "use `generate`")
        self.loaded, self.spec, self.settings = loaded, model.spec, settings or Settings()
        rows = self.settings.max_concurrency
        self.limits = Limits(max(self.settings.step_tokens, rows + BLOCK), rows)
        self.blocks = Blocks(self.settings.kv_blocks)
        self.compute = Compute(model, self.settings.kv_blocks) if compute is None else compute
        self._waiting: dict[int, Sequence] = {}
        self._running: dict[int, Sequence] = {}
        self._numbers, self._counts = 0, _Counts()
        self.last = Step()  # what the last step did

    def close(self) -> None:
        """Stores the model's weights as they were."""
        self.compute.close()

    def add(self, request: Request) -> int:
        """Takes a request; its number. Raises UserError for what can never run."""
        self._check(request)
        self._numbers += 1
        sequence = Sequence(self._numbers, request, self.loaded)
        self._waiting[sequence.number] = sequence
        self._counts.prompt_tokens += sequence.prompt
        return sequence.number

    def cancel(self, number: int) -> None:
        """Forgets a request, and returns its blocks; nothing for one that isn't there."""
        if (sequence := self._running.pop(number, None)) is not None:
            self.blocks.release(sequence.table)
        self._waiting.pop(number, None)

    def check(self) -> None:
        """Raises RunError where a process that computes has ended: for an engine with nothing to do."""
        self.compute.check()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self._waiting or self._running)

    def step(self) -> list[Update]:
        """One step: a forward of what is scheduled, and the tokens that it gave."""
        waiting = [self._waiting[number] for number in sorted(self._waiting)]
        shared = {s.number: self._hits(s) for s in waiting[: self.limits.rows]}
        rows = [s.row(*self._row_facts(shared.get(s.number, []))) for s in waiting[: self.limits.rows]]
        held = [s.row(own=sum(self.blocks.counts[b] == 1 for b in s.table)) for s in self._running.values()]
        self.last = step = schedule(held, rows, self.blocks.available, self.limits)
        for number in step.preempted:
            self._preempt(self._running.pop(number))
        for number in step.admitted:
            self._admit(self._waiting.pop(number), shared[number])
        self._take_blocks(step.items)
        updates = self._forward(step.items)
        for update in updates:
            if update.finished is not None:
                self.blocks.release(self._running.pop(update.number).table)
        self._draft()
        return updates

    def run(self) -> Iterator[Update]:
        """Steps until nothing is left."""
        while not self.idle:
            yield from self.step()

    def room(self, prompt: int) -> int:
        """How many tokens may follow a prompt of so many."""
        spec, cache = self.spec, self.settings.kv_blocks * BLOCK
        return max(0, min(cache, spec.learned_positions if spec.positions == "learned" else cache) - prompt)

    def stats(self) -> Stats:
        """What is now, and counts since the beginning."""
        kept, total = len(self.blocks.kept), self.settings.kv_blocks
        return Stats(
            waiting=len(self._waiting), running=len(self._running), blocks=total,
            blocks_used=total - self.blocks.available, blocks_cached=kept, block_size=BLOCK, kv_tokens=total * BLOCK,
            max_concurrency=self.limits.rows, max_model_len=min(total * BLOCK, self.spec.context),
            invariant=self.compute.invariant, **vars(self._counts),
        )  # fmt: skip

    def picture(self) -> dict[str, Any]:
        """The batch and the blocks as they are, for the page."""
        states = [(s, "waiting") for s in self._waiting.values()]
        states += [(s, "prefill" if s.computed < s.prompt else "decode") for s in self._running.values()]
        rows = [
            {"number": s.number, "state": state, "tokens": len(s.tokens), "of": s.limit, "blocks": list(s.table)}
            for s, state in sorted(states, key=lambda pair: pair[0].number)
        ]
        return {
            "blocks": self.settings.kv_blocks, "block_size": BLOCK, "requests": rows, "cached": self.blocks.kept,
            "batch": [{"number": i.number, "start": i.start, "count": i.length} for i in self.last.items],
        }  # fmt: skip

    def _check(self, request: Request) -> None:
        """Raises UserError for a request that can't run, before any of it does."""
        prompt, new, spec = request.prompt, request.max_new_tokens, self.spec
        if not prompt:
            raise UserError("the prompt has no tokens", "prompt", "write a prompt")
        if new < 1:
            raise UserError(f"max_new_tokens is {new}", "generate", "use 1 or more")
        beyond = [token for token in prompt if not 0 <= token < spec.vocab_size]
        if beyond:
            problem = f"token {beyond[0]} is outside the model's vocabulary of {spec.vocab_size}"
            raise UserError(problem, "prompt", "use the tokenizer that the model was trained with")
        total, rows = len(prompt) + new, spec.learned_positions
        asked = f"a prompt of {len(prompt)} tokens and {new} new ones need"
        if spec.positions == "learned" and total > rows:
            how = f"use max_new_tokens {max(rows - len(prompt), 0)} or less, or a shorter prompt"
            raise UserError(f"{asked} {total} positions; the model has learned {rows}", "max_tokens", how)
        if blocks_for(total) > self.settings.kv_blocks:
            problem = f"{asked} room for {total:,} tokens; the cache has {self.settings.kv_blocks * BLOCK:,}"
            raise UserError(problem, "max_tokens", "ask for fewer, or start with a larger --kv-memory")

    def _hits(self, sequence: Sequence) -> list[int]:
        """The blocks of its prefix that the cache has."""
        out = list[int]()
        if self.settings.prefix_cache:
            for index in range(sequence.shareable):
                tokens = sequence.tokens[index * BLOCK : (index + 1) * BLOCK]
                if (block := self.blocks.lookup(sequence.keys[index], tokens)) is None:
                    break
                out.append(block)
        return out

    def _row_facts(self, hits: list[int]) -> tuple[int, int, int]:
        """(own, hits, idle hits) of a row that waits."""
        return 0, len(hits), sum(self.blocks.is_idle(block) for block in hits)

    def _admit(self, sequence: Sequence, hits: list[int]) -> None:
        for block in hits:
            self.blocks.share(block)
        sequence.table, sequence.computed = list(hits), len(hits) * BLOCK
        sequence.registered, sequence.cached = len(hits), len(hits) * BLOCK
        self._counts.prefix_tokens += sequence.cached
        self._running[sequence.number] = sequence

    def _preempt(self, sequence: Sequence) -> None:
        """Returns its blocks; its tokens are computed again when its turn comes."""
        self.blocks.release(sequence.table)
        sequence.table, sequence.computed, sequence.registered, sequence.drafts = [], 0, 0, []
        self._waiting[sequence.number] = sequence
        self._counts.preempted += 1

    def _take_blocks(self, items: list[Item]) -> None:
        for item in items:
            sequence = self._running[item.number]
            for _ in range(sequence.missing_blocks(item.end)):
                left = blocks_for(sequence.limit) - len(sequence.table)
                sequence.table.append(self.blocks.take(sequence.table[-1] if sequence.table else None, max(1, left)))
        for number in {item.number for item in items}:
            self._straighten(self._running[number])

    def _straighten(self, sequence: Sequence) -> None:
        """Moves a row whose blocks lie apart into one piece, where there is room to spare."""
        table, length = sequence.table, len(sequence.table)
        apart = any(b - a != 1 for a, b in pairwise(table))
        if not apart or self.blocks.available - length < self.settings.kv_blocks // STRAIGHT:
            return
        if (run := self.blocks.take_run(length)) is None:
            return
        full = blocks_for(sequence.computed)
        self.compute.copy(table[:full], run[:full])
        self.blocks.release(table)
        sequence.table = run

    def _forward(self, items: list[Item]) -> list[Update]:
        """Computes items, in forwards of at most 191 rows; the updates of rows that got tokens."""
        updates = dict[int, Update]()
        for group in forwards(items, self.compute.room):
            pieces, tokens = list[Piece](), list[int]()
            for item in group:
                sequence = self._running[item.number]
                pieces.append(Piece(tuple(sequence.table), item.start, item.length, sequence.prompt))
                tokens += (sequence.tokens + sequence.drafts)[item.start : item.end]
            wanted = [self._first_wanted(item) for item in group]
            starts = list(accumulate((item.length for item in group), initial=0))
            rows = [
                row
                for item, first, start in zip(group, wanted, starts, strict=False)
                for row in range(start + first - item.start, start + item.length)
            ]
            logits = self.compute.forward(tokens, pieces, rows)
            self._next_tokens(group, wanted, logits, updates)
            if self.settings.mtp:
                self._predict(group, starts)
        return list(updates.values())

    def _first_wanted(self, item: Item) -> int:
        """The first token of an item from which on logits are needed; its end where they aren't."""
        sequence = self._running[item.number]
        all_of_it = sequence.request.prompt_logprobs and item.start < sequence.prompt
        return min(item.end, item.start if all_of_it else max(item.start, len(sequence.tokens) - 1))

    def _next_tokens(self, group: list[Item], wanted: list[int], logits: Tensor, updates: dict[int, Update]) -> None:
        """Counts what was computed, and takes what follows from the logits [rows, V]."""
        likeliest, at = logits.argmax(dim=-1).tolist() if len(logits) else [], 0
        for item, first in zip(group, wanted, strict=True):
            sequence, count = self._running[item.number], item.end - first
            sequence.computed = item.end
            self._register(sequence)
            if count:
                self._follow(sequence, first, logits[at : at + count], likeliest[at : at + count], updates)
            at += count

    def _predict(self, group: list[Item], starts: list[int]) -> None:
        """Runs the prediction module over the tokens whose next ones are there by now, and keeps its guesses."""
        rows, following, pieces, asked = list[int](), list[int](), list[Piece](), list[tuple[int, Sequence]]()
        for item, start in zip(group, starts, strict=False):
            sequence = self._running[item.number]
            end = min(item.end, len(sequence.tokens) - 1)
            if end <= item.start:
                continue
            rows += range(start, start + end - item.start)
            following += sequence.tokens[item.start + 1 : end + 1]
            pieces.append(Piece(tuple(sequence.table), item.start, end - item.start, sequence.prompt))
            if end == len(sequence.tokens) - 1 and sequence.may_guess:
                asked.append((len(rows) - 1, sequence))
        if rows:
            guesses = self.compute.guess(rows, following, pieces, [row for row, _ in asked])
            for (_, sequence), guess in zip(asked, guesses, strict=True):
                sequence.drafts = [guess]

    def _follow(
        self, sequence: Sequence, first: int, logits: Tensor, likeliest: list[int], updates: dict[int, Update]
    ) -> None:
        """Takes the token behind each of a row's tokens from `first` on, as long as its guesses hold."""
        request, count = sequence.request, len(sequence.tokens)
        if request.prompt_logprobs and first < sequence.prompt - 1:
            upto = min(first + len(logits), sequence.prompt - 1)
            for token in range(max(first, len(sequence.prompt_logprobs) - 1), upto):  # a preempted row has some
                following = sequence.tokens[token + 1]
                sequence.prompt_logprobs.append(logprob(logits[token - first], following, request.logprobs or 0))
        if first + len(logits) < count:
            return
        update = updates.setdefault(sequence.number, Update(sequence.number))
        if count == sequence.prompt:
            update.cached = sequence.cached
            update.prompt_logprobs = sequence.prompt_logprobs if request.prompt_logprobs else None
        drafts, sequence.drafts = sequence.drafts[: first + len(logits) - count], []
        self._counts.drafted_tokens += len(drafts)
        for index in range(count - 1 - first, len(logits)):
            token = likeliest[index] if sequence.plain else sequence.choose(logits[index])
            sequence.add(token, update, logits[index])
            self._counts.generated_tokens += 1
            guess = len(sequence.tokens) - 1 - count
            if update.finished is not None or guess >= len(drafts) or drafts[guess] != token:
                break
            self._counts.accepted_tokens += 1
        sequence.computed = len(sequence.tokens) - 1

    def _register(self, sequence: Sequence) -> None:
        """Lets others have the whole blocks of its prompt that are computed."""
        if not self.settings.prefix_cache:
            return
        while (sequence.registered + 1) * BLOCK <= min(sequence.computed, sequence.prompt):
            index = sequence.registered
            if index < len(sequence.keys):
                tokens = sequence.tokens[index * BLOCK : (index + 1) * BLOCK]
                self.blocks.register(sequence.table[index], sequence.keys[index], tokens)
            sequence.registered += 1

    def _draft(self) -> None:
        """Guesses what follows the rows that decode, to be checked in the next step."""
        rows = [s for s in self._running.values() if s.may_guess and s.computed == len(s.tokens) - 1]
        if self.settings.drafter is not None and rows:
            guesses = self.settings.drafter.guess([Guessed(s.number, s.tokens, s.table) for s in rows])
            for sequence, guess in zip(rows, guesses, strict=True):
                sequence.drafts = guess[: sequence.limit - len(sequence.tokens) - 1]
