"""Which world a run takes where `elastic` is set, and local ranks that are started again when some of them died.

    launcher's ranks    the largest layout on exactly these; else an error that names worlds which fit
    local ranks         4 ─ rank 2 is killed ─► the others are ended, and those of devices 0, 1, 3 start: 3 fit, or 2
                        at a save after `retry_s`, or when out_dir/DEVICES says so: save, leave, and all 4 again
                        any other failure, or without `elastic` (launch.max_restarts): the same ranks again

What a failure was, and whether another start makes sense, is in state/attempts.py. The fork server has imported torch
already, so that new ranks cost tenths of a second.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from scalewright.launch.rank import RankContext
from scalewright.launch.stop import DEVICES_FILE
from scalewright.spec.common.formatting import counted, printable
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.elastic import layouts_on
from scalewright.spec.errors import RunError, Stopped, UserError
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.question import Question
from scalewright.spec.run import RunSpec
from scalewright.train.resolve import resolve
from scalewright.train.state.attempts import decide, judge, note_failure

LOOK_S = 1.0  # between looks at the file
SHOWN = 6  # worlds in an error


def on_world(run: RunSpec, world: int) -> RunSpec | None:
    """The run on exactly so many ranks; None where it can't be."""
    least = run.elastic.min if run.elastic is not None and run.elastic.min else 1
    if world < least:
        return None
    for layout in chain(planned(run, world), layouts_on(run.layout, world)):
        changed = run.model_copy(update={"layout": layout})
        with suppress(UserError):
            resolve(changed, read_data=False)
            return changed
    return None


def planned(run: RunSpec, world: int) -> Iterator[Layout]:
    """With `replan`: layouts of the run's model, batch and precision on another world, the planner's best first; none
    of a user's own model, or where the planner has no figures of the devices (train/metrics/expectation.py)."""
    if run.elastic is None or not run.elastic.replan or world == run.layout.devices:
        return
    from scalewright.plan.search.objective import Goal  # which costs a second, and is hardly ever needed
    from scalewright.plan.search.search import search
    from scalewright.train.metrics.expectation import place_of

    resolved = resolve(run, read_data=False)
    there = run.model_copy(update={"layout": run.layout.model_copy(update={"devices": world})})
    place, _ = place_of(there) if isinstance(resolved.model, ModelSpec) else (None, "")
    if place is None or not isinstance(resolved.model, ModelSpec):
        return
    goal = Goal(world, run.layout.global_batch, precision=run.layout.precision)
    with suppress(UserError, RunError):  # no layout fits
        best = search(Question.of(resolved.model, resolved.seq_len, place), goal, explain=False).best
        for choice in (choice for choice in best if choice.trainable):
            yield choice.layout.replace(precision=run.layout.precision)


def at_most(run: RunSpec, world: int) -> RunSpec | None:
    """The run on the largest world that it fits, of so many ranks at most; None where it fits none."""
    return next((found for size in range(world, 0, -1) if (found := on_world(run, size)) is not None), None)


def for_launcher(run: RunSpec, context: RankContext, per_node: int) -> RunSpec:
    """The run on all ranks that a launcher started; raises UserError, which names worlds that fit."""
    ranks = context.world * per_node
    if (fitted := on_world(run, ranks)) is not None:
        return fitted
    sizes = [size for size in range(1, max(ranks, run.layout.devices) + 1) if on_world(run, size) is not None]
    near = sorted(sorted(sizes, key=lambda size: abs(size - ranks))[:SHOWN])
    problem = f"{context.starter} started {counted(ranks, 'ranks')}, and this run doesn't fit them"
    least = f", elastic.min {run.elastic.min}" if run.elastic is not None and run.elastic.min else ""
    kept = f"tp, pp, cp, ep and global_batch {run.layout.global_batch} stay{least}"
    worlds = f"start {', '.join(map(str, near[:-1]))} or {near[-1]}" if near[1:] else f"start {near[0]}" if near else ""
    raise UserError(f"{problem} ({kept})", "elastic", worlds or "check the layout on its own number of devices first")


OnRow = Callable[[str, dict[str, object]], bool]
Lost = Callable[[RunError], bool]  # notes a failure; whether those that are left may go on
Begin = Callable[[RunSpec, Sequence[int], OnRow, int, Lost], dict[str, Any]]


@dataclass
class LocalRanks:
    """Runs local ranks to the run's end. `begin(run, devices, on_row, attempt, lost)` starts them, and waits."""

    run: RunSpec  # with the layout of the run file
    begin: Begin
    callbacks: Callable[[str, Mapping[str, Any]], bool]
    quiet: bool = False
    most: int = 1  # devices that are here
    devices: tuple[int, ...] = ()  # numbers of those that the ranks have now
    wanted: tuple[int, ...] | None = None  # those that are to be changed to
    slow: frozenset[int] = frozenset()  # left out until the file asks for all
    failures: int = 0
    _noted: RunError | None = None  # the newest one
    _since: float = 0.0  # when the ranks were started
    _looked: float = field(default=0.0)

    def until_the_end(self) -> dict[str, Any]:
        """How the run ended. Raises what the last attempt raised, or GaveUpError."""
        attempt = 0
        self.devices = tuple(range(self.most))
        while True:
            run = self._fitted()
            try:
                return self.begin(run, self.devices, self._follow, attempt, self.lost)
            except Stopped as error:
                if self.wanted is None or error.by_signal:
                    raise
                self.devices = self.wanted
            except RunError as error:
                self._note(error)
                back = decide(run.folder, error)
                gone = {self.devices[rank] for rank in error.ranks} if self.run.elastic is not None else set()
                self.devices = self._without(gone)
                self.say(f"{error}{f'; {back}' if back else ''}; restart {self.failures}")
            attempt += 1

    def lost(self, error: RunError) -> bool:
        """Notes a failure; whether those that are left may go on in their processes: not after the same one again and
        again, which has all start from the newest save, or from the one before. Raises one that was one too many."""
        self._note(error)
        verdict = judge(read_jsonl(self.run.folder / "events.jsonl"))
        return not (verdict.back or verdict.stop)

    def _note(self, error: RunError) -> None:
        if error is self._noted:
            return
        self.failures += 1
        limit = self.run.launch.max_restarts or (math.inf if self.run.elastic is not None else 0)
        if self.failures > limit or not self.run.folder.is_dir():
            raise error
        self._noted, seen = error, time.time() - (error.failed_at or time.time())
        note_failure(self.run.folder, error, detect_s=round(seen, 3))

    def _fitted(self) -> RunSpec:
        """The run on the devices that are left, or on all of them where it doesn't fit fewer."""
        run = at_most(self.run, len(self.devices)) if self.run.elastic is not None else self.run
        if run is None:
            run = self.run
            self.devices = tuple(range(self.most))
        self.devices = self.devices[: run.layout.devices]
        self.wanted, self._since = None, time.monotonic()
        return run

    def _follow(self, kind: str, row: dict[str, object]) -> bool:
        """Hands a row on; whether the ranks are to save and leave, for the caller or for another number of them."""
        asked = self.callbacks(kind, row)
        if self.wanted is None and not asked and self.run.elastic is not None:
            self.wanted = self._asked_for(row)
            asked = self.wanted is not None
        return asked

    def _asked_for(self, row: Mapping[str, Any]) -> tuple[int, ...] | None:
        now, elastic = time.monotonic(), self.run.elastic
        if elastic is None:
            return None
        if row.get("kind") == "slow" and elastic.leave_out_slow:
            return self._without_slow(int(row["rank"]))
        late = elastic.retry_s and now - self._since > elastic.retry_s
        if late and row.get("kind") == "save" and len(self.devices) < len(every := self._without(())):
            return every
        if now - self._looked < LOOK_S:
            return None
        self._looked = now
        return self._in_file(self.run.folder / DEVICES_FILE)

    def _without(self, gone: Collection[int]) -> tuple[int, ...]:
        return tuple(number for number in range(self.most) if number not in self.slow and number not in gone)

    def _without_slow(self, rank: int) -> tuple[int, ...] | None:
        """The devices without a slow rank's; None where the run doesn't fit fewer."""
        left = self._without({self.devices[rank]})
        if at_most(self.run, len(left)) is None:
            return None
        self.slow |= {self.devices[rank]}
        return left

    def _in_file(self, file: Path) -> tuple[int, ...] | None:
        """So many devices as the file says, which is removed; None without one, or where they are as many already."""
        if not file.is_file():
            return None
        text = ""
        with suppress(OSError, UnicodeDecodeError):
            text = file.read_text(encoding="utf-8").strip()
            file.unlink()
        ranks = self.most if not text else int(text) if re.fullmatch("[0-9]{1,9}", text) else 0
        if not 1 <= ranks <= self.most:
            self.say(f"{DEVICES_FILE} says {text[:20]!r}: write 1 to {self.most}, or nothing for all")
            return None
        self.slow = frozenset()
        return self._without(())[:ranks] if ranks != len(self.devices) else None

    def say(self, text: str) -> None:
        """A line for the user."""
        if not self.quiet:
            print(printable(text), file=sys.stderr, flush=True)
