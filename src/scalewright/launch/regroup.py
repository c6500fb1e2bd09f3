"""Local workers that go on without those that died, and take new ones in: what they and their supervisor say.

    worker 3 dies ──► supervisor ── LOST ──► 0 1 2     each cuts its connections, so that nobody waits for anybody
    0 1 2 ── READY ──► supervisor ── Go ──► 0 1 2      a rank each, the number of their meeting, the target's arguments
                       supervisor starts 3 anew
    3 ── READY ──► supervisor ── ASKED ──► 0 1 2       they come at a step's end ── READY ──► Go ──► 0 1 2 3

A seat is a worker's place among them, whatever process has it, and whatever rank that has now. Who can go on, and with
which arguments, is the `Keeper`'s to say (train/replicas.py); where nobody can, the failure ends all workers as ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Protocol

from scalewright.launch.deaths import STOPPED, Failure, blame, culprits, likeness
from scalewright.spec.errors import RunError, Stopped, UserError

READY, STUCK, LOST, ASKED = "ready", "stuck", "lost", "asked"  # the kinds of messages beside Go
CAUSE_S = 5.0  # between a worker's broken connection and the end of the one at its other end


@dataclass(frozen=True)
class Go:
    """Where a worker goes on."""

    rank: int
    world: int
    meeting: int  # its number: from 1
    new: bool  # whether it had no part in the world before this one: what it has of that is old
    arguments: tuple[Any, ...]


class Line:
    """A worker's end. A thread of the worker hears; its main thread sends, and waits in `meet`."""

    def __init__(self, send: Callable[[tuple[str, Any]], None], *, joins: bool) -> None:
        """`joins`: this process has taken the seat of one that died, and begins with `meet`."""
        self.joins, self.lost, self.asked = joins, False, False
        self._send, self._answers = send, SimpleQueue[Go | None]()
        self._cut: Callable[[], None] | None = None

    def hear(self, message: Any) -> None:
        """Takes what the supervisor sent."""
        if message == LOST:
            self.lost = True
            self.cut()
        elif message == ASKED:
            self.asked = True
        else:
            self.lost = self.asked = False
            self._answers.put(message)

    def cut_by(self, cut: Callable[[], None] | None) -> None:
        """What to do at once when a rank is lost; called from another thread."""
        self._cut = cut
        if self.lost:
            self.cut()

    def cut(self) -> None:
        """Does that."""
        if (cut := self._cut) is not None:
            cut()

    def accuse(self, rank: int, reason: str) -> None:
        """Has a rank ended that doesn't get on, and that others wait for. From any thread."""
        self._send((STUCK, (rank, reason)))

    def meet(self) -> Go | None:
        """Tells that nothing of the old world is in use any more, and waits; None: there is no going on."""
        self._cut = None
        self._send((READY, None))
        return self._answers.get()


class Keeper(Protocol):
    """Knows which workers can go on alone."""

    @property
    def patience_s(self) -> float:
        """Seconds that a worker may take until it has left its old world."""

    @property
    def retry_s(self) -> float:
        """Until a seat whose process died before it was taken in gets another one; 0: never."""

    def seats(self, live: Collection[int], first: Collection[int]) -> tuple[int, ...]:
        """Those of the live seats that can go on, by their ranks; of several choices, the `first` ones."""

    def begin(self, seats: Sequence[int], error: RunError | None) -> tuple[Any, ...] | None:
        """Their arguments; `error`: what ended others. None: that was one too many."""

    def say(self, text: str) -> None:
        """A line for the user."""


@dataclass
class Regroups:
    """The supervisor's end; `start(seat)` makes a new worker, which joins."""

    keeper: Keeper
    workers: list[Any]  # of local.py, by seat
    start: Callable[[int], Any]
    members: tuple[int, ...] = ()  # seats, by rank
    number: int = 0  # of the newest meeting
    failures: list[Failure] = field(default_factory=list)  # since then, by seat
    _stuck: dict[int, str] = field(default_factory=dict)  # why seats were ended
    _asked: bool = False
    _failed_at: float | None = None
    _since: float | None = None  # when the first member was ready, or lost
    _later: dict[int, float] = field(default_factory=dict)  # when seats get another process

    def __post_init__(self) -> None:
        self.members = tuple(range(len(self.workers)))

    def takes(self, seat: int, answer: tuple[str, Any]) -> bool:
        """Whether the end of a worker is one that others may outlive: then it is dealt with here."""
        kind, detail = answer
        if seat not in self.members and kind != "ok":
            self._later[seat] = time.monotonic() + self.keeper.retry_s if self.keeper.retry_s else float("inf")
            self.keeper.say(f"{str(blame([(seat, answer)])).removesuffix(STOPPED)}, before it was taken in")
            return True
        if kind == "ok" or (kind == "raise" and isinstance(detail, (Stopped, UserError))) or self._ends():
            return False
        if reason := self._stuck.pop(seat, ""):
            answer = "raise", RunError(reason)
            answer[1].ranks = (seat,)
        self.failures.append((seat, answer))
        self._failed_at, self._since = self._failed_at or time.time(), self._since or time.monotonic()
        for worker in self.workers:
            worker.tell(LOST)
        return True

    def end_stuck(self, rank: int, reason: str) -> None:
        """Kills a member that others wait for; of one that is known already nothing more is done."""
        worker = self.workers[seat := self.members[rank]]
        if worker.answer is None and not self.failures and seat not in self._stuck:
            self._stuck[seat] = reason
            worker.process.kill()

    def look(self) -> None:
        """Does what is to be done now; raises the failure that nobody can outlive."""
        for worker in self.workers:
            if (accused := worker.accuses) is not None:
                worker.accuses = None
                self.end_stuck(*accused)
        for seat, when in list(self._later.items()):
            if time.monotonic() > when:
                self._fill(seat)
        live = [seat for seat in self.members if self.workers[seat].answer is None]
        missing = [seat for seat in live if not self.workers[seat].ready]
        others = [s for s, w in enumerate(self.workers) if s not in self.members and w.ready and w.answer is None]
        if not self.failures and not self._asked:
            self._ask(others)
            if len(missing) < len(live):
                self._without_cause(live)
            return
        if self.failures and not self.keeper.seats(live, live):
            raise self._error()
        if missing:
            if self.failures and time.monotonic() - (self._since or 0.0) > self.keeper.patience_s:
                raise self._error()
            return
        self._go(self.keeper.seats(live if self.failures else [*live, *others], live))

    def over(self) -> bool:
        """Whether all that take part have ended; those that wait to be taken in don't count."""
        return not self.failures and all(self.workers[seat].answer is not None for seat in self.members)

    def _ends(self) -> bool:
        return any((w := self.workers[seat]).answer is not None and w.answer[0] == "ok" for seat in self.members)

    def _ask(self, others: Sequence[int]) -> None:
        """Has the members come at the end of a step, if some that wait can be taken in."""
        if others and len(self.keeper.seats([*self.members, *others], self.members)) > len(self.members):
            self._asked = True
            for seat in self.members:
                self.workers[seat].tell(ASKED)

    def _without_cause(self, live: Sequence[int]) -> None:
        """A connection broke, and no process has ended: there is nothing to go on without."""
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since > CAUSE_S:
            self._since = None
            for seat in live:
                if self.workers[seat].ready:
                    self.workers[seat].ready = False
                    self.workers[seat].tell(None)

    def _error(self) -> RunError:
        """The failures as one."""
        error = blame(self.failures)
        error = error if isinstance(error, RunError) else RunError(str(error))
        error.ranks = culprits(self.failures, len(self.workers))
        error.failure = error.failure or likeness(error, "".join(getattr(error, "__notes__", ())))
        error.failed_at = self._failed_at if error.failed_at is None else error.failed_at
        return error

    def _go(self, seats: Sequence[int]) -> None:
        error = self._error() if self.failures else None
        if error is not None:
            error.args = (str(error).removesuffix(STOPPED),)
        if (arguments := self.keeper.begin(seats, error)) is None:
            assert error is not None  # what was only asked for is never refused
            raise error
        self.number += 1
        before, self.members = self.members, tuple(seats)
        for rank, seat in enumerate(seats):
            self.workers[seat].ready = False
            self.workers[seat].tell(Go(rank, len(seats), self.number, seat not in before, arguments))
        gone = [seat for seat, _ in self.failures]
        self.failures, self._asked, self._failed_at, self._since = [], False, None, None
        for seat in gone:
            self._fill(seat)

    def _fill(self, seat: int) -> None:
        self._later.pop(seat, None)
        with suppress(OSError):  # no room for another process: the others go on
            self.workers[seat] = self.start(seat)
