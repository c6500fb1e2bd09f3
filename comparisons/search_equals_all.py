"""The planner's search beside the price of every layout: the same winners, in 200 generated runs.

    python comparisons/search_equals_all.py              200 runs, some five minutes
    python comparisons/search_equals_all.py --cases 20   the first twenty

runs (seeded) ──► search: bounds, a few layouts priced ───────────────┐
              └─► all legal layouts, each whole, by the formulas ─────┴─► first layouts, their order, the front

A run's own space is priced row by row without any bound and without what the search shares between rows. Compared are
all layouts that a plan lists, in their order, up to the search's last cutoff (half as slow again as the best, or less),
and the fastest; of the front within its window the points that it lacks. Exit code 1 where one differs.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from harness.facts import facts
from harness.result import Result, facts_text, table

from scalewright.plan.cost.columns import PricedColumns
from scalewright.plan.cost.memory import memory
from scalewright.plan.cost.timeline import step
from scalewright.plan.search.branch_and_bound import Finder, front_indices
from scalewright.plan.search.objective import Goal
from scalewright.plan.search.pricer import Priced, Pricer
from scalewright.plan.search.search import pareto, prepare
from scalewright.plan.search.shortage import choose
from scalewright.plan.search.space import Rows, Space
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.presets import load_model_spec
from scalewright.spec.question import Question

MODELS = (
    "llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b", "qwen3-8b", "gpt3-175b", "gemma-2-9b",
    "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3",
)  # fmt: skip
CLUSTERS = ("dgx-h100", "dgx-a100-80g", "a100-pcie-40", "dgx-b200", "mi300x", "rtx-4090")
TRAINERS = ("scalewright", "scalewright", "megatron", "torchtitan", "deepspeed", "nemo")
MOST = 250_000  # layouts of a run
BATCH = 8192


@dataclass(frozen=True)
class Case:
    """A run, and what is asked of its plan."""

    model: str
    cluster: str
    trainer: str
    seq_len: int
    goal: Goal


def cases() -> Iterator[Case]:
    """Runs in the order of a fixed seed, without end."""
    rng = random.Random(20261128)
    while True:
        devices = rng.choice((1, 4, 8, 16, 24, 32, 64, 128, 256, 512))
        per_device = rng.choice((1, 2, 4, 8))
        fixed = rng.choice(({}, {}, {}, {"recompute": "full"}, {"zero_stage": [0, 1]}, {"offload": "none"}, {"pp": 1}))
        goal = Goal(
            devices, devices * per_device, rng.choice(("time", "time", "time", "energy")), fixed,
            headroom=rng.choice((None, None, 0.1)), top=rng.choice((1, 5)), margin=rng.choice((0.0, 0.02)),
        )  # fmt: skip
        lengths = (1024, 4096, 8192, 32768)
        yield Case(rng.choice(MODELS), rng.choice(CLUSTERS), rng.choice(TRAINERS), rng.choice(lengths), goal)


def every_row(space: Space) -> Rows:
    """All layouts."""
    rows = space.spread_shards(space.spread_pipes(space.bare(np.arange(space.cores))))
    return space.spread_offloads(space.spread_recomputes(rows))


def price_all(pricer: Pricer) -> Priced:
    """Every layout of a space that fits, priced whole and by itself."""
    rows, parts = every_row(pricer.space), []
    for start in range(0, len(rows), BATCH):
        part = rows.take(slice(start, start + BATCH))
        at = PricedColumns(pricer.space.table(part), pricer.facts, pricer.c, pricer.prices)
        times, usage = step(at), memory(at)
        score = pricer.objective.score(times.parts)
        whole = Priced(part, score, times.seconds, usage.peak, pricer.fits(at, usage), pricer.over(usage))
        parts.append(whole.take(whole.fits))
    return Priced.join(parts)


def names(space: Space, priced: Priced) -> list[dict[str, Any]]:
    """The layouts of rows."""
    return [space.keys(priced.rows, i) for i in range(len(priced))]


def compare(case: Case) -> dict[str, Any] | None:
    """What search and all prices say of a run; null where it has no layout, or too many."""
    question = replace(
        Question.of(load_model_spec(case.model), case.seq_len, load_cluster(case.cluster)), trainer=case.trainer
    )
    try:
        _, finder, _ = prepare(question, case.goal)
    except UserError:
        return None
    if finder.space.size > MOST:
        return None
    began = time.process_time()
    finder.run()
    found, searched = finder.fitting, time.process_time() - began
    everything = price_all(finder.pricer)
    row = {"layouts": finder.space.size, "fit": len(everything), "cpu_s": searched}
    row["all_cpu_s"] = time.process_time() - began - searched
    if not len(everything):
        return {**row, "same": not len(found), "front_lacks": 0}
    goal = case.goal
    near = [some.take(some.score <= finder.cutoff) for some in (found, everything)]
    (ours, first), (theirs, fastest) = (choose(finder, some, goal.top, goal.margin) for some in near)
    same = names(finder.space, ours) == names(finder.space, theirs) and first.score[0] == fastest.score[0]
    close = len(ours) == len(theirs) and bool(np.allclose(ours.score, theirs.score, rtol=1e-9))
    return {**row, "same": bool(same or close), "identical": same, "front_lacks": lacking(finder, found, everything)}


def lacking(finder: Finder, found: Priced, everything: Priced) -> int:
    """Points of the front, within the window, that no layout of the search's own equals or beats."""
    plain = everything.take(everything.rows.offload == 0)  # a front leaves out offload that isn't needed
    near = plain.take(plain.score <= everything.score.min() * finder.window)
    if not len(near):
        return 0
    front, own = near.take(front_indices(near.score, near.peak)), pareto(finder, found, most=10**9)
    beaten = (own.score[:, None] <= front.score * (1 + 1e-6)) & (own.peak[:, None] <= front.peak * (1 + 1e-5))
    return int((~beaten.any(0)).sum())


def main() -> None:
    """Compares, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--out", type=Path, default=None, help="folder of the result")
    options = parser.parse_args()
    result = Result("search-equals-all", "The search beside the price of every layout", facts(), options.out)
    result.say(facts_text(result.data["facts"]))
    rows: list[dict[str, Any]] = []
    for case in cases():
        if (row := compare(case)) is not None:
            rows.append({**vars(case), "goal": repr(case.goal), **row})
            if not row["same"] or row["front_lacks"]:
                print("differs:", rows[-1], flush=True)
        if len(rows) == options.cases:
            break
    result.put("rows", rows)
    sums = {
        key: sum(row.get(key, 0) for row in rows) for key in ("layouts", "fit", "cpu_s", "all_cpu_s", "front_lacks")
    }
    cells = [len(rows), sum(row["same"] for row in rows), f"{sums['layouts']:,}", f"{sums['fit']:,}",
             sums["front_lacks"], f"{sums['cpu_s']:.0f}", f"{sums['all_cpu_s']:.0f}"]  # fmt: skip
    heads = ["runs", "same winners", "layouts", "that fit", "points of fronts missing", "CPU s, search", "CPU s, all"]
    result.say(table(heads, [[str(cell) for cell in cells]]))
    result.close()
    if not all(row["same"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
