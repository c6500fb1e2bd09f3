"""How fast the planner is: searches, layouts priced in full, and rows of a table, per second of one core.

    python comparisons/planner_speed.py            medians of five; half a minute
    python comparisons/planner_speed.py --quick    one of each, smaller

CPU seconds stand beside seconds on the clock, since other work on a machine disturbs them less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness.facts import facts
from harness.result import Result, facts_text, table

from scalewright.plan.fitting.runs import MEASURED, read_table
from scalewright.plan.predict import predict_rows
from scalewright.plan.search.axes import make_space
from scalewright.plan.search.objective import Goal, make_objective
from scalewright.plan.search.pricer import make_pricer
from scalewright.plan.search.search import search
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.presets import load_model_spec
from scalewright.spec.question import Question

# name, cluster, devices, sequence length, global batch
SEARCHES: tuple[tuple[str, str, int, int, int], ...] = (
    ("gpt3-175b", "dgx-a100-80g", 4096, 2048, 1536),
    ("llama-3.1-8b", "dgx-h100", 64, 8192, 512),
    ("llama-3.1-70b", "dgx-h100", 512, 8192, 1024),
    ("deepseek-v3", "hgx-h800", 2048, 4096, 15360),
)


def main() -> None:
    """Times everything and writes the result."""
    options = arguments()
    rounds = 1 if options.quick else 5
    result = Result("planner-speed", "How fast the planner is", facts(), options.out)
    result.say(facts_text(result.data["facts"]))
    rows = [searched(entry, rounds, result) for entry in SEARCHES[: 1 if options.quick else None]]
    result.say(table(["search", "layouts", "priced in full", "CPU s", "s", "first, CPU s"], rows))
    some = 20_000 if options.quick else 300_000
    tables = read_table(MEASURED)[: 200 if options.quick else None]
    result.say(
        table(
            ["per second of one core", "many", "a CPU second", "a second"],
            [priced(some, rounds, result), predicted(tables, rounds, result)],
        )
    )
    result.close()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one of each, smaller")
    parser.add_argument("--out", type=Path, default=None, help="folder of the result")
    return parser.parse_args()


def timed(work: Callable[[], Any], rounds: int) -> tuple[Any, list[float], list[float]]:
    """What the work gave, and CPU seconds and seconds of the first call and of `rounds` more."""
    core, clock, found = [], [], None
    for _ in range(rounds + 1):
        began = time.process_time(), time.perf_counter()
        found = work()
        core.append(time.process_time() - began[0])
        clock.append(time.perf_counter() - began[1])
    return found, core, clock


def searched(asked: tuple[str, str, int, int, int], rounds: int, result: Result) -> list[str]:
    """A search's line; the first one of a process fills the caches."""
    name, place, devices, seq_len, batch = asked
    model, cluster = load_model_spec(name), load_cluster(place)

    def work() -> Any:
        return search(Question.of(model, seq_len, cluster), Goal(devices, batch))

    plan, core, clock = timed(work, rounds)
    result.put(name, {"space": plan.space, "priced": plan.priced, "cpu_s": core, "s": clock})
    numbers = [statistics.median(core[1:]), statistics.median(clock[1:]), core[0]]
    return [f"{name}, {devices} devices", f"{plan.space:,}", f"{plan.priced:,}", *(f"{n:.2f}" for n in numbers)]


def priced(many: int, rounds: int, result: Result) -> list[str]:
    """Layouts of the first search's space, time and memory, none left out."""
    name, place, devices, seq_len, batch = SEARCHES[0]
    plan = search(Question.of(load_model_spec(name), seq_len, load_cluster(place)), Goal(devices, batch))
    space = make_space(plan.template, batch, {})
    chip = plan.template.chip
    pricer = make_pricer(space, make_objective("time", chip, devices, None), 0.0)
    bare = space.bare(np.arange(space.cores))
    rows = space.spread_offloads(space.spread_recomputes(space.spread_shards(space.spread_pipes(bare))))
    some = rows.take(np.sort(np.random.default_rng(0).choice(len(rows), min(many, len(rows)), replace=False)))
    _, core, clock = timed(lambda: pricer.price(some), rounds)
    return rates("layouts priced in full", len(some), core, clock, result)


def predicted(rows: list[dict[str, str]], rounds: int, result: Result) -> list[str]:
    """Rows of the bundled table, each as `predict --batch` answers it."""
    _, core, clock = timed(lambda: predict_rows(rows), rounds)
    return rates("rows of a table", len(rows), core, clock, result)


def rates(name: str, many: int, core: list[float], clock: list[float], result: Result) -> list[str]:
    """A line of how many a second, without the first call."""
    result.put(name, {"many": many, "cpu_s": core, "s": clock})
    medians = (statistics.median(core[1:]), statistics.median(clock[1:]))
    return [name, f"{many:,}", *(f"{many / seconds:,.0f}" for seconds in medians)]


if __name__ == "__main__":
    main()
