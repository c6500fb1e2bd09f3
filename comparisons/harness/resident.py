"""Resident memory of a run's ranks while it trains, read from outside: every rank, all along (Linux).

    run_local, or train --processes--> /proc/PID/statm, twice a second    steps: last row of metrics.jsonl

A rank's floor is what a process of its kind holds that has imported the trainer and does nothing.
"""

from __future__ import annotations

import json
import resource
import statistics
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalewright.api import train
from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext
from scalewright.train.run import PRELOAD

MIB = float(2**20)
Sample = tuple[int, list[float]]  # the last step that was written, MiB of each rank


def measure(data: dict[str, Any], pause: float = 0.5) -> list[Sample]:
    """Trains in processes of its own and samples all of its ranks."""
    watch = Watch(Path(data["out_dir"]) / "metrics.jsonl", pause)
    try:
        if data["layout"]["devices"] > 1:
            train(data, quiet=True, on_start=watch.start)
        else:
            run_local(_alone, (data,), 1, preload=PRELOAD, threads=1, on_start=watch.start, import_main=False)
    finally:
        watch.stop()
    return watch.samples


def floor() -> float:
    """MiB of a worker that has imported what it trains with."""
    return float(run_local(_idle, (), 1, preload=PRELOAD, threads=1, import_main=False))


def _alone(context: RankContext, data: dict[str, Any]) -> None:
    train(data, quiet=True)


def _idle(context: RankContext) -> float:
    import scalewright.train.worker  # noqa: F401

    return resident("self")


def resident(process: int | str) -> float:
    """MiB that a process holds in memory now."""
    pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize() / MIB


class Watch:
    """A thread that samples processes until it is stopped, or they are gone."""

    def __init__(self, metrics: Path, pause: float) -> None:
        self.metrics, self.pause = metrics, pause
        self.samples: list[Sample] = []
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, processes: list[int]) -> None:
        """Samples these from now on."""
        self._thread = threading.Thread(target=self._sample, args=(processes,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Waits for the last sample."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self, processes: list[int]) -> None:
        while not self._done.wait(self.pause):
            with suppress(OSError, IndexError):  # one that left has no statm, or an empty one
                held = [resident(process) for process in processes]
                if (step := last_step(self.metrics)) and min(held) > 0:
                    self.samples.append((step, held))


def last_step(metrics: Path) -> int:
    """The last whole training row's step; 0 before the first."""
    with suppress(OSError, ValueError):
        with metrics.open("rb") as file:
            file.seek(max(0, metrics.stat().st_size - 8192))
            lines = file.read().decode(errors="replace").split("\n")[:-1]
        for line in reversed(lines):
            row: dict[str, Any] = json.loads(line)
            if row["kind"] == "train":
                return int(row["step"])
    return 0


def growth(samples: list[Sample], warm: int) -> float:
    """MiB per 1,000 steps of the rank that grows most, from after `warm` steps to the end; of fewer than 500
    steps as if it had been 500, since a single kernel would weigh too much.

    Between the medians of the first and the last fifth of the samples: a save or a validation, which take
    memory for a moment, then weigh the same at both ends.
    """
    later = [sample for sample in samples if sample[0] >= warm]
    part = max(1, len(later) // 5)
    ends = later[:part], later[-part:]
    start, end = (statistics.median(step for step, _ in entry) for entry in ends)
    if end <= start:
        raise ValueError(f"{len(later)} samples after step {warm} are too few")
    before, after = ([statistics.median(rank) for rank in zip(*(h for _, h in entry), strict=True)] for entry in ends)
    return max(b - a for a, b in zip(before, after, strict=True)) * 1000 / max(500, end - start)
