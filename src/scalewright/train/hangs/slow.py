"""A rank that is slow for long: all others wait for it, and nothing fails.

    each rank    a step without its waits in collectives = its own work        every 4th step, medians of 20 steps
    gathered     own work of the ranks of a pipeline stage, which have the same to do
    3 times in a row above 1.3 x their median   ──►  event `slow`: rank, host, pid, times; a line

(A rank ahead of the others shows its wait as communication: parallel/timers.py.) Experts that are loaded unevenly make
uneven work, too; then the event says that, and it is true.
"""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import Any

from scalewright.parallel.collectives import gather_json
from scalewright.parallel.mesh import Mesh
from scalewright.train.metrics.record import Record

EVERY, WINDOW = 4, 20  # steps: between measured ones, between comparisons
TIMES, LONG = 1.3, 3  # of the median; comparisons in a row
LEAST_S = 0.02  # of work a step: below it, waking up counts for more than work


class Pace:
    """Compares the ranks' own work; all ranks call `begins` and `took` for every step."""

    def __init__(self, mesh: Mesh, record: Record | None) -> None:
        self.mesh, self.record = mesh, record
        self._here = [socket.gethostname(), os.getpid()]
        self._work: list[float] = []
        self._late: dict[int, int] = defaultdict(int)  # comparisons in a row, by rank
        self._always = mesh.timers.on
        self._compares = mesh.world > 1

    def begins(self, step: int) -> None:
        """Before a step: the one that writes marks all of them."""
        if self._compares and not self._always and step % EVERY == 0:
            self.mesh.timers.start(self.mesh.device)

    def launched(self) -> None:
        """After it, on ranks that mark some steps alone."""
        if self._compares and not self._always:
            self.mesh.timers.stop()

    def took(self, step: int, seconds: float, parts: Mapping[str, float]) -> None:
        """A step's time on this rank, and where it went (empty where it wasn't measured)."""
        if not self._compares:
            return
        if parts and step % EVERY == 0:
            self._work.append(seconds - sum(part for name, part in parts.items() if name.startswith("comm_")))
        if step % WINDOW == 0:
            mine = [median(self._work) if self._work else None, *self._here]
            self._work.clear()
            self._compare(step, gather_json(mine, self.mesh))

    def _compare(self, step: int, ranks: list[list[Any]]) -> None:
        if self.record is None:
            return
        for rank, (times, work) in behind([row[0] for row in ranks], self._stages()).items():
            self._late[rank] = self._late[rank] + 1 if times > TIMES else 0
            if self._late[rank] != LONG:
                continue
            _, host, pid = ranks[rank]
            message = (
                f"rank {rank} (pid {pid} on {host}) has been slow for {LONG * WINDOW} steps: {work:.2g} s of work "
            )
            message += f"a step, {times:.1f} times what the others take, who wait for it"
            about = {"rank": rank, "host": host, "pid": pid, "times": round(times, 3), "work_s": round(work, 4)}
            self.record.event("slow", message, step=step, **about)

    def _stages(self) -> list[int]:
        return [self.mesh.grid.coords(rank)["pp"] for rank in range(self.mesh.world)]


def behind(work: list[float | None], stages: list[int]) -> dict[int, tuple[float, float]]:
    """{rank: (its work over the median of the others of its stage, its work in seconds)}, where there are others."""
    ratios: dict[int, tuple[float, float]] = {}
    for rank, (mine, stage) in enumerate(zip(work, stages, strict=True)):
        others = [w for r, w in enumerate(work) if stages[r] == stage and r != rank and w is not None]
        if mine is not None and others:
            ratios[rank] = mine / max(median(others), LEAST_S), mine
    return ratios
