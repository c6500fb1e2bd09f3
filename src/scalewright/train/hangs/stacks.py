"""A stuck rank's file in the run's folder: `hangs/rank-00001.txt`, every thread's stack, and
`rank-00001.json`, the last collectives from torch's flight recorder."""

from __future__ import annotations

import faulthandler
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from scalewright.train.hangs.position import flights
from scalewright.train.hangs.verdict import Position


class Stacks:
    """One rank's two files. A folder that can't be written to is no reason to stop watching."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.name = folder, f"rank-{rank:05d}"

    def write(self, here: Position) -> None:
        """Writes the stacks of all threads, and the collectives without their lines of source."""
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / f"{self.name}.txt", "w", encoding="utf-8") as file:
                waits = f", in {here.waiting.describe()}" if here.waiting else ""
                file.write(f"rank {here.rank} after step {here.step} ({here.phase}), at {here.where}{waits}\n\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
            self._write_collectives(json.dumps(flights()))

    def write_source_lines(self, stuck: Callable[[], bool]) -> None:
        """Writes the collectives with their lines of source, if the rank is still stuck when these are had:
        torch may take seconds for them."""
        with suppress(OSError):
            entries = json.dumps(flights(stacks=True))
            if stuck():
                self._write_collectives(entries)

    def _write_collectives(self, entries: str) -> None:
        (self.folder / f"{self.name}.json").write_text(entries, encoding="utf-8")
