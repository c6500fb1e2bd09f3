"""Which replicas of a run go on when ranks of others have died, in their processes, and when all are whole again.

    elastic.in_process    4 replicas, rank 2 is killed ─► 0, 1, 3 go on as three; rank 2 is started, and taken in again
    a replica of several  (0 1) (2 3), 3 is killed ─► 0 and 1 go on; 2 keeps its process and waits for 3
    none is whole, the same failure again and again, too many of them: all start again from a save (elastic.py)

What passes between the processes is in launch/regroup.py, what a rank does in regroup.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalewright.spec.common.formatting import counted
from scalewright.spec.elastic import replicas, seated
from scalewright.spec.errors import RunError
from scalewright.spec.layout import Layout
from scalewright.spec.run import RunSpec
from scalewright.train.start import Start


@dataclass
class Replicas:
    """The keeper of a run's local ranks. `start`: what they were started with; `lost` notes a failure, and whether the
    others may go on."""

    start: Start
    lost: Callable[[RunError], bool]
    say: Callable[[str], None]

    @property
    def run(self) -> RunSpec:
        """With the layout of all its seats."""
        return self.start.resolved.run

    @property
    def patience_s(self) -> float:
        """As long as a step may take."""
        return self.run.train.timeouts.steady_s

    @property
    def retry_s(self) -> float:
        """Of `elastic`."""
        return self.run.elastic.retry_s if self.run.elastic is not None else 0.0

    def seats(self, live: Collection[int], first: Collection[int]) -> tuple[int, ...]:
        """The seats of whole replicas, by rank."""
        return self._fitted(live, first)[1]

    def begin(self, seats: Sequence[int], error: RunError | None) -> tuple[Any, ...] | None:
        """What they go on with."""
        began, (layout, _) = time.time(), self._fitted(seats, seats)
        if error is not None and not self.lost(error):
            return None
        assert layout is not None
        self.say(f"{f'{error}: ' if error is not None else ''}{counted(layout.devices, 'ranks')} go on")
        # a run that begins anew in its folder has done so by now
        run = self.run.model_copy(update={"layout": layout, "resume": "auto"})
        asked = self.run.layout if layout.devices != self.run.layout.devices else None
        resolved = replace(self.start.resolved, run=run)
        return (replace(self.start, resolved=resolved, asked=asked, began=began),)

    def _fitted(self, live: Collection[int], first: Collection[int]) -> tuple[Layout | None, tuple[int, ...]]:
        """The layout of the replicas that are whole, and the seat of each of its ranks."""
        islands, elastic = self.run.diloco is not None, self.run.elastic
        sets = list(enumerate(replicas(self.run.layout, islands=islands)))
        whole = [number for number, ranks in sets if set(ranks) <= set(live)]
        whole.sort(key=lambda number: not set(sets[number][1]) <= set(first))
        fitted = seated(self.run.layout, whole, islands=islands)
        if fitted is None or fitted[0].devices < (elastic.min or 1 if elastic is not None else 1):
            return None, ()
        return fitted
