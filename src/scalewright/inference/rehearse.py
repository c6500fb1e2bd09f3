"""A server's load played in advance: its own schedule, and in place of the model what its steps were measured to take.

    arrivals ──► waiting ──┐                        clock += seconds of the step (serving_cost.py)
                           ├─ schedule ──► turns ───┤
                running ───┘     ▲                  └──► computed tokens; a row's first, next and last token
                                 └── free blocks

A rate's requests come at random: the gaps between them are the exponential distribution's quantiles, shuffled, so that
every play has the stated rate. Played several times; a number is the median over plays, its band their range.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.inference.ask import Wanted
from scalewright.inference.load import ENDLESS, Load
from scalewright.inference.setup import Question
from scalewright.spec.base import read_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.serving import BLOCK, Limits, Row, blocks_for, schedule
from scalewright.spec.serving_cost import ServingCost, Turn, work
from scalewright.spec.tensors import tensors

PLAYS, REQUESTS = 5, 120
MOST_TOKENS = 60_000  # that a play writes: some seconds
WARM = 5  # a fifth of a play's requests, its first, find an engine that is still filling


@dataclass
class Visit:
    """A request, from its arrival to its last token."""

    number: int
    prompt: int
    new: int
    came: float = 0.0
    written: int = 0
    computed: int = 0
    blocks: int = 0
    first: float = 0.0
    last: float = 0.0

    @property
    def tokens(self) -> int:
        """Of its prompt, and those written so far."""
        return self.prompt + self.written

    def row(self) -> Row:
        """As the schedule sees it."""
        return Row(
            self.number, self.prompt, self.tokens, self.prompt + self.new, self.computed, self.blocks, own=self.blocks
        )


def gaps(number: int, rate: float, seed: int) -> list[float]:
    """Seconds between arrivals: quantiles of the exponential distribution with this mean rate, in random order."""
    out = [-math.log(1 - (place + 0.5) / number) / rate for place in range(number)]
    random.Random(seed).shuffle(out)
    return out


def play(server: ServingCost, visits: Sequence[Visit], at_once: int | None = None) -> float:
    """Serves all of them; seconds to the end. With `at_once` a request comes whenever fewer are in flight."""
    limits = Limits(max(server.step_tokens, server.max_concurrency + BLOCK), server.max_concurrency)
    free, clock = server.kv_tokens // BLOCK, 0.0
    todo, waiting, running = list(visits)[::-1], dict[int, Visit](), dict[int, Visit]()
    while todo or waiting or running:
        while todo and (todo[-1].came <= clock if at_once is None else len(waiting) + len(running) < at_once):
            visit = todo.pop()
            visit.came = visit.came if at_once is None else clock
            waiting[visit.number] = visit
        if not (waiting or running):
            clock = todo[-1].came
            continue
        ready = [waiting[number].row() for number in sorted(waiting)[: limits.rows]]
        step = schedule([visit.row() for visit in running.values()], ready, free, limits)
        for number in step.preempted:
            visit = waiting[number] = running.pop(number)
            free, visit.blocks, visit.computed = free + visit.blocks, 0, 0
        for number in step.admitted:
            running[number] = waiting.pop(number)
        turns = [Turn(item, running[item.number].prompt, running[item.number].tokens) for item in step.items]
        clock += server.of(work(turns, server.room))
        for item in step.items:
            visit = running[item.number]
            more = max(0, blocks_for(item.end) - visit.blocks)
            free, visit.blocks, visit.computed = free - more, visit.blocks + more, item.end
            if visit.computed < visit.tokens:
                continue
            visit.first = visit.first if visit.written else clock
            visit.written, visit.last = visit.written + 1, clock
            if visit.written == visit.new:
                free += visit.blocks
                del running[visit.number]
    return clock


def read_server(source: str | Path | Mapping[str, Any]) -> ServingCost:
    """A server as `bench serve` wrote it; raises UserError."""
    where = "measured" if isinstance(source, Mapping) else str(source)
    keys = dict(source) if isinstance(source, Mapping) else read_yaml(source)
    if "seconds" not in keys:
        how = "`scalewright bench serve MODEL --out FILE` makes one"
        raise UserError("it isn't what `bench serve` writes", where, how)
    return ServingCost.parse(keys, where)


def as_measured(given: Wanted, server: ServingCost, searched: bool) -> Wanted:
    """The question about that server: its engine, precision and places; raises UserError for another one's."""
    for key, value in (
        ("search", searched), ("layout", given.layout), ("prefix_hit", given.prefix_hit),
        ("speculate", given.speculate), ("engine", given.engine not in (None, "scalewright")),
    ):  # fmt: skip
        if value:
            flag = "--" + key.replace("_", "-")
            raise UserError(f"{flag} asks for another server than the measured one", "--measured", "keep one of them")
    precision = {"float32": "fp32", "bfloat16": "bf16"}.get(server.dtype, server.dtype)
    return replace(
        given, engine="scalewright", precision=given.precision or precision, layout={"tp": 1},
        kv_precision=given.kv_precision or precision, max_seqs=given.max_seqs or server.max_concurrency,
    )  # fmt: skip


def rehearsed(q: Question, asked: Load, server: ServingCost) -> dict[str, Any]:
    """The keys of an answer that a rehearsal gives, in the place of a roofline's; raises UserError."""
    if (params := sum(tensor.size for tensor in tensors(q.model))) != server.params:
        how = "measure this model: `scalewright bench serve`"
        raise UserError(f"it is of {server.model}, {server.params:,} parameters, not {params:,}", "--measured", how)
    if asked.kind == "target":
        raise UserError("it has no load", "--measured", "give --rate or --concurrency")
    server = server.replace(max_concurrency=q.slots) if q.slots else server
    prompt, new = max(1, round(q.input_len)), max(1, round(q.output_len))
    if blocks_for(prompt + new) * BLOCK > server.kv_tokens:
        how = "give shorter requests, or measure a server with a larger --kv-memory"
        raise UserError(f"{prompt + new:,} tokens don't fit its cache of {server.kv_tokens:,}", "--measured", how)
    number = max(8, min(REQUESTS, MOST_TOKENS // new))
    seeds = range(PLAYS if asked.kind == "rate" else 1)  # nothing else is random
    plays = [_played(server, asked, prompt, new, number, seed) for seed in seeds]
    names = [key for key in ("ttft_s", "tpot_s") if key in plays[0]]
    bands: dict[str, Any] = {key: _band([row[key]["p50"] for row in plays]) for key in names}
    full = Load("closed", server.max_concurrency)
    highest = _played(server, full, prompt, new, max(number, 3 * server.max_concurrency), 0)["requests_per_s"]
    over = asked.kind == "rate" and asked.number >= highest
    rates = [min(asked.number, highest)] if asked.kind == "rate" else [row["requests_per_s"] for row in plays]
    rate = _band(rates)
    out = {key: value * new for key, value in rate.items()}
    return {
        **bands, "requests_per_s": rate, "output_tokens_per_s": out, "output_tokens_per_s_per_device": out["p50"],
        "total_tokens_per_s": rate["p50"] * (prompt + new), "overloaded": over,
        "rehearsed": {
            "requests": number, "plays": len(plays), "step_error": server.error, "highest_requests_per_s": highest,
            **{key: {q: float(np.median([row[key][q] for row in plays])) for q in plays[0][key]} for key in names},
        },
    }  # fmt: skip


def _played(server: ServingCost, asked: Load, prompt: int, new: int, number: int, seed: int) -> dict[str, Any]:
    """What the requests of one play meet, the first of them left out."""
    visits = [Visit(place, prompt, new) for place in range(number)]
    closed = asked.kind == "closed"
    if not closed:
        visits = [Visit(n, prompt, new, float(at)) for n, at in enumerate(np.cumsum(gaps(number, asked.number, seed)))]
    seconds = play(server, visits, round(min(asked.number, ENDLESS)) if closed else None)
    return {**latencies(visits[number // WARM :]), "requests_per_s": number / seconds}


def _band(values: Sequence[float]) -> dict[str, float]:
    """p10, p50, p90 over plays."""
    return {f"p{q}": float(np.quantile(values, q / 100)) for q in (10, 50, 90)}


def latencies(visits: Sequence[Visit]) -> dict[str, Any]:
    """Seconds to the first token, and of each further one, of requests that were served."""
    first = np.array([visit.first - visit.came for visit in visits])
    further = np.array([(visit.last - visit.first) / (visit.new - 1) for visit in visits if visit.new > 1])
    out: dict[str, Any] = {}
    for name, values in (("ttft_s", first), ("tpot_s", further)):
        if len(values):
            quantiles = {f"p{q}": float(np.quantile(values, q / 100)) for q in (50, 90, 99)}
            out[name] = {"mean": float(values.mean()), **quantiles}
    return out
