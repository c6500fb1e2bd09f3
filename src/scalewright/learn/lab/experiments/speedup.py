"""Amdahl and Gustafson on processes: a part of a job that only one can do, and the rest shared out.

    Amdahl     speed-up = 1 / (s + (1 - s) / n)       the same job on n                 never above 1 / s
    Gustafson  scaled   = s + (1 - s) n               n times the shared work on n      the serial part stays

s is timed on one process, then both speed-ups are expected of two; a core that another process uses would be missing.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from scalewright.learn.lab.bench import Bench
from scalewright.learn.lab.outcome import Curve, Outcome, Value, curves, table
from scalewright.learn.speedup import amdahl, amdahl_limit, gustafson, serial_share
from scalewright.spec.common.formatting import short_time

if TYPE_CHECKING:
    from scalewright.launch.rank import RankContext

SERIAL, SHARED = 30, 90  # products that one process does alone, and that all share
SIDE = 256
NOISE = "two processes share caches, memory and the clock's boost"


def run(bench: Bench) -> Outcome:
    """The job on one process and on two, the same and scaled."""
    repeats = 3 if bench.short else 9
    names = {"one": (1, SHARED), "two": (2, SHARED), "two, twice the work": (2, 2 * SHARED)}
    took = bench.each(names, lambda name: bench.ranks(measure, *names[name], repeats), timed=True)
    share = took["one"]["serial"] / took["one"]["all"]
    speedup = took["one"]["all"] / took["two"]["all"]
    alone = took["one"]["serial"] + 2 * (took["one"]["all"] - took["one"]["serial"])  # of the scaled job on one
    scaled = alone / took["two, twice the work"]["all"]
    values = [
        Value("two processes, the same job: speed-up", speedup, amdahl(share, 2), "times", "1 / (s + (1 - s) / n)",
              0.15,
              NOISE, timed=True),
        Value("two processes, a scaled job: speed-up", scaled, gustafson(share, 2), "times", "s + (1 - s) n", 0.15,
              NOISE, timed=True),
    ]  # fmt: skip
    fitted = serial_share(speedup, 2) if speedup > 1 else 1.0
    counts = (1, 2, 4, 8, 16, 64, 256, 1024)
    lines = [
        Curve("measured, the same job", [(1, 1.0), (2, speedup)]),
        Curve("Amdahl", [(n, amdahl(share, n)) for n in counts], expected=True),
        Curve("Gustafson", [(n, gustafson(share, n)) for n in counts], expected=True),
    ]
    rows = [[name, short_time(row["serial"]), short_time(row["all"])] for name, row in took.items()]
    return Outcome(
        values,
        [curves("speed-up by processes", "processes", "times", lines, log="xy"),
         table("medians", ["job", "serial part", "all of it"], rows)],
        [f"the serial share was timed as {share:.1%}, and is {fitted:.1%} by the speed-up; its limit is "
         f"{amdahl_limit(share):.1f} times"],
    )  # fmt: skip


def measure(context: RankContext, shared: int, repeats: int) -> dict[str, Any]:
    """Medians of the serial part and of the whole job, from barrier to barrier."""
    import torch
    import torch.distributed as dist

    from scalewright.bench.world import joined

    with joined(context, "cpu"):
        x = torch.ones(SIDE, SIDE)
        serial, whole = [], []
        for _ in range(repeats + 1):
            dist.barrier()
            begun = time.perf_counter()
            if context.rank == 0:
                for _ in range(SERIAL):
                    x @ x
            dist.barrier()
            between = time.perf_counter()
            for _ in range(shared // context.world):
                x @ x
            dist.barrier()
            serial.append(between - begun)
            whole.append(time.perf_counter() - begun)
    return {"serial": statistics.median(serial[1:]), "all": statistics.median(whole[1:])}
