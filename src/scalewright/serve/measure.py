"""What an engine's steps take on this machine, fitted to some hundreds of them.

    random requests, 1 to 32 in flight ──► engine.step() ──► (what it did, seconds), ...
    seconds ~ sum of coefficient x count       coefficients >= 0, least squares of seconds / measured - 1, by medians

Lengths are mixed, so that steps of every kind are met: alone and among others, written tokens and pieces of prompts,
short and long rows. A fifth of the steps is kept apart, and says how far off the fit is.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from scalewright.serve.engine import Engine
from scalewright.serve.request import Request
from scalewright.serve.sampling import Sampling
from scalewright.spec.errors import UserError
from scalewright.spec.serving_cost import ServingCost, Turn, Work, work
from scalewright.spec.tensors import tensors

LEVELS = (1, 2, 4, 8, 16, 32)  # requests in flight
APART = 5  # one step in so many isn't fitted
FEWEST = 60  # steps
SOFT = 0.05  # of an error: beyond it a step counts by its size, not its square


def measure(engine: Engine, seconds: float = 20.0, tell: Callable[[str], None] = lambda text: None) -> ServingCost:
    """The coefficients of an idle engine, from about so many seconds of its steps; raises UserError for too few."""
    rnd, rows = random.Random(0), list[tuple[Work, float]]()
    levels = [level for level in LEVELS if level <= engine.limits.rows]
    _play(engine, rnd, levels[len(levels) // 2], 0.1 * seconds)  # first times apart
    for level in levels:
        tell(f"{level} requests in flight")
        rows += _play(engine, rnd, level, seconds / len(levels))
    if len(rows) < FEWEST:
        how = f"give it more than {seconds:g} s"
        raise UserError(f"{len(rows)} steps are too few to fit", "bench serve", how)
    counts, took = np.array([row for row, _ in rows]), np.array([seconds for _, seconds in rows])
    apart = np.arange(len(rows)) % APART == 0
    off = abs(counts[apart] @ fitted(counts[~apart], took[~apart]) / took[apart] - 1)
    spec, limits = engine.spec, engine.limits
    return ServingCost(
        model=spec.name, params=sum(t.size for t in tensors(spec)), threads=torch.get_num_threads(),
        dtype=str(next(engine.loaded.model.parameters()).dtype).removeprefix("torch."), room=engine.compute.room,
        step_tokens=limits.tokens, max_concurrency=limits.rows, kv_tokens=engine.stats().kv_tokens,
        seconds=dict(zip(Work._fields, fitted(counts, took).tolist(), strict=True)), steps=len(rows),
        error=statistics.median(off.tolist()),
    )  # fmt: skip


def _play(engine: Engine, rnd: random.Random, level: int, seconds: float) -> list[tuple[Work, float]]:
    """Steps with so many requests in flight, and the seconds of each."""
    longest = min(engine.spec.context, engine.settings.kv_blocks * 64 // level, 800)
    rows, sizes, ends = list[tuple[Work, float]](), dict[int, list[int]](), time.perf_counter() + seconds
    while time.perf_counter() < ends:
        while len(sizes) < level:
            new = rnd.randint(2, max(2, min(40, longest // 4)))
            prompt = min(longest - new, round(8 * (longest / 8) ** rnd.random()))
            ids = [rnd.randrange(engine.spec.vocab_size) for _ in range(max(1, prompt))]
            number = engine.add(Request(ids, new, Sampling(0), stop_ids=frozenset()))
            sizes[number] = [len(ids), len(ids)]
        began = time.perf_counter()
        updates = engine.step()
        took = time.perf_counter() - began
        turns = [Turn(item, *sizes[item.number]) for item in engine.last.items]
        rows.append((work(turns, engine.compute.room), took))
        for update in updates:
            sizes[update.number][1] += len(update.tokens)
            if update.finished:
                del sizes[update.number]
    for number in sizes:
        engine.cancel(number)
    return rows


def fitted(counts: np.ndarray, took: np.ndarray) -> np.ndarray:
    """Coefficients >= 0 [K] with which counts [N, K] give about the seconds [N]."""
    scaled, weight = counts / took[:, None], np.ones(len(took))
    for _ in range(12):
        out = _not_negative(scaled * weight[:, None], weight)
        weight = 1 / np.sqrt(np.maximum(abs(scaled @ out - 1), SOFT))
    return out


def _not_negative(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Least squares with numbers >= 0: Lawson and Hanson 1974, ch. 23, from all of them down."""
    size = np.maximum(np.sqrt((a**2).sum(axis=0)), 1e-30)
    kept, out = list(range(a.shape[1])), np.zeros(a.shape[1])
    while kept:
        part = np.linalg.lstsq(a[:, kept] / size[kept], b, rcond=1e-10)[0]
        if (part >= 0).all():
            out[kept] = part / size[kept]
            return out
        del kept[int(part.argmin())]
    return out
