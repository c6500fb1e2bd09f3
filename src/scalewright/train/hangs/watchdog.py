"""A thread beside each rank's training that notices when it doesn't get on, and reports whom all wait for.

    no collective begun and no step done for `patience`      ask on the board
    asked (by itself or another rank)                        write stacks, post this rank's position
    ANSWER_S later, one rank                                 verdict: a line and the event `hang`
    a step takes 5x the usual time, and 10 s                 rank 0: a line and the event `stalled`
    it gets on again                                         a line and the event `continued`
    others have waited for the timeout                       the run ends with the verdict, exit code 1

Nothing of this uses the groups that are stuck, nor the interpreter's main thread, which may wait in a collective
outside Python. In a save, a validation, a compilation and the first step patience is longer: a quarter of `start_s`.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from scalewright.launch.rank import RankContext
from scalewright.parallel.mesh import Mesh, set_timeout
from scalewright.spec.errors import RunError
from scalewright.spec.run import TimeoutsSpec
from scalewright.track.events import EventsFile
from scalewright.train.hangs.board import (
    SILENT,
    Board,
    BoardSilent,
    HangVerdict,
    Patience,
    Position,
    judge,
    mismatch,
    open_board,
)
from scalewright.train.hangs.position import Groups, flights, position
from scalewright.train.hangs.process import Processes, Stacks, is_broken, last_collectives
from scalewright.train.metrics.record import Record

STEADY = "step"
DOING = {
    "validate": "validating", "save": "saving a checkpoint", "resume": "going back to a checkpoint",
    "trace": "starting a profiler, or writing its trace",
}  # fmt: skip


class Watchdog:
    """Watches one rank; a context manager. `mesh` None or of one rank: only its own steps are watched."""

    def __init__(
        self, context: RankContext, mesh: Mesh, folder: Path, timeouts: TimeoutsSpec, patience: Patience | None = None
    ) -> None:
        self.rank, self.mesh, self.folder, self.timeouts = context.rank, mesh, folder, timeouts
        self.patience = patience or Patience()
        self._last_words, self._line = context.last_words, context.line
        self._sees_all = context.supervisor is not None and context.local_world == context.world
        self._now: Callable[[], float] = time.monotonic
        self.record: Record | None = None  # rank 0's, once all is built
        self._board: Board | None = None if mesh.world == 1 else open_board(context)
        self._processes = Processes(context.rank)
        self._stacks = Stacks(folder / "hangs", context.rank)
        self._groups = None if mesh.world == 1 else Groups(mesh)
        self._main = threading.get_ident()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="scalewright-watchdog", daemon=True)
        # Written by the main thread, read by ours.
        self._step, self._phase, self._marks = 0, "start", 0
        self._step_began = self._now()
        self._usual: deque[float] = deque(maxlen=21)
        # Our own.
        self._round = 0  # of questions on the board, counted alike on every rank
        self._asked_at: float | None = None  # when this round's question was seen
        self._decided_at: float | None = None  # when the last round of this stall ended
        self._verdict: HangVerdict | None = None
        self._reported: HangVerdict | None = None  # the last that was put down as a hang, here or elsewhere
        self._waits = False  # whether this rank waited in a collective when it was asked
        self._others_since: float | None = None  # when the rank that waits longest began to
        self._heard = False  # whether the board has ever answered
        self._accused = False  # whether the launcher was told
        self._failed = False  # whether a failure of this thread has been reported
        self._progress = (-1, -1)  # steps and phases done, collectives begun
        self._progress_at = self._looked_at = self._now()
        self._told: tuple[str, float] | None = None  # what this rank has reported and is not over: kind, since
        self._beat = -1  # the step that was last reported as stalled

    # -- called by the main thread ---------------------------------------------------------------------

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        explained = self._explain(error) if isinstance(error, RuntimeError) else None
        self._end.set()
        if self._thread is not threading.current_thread():
            self._thread.join(2.0)
        if explained is not None:
            raise explained from error

    def begins(self, step: int, record: Record | None) -> None:
        """All is built; the run goes on after `step` steps, and the next one may compile."""
        self.record, self._step, self._step_began = record, step, self._now()

    def stepped(self, step: int) -> None:
        """A step is done; the first one ends the start."""
        now = self._now()
        if self._phase == STEADY:
            self._usual.append(now - self._step_began)
        elif self._phase == "start":
            self._phase = STEADY
            self._limit(self.timeouts.steady_s)
        self._step, self._step_began = step, now
        self._marks += 1

    def ends(self) -> None:
        """The last step is done: records are closed, and no step follows that could be late."""
        self._phase = "end"

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A save or a validation, which takes its own time between two steps."""
        before, self._phase = self._phase, name
        self._limit(self.timeouts.start_s)
        if self.record is not None:
            self.record.console.at(DOING[name])
        try:
            yield
        finally:
            self._limit(self.timeouts.steady_s if before == STEADY else self.timeouts.start_s)
            self._phase, self._step_began = before, self._now()
            self._marks += 1
            if self.record is not None:
                self.record.console.at("")

    def _limit(self, seconds: float) -> None:
        """Gloo's groups time out when ranks are to give up; NCCL's later: it aborts the process."""
        if self.mesh.world > 1:
            set_timeout(self.mesh, seconds + (60.0 if self.mesh.device.type == "cuda" else 0.0))

    def _explain(self, error: RuntimeError) -> RunError | None:
        """A collective's error with the rank that caused it, where the ranks have found out, or can."""
        text = str(error)
        if any(word in text for word in ("imed out", "timeout")):
            verdict = self._verdict or self._read_verdict()
            return None if verdict is None else self._given_up(verdict)
        if not is_broken(error) or self._line is not None:  # who goes on asks for no reason, which the launcher has
            return None
        if self._verdict is not None:
            return self._given_up(self._verdict)
        posts: dict[int, Any] = {}
        with suppress(BoardSilent, OSError):
            if self._board is not None:
                posts = last_collectives(self._board, self._position(), error, self.mesh.world)
        verdict = mismatch({rank: Position.parse(post) for rank, post in posts.items()})
        if verdict is not None:
            return RunError(verdict.text)
        if self._sees_all:  # our launcher sees how the other process ended, and has the reason
            return None
        return RunError(self._processes.lost([r for r in range(self.mesh.world) if r not in posts], self._board))

    def _given_up(self, verdict: HangVerdict) -> RunError:
        error = RunError(self._gave_up(verdict))
        error.ranks, error.failed_at = (verdict.rank,), self._since()
        return error

    def _since(self) -> float:
        """When the last progress was, in seconds since 1970."""
        return time.time() - (self._now() - self._progress_at)

    def _gave_up(self, verdict: HangVerdict) -> str:
        key, seconds = self._timeout()
        after = f"{seconds:g} s (train.timeouts.{key})"
        if self._is_silent():
            after = f"{self._now() - self._progress_at:.1f} s"
        return f"{verdict.text}; gave up after {after}; stacks are in {self._stacks.folder}"

    def _timeout(self) -> tuple[str, float]:
        """The key of the timeout that holds now, and its seconds."""
        key = "steady_s" if self._phase == STEADY else "start_s"
        return key, getattr(self.timeouts, key)

    # -- the thread ------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._end.wait(self.patience.tick_s):
            try:
                self._look(self._now())
            except Exception as error:  # a full disk, say: the training goes on, and so does the watch
                if not self._failed and not self._end.is_set() and self._phase != "end":
                    self._failed = True
                    print(f"watchdog of rank {self.rank}: {error!r}; it goes on", file=sys.stderr, flush=True)

    def _look(self, now: float) -> None:
        if now - self._looked_at > 4 * self.patience.tick_s + 2.0:
            self._progress_at = now  # this process was stopped itself: the wait begins anew
        progress = (self._marks, self._groups.begun() if self._groups else 0)
        if progress != self._progress:
            stepped, self._progress, self._progress_at = progress[0] != self._progress[0], progress, now
            self._goes_on(now, stepped)
        waited = now - self._progress_at
        if self._board is not None:
            try:
                self._processes.introduce(self._board)
                self._talk(self._board, now, waited)
                self._heard = True
            except BoardSilent:
                self._without_board(now, waited)
        if self.rank == 0:
            self._heartbeat(now)
        if self._verdict is not None and self._is_over(now, waited):
            self._give_up(self._gave_up(self._verdict))
        self._looked_at = self._now()  # not `now`: writing stacks may have taken seconds

    def _is_over(self, now: float, waited: float) -> bool:
        """Whether this rank has waited, or others for it, for longer than the timeout. A rank's own time without a
        collective is no such wait: it may have computed all that time."""
        if not self._waits and self._verdict is not None and self._verdict.rank != self.rank:
            return False  # a wait of others, which may be over
        if self._is_silent() and self._phase == STEADY and waited > self._patience_s():
            return True
        grace = 0.0 if self.mesh.device.type == "cuda" else self.patience.grace_s
        others = 0.0 if self._others_since is None else now - self._others_since
        return min(waited, others) > self._timeout()[1] + grace

    def _is_silent(self) -> bool:
        """Whether a process doesn't answer at all, and others of this run don't wait for the timeout then."""
        return not self.patience.silent and self._verdict is not None and SILENT in self._verdict.text

    def _give_up(self, reason: str) -> None:
        """Ends this process, whose main thread doesn't come out of its wait; or has the one ended that it waits for."""
        if self._line is not None and self._verdict is not None:
            if not self._accused:
                self._line.accuse(self._verdict.rank, reason)
            self._accused = True
            return
        if self._last_words is not None:
            behind = -1 if self._verdict is None else self._verdict.rank
            self._last_words.write_text(f"{behind} {self._since():.3f}\n{reason}", encoding="utf-8")
        else:
            print(f"error: {reason}", file=sys.stderr, flush=True)
        os._exit(1)

    def _goes_on(self, now: float, stepped: bool) -> None:
        """Progress: the stall is over, and whoever reported it takes that back."""
        self._decided_at = self._verdict = self._reported = self._others_since = None
        if self._told is not None and (stepped or self._told[0] == "hang"):
            seconds, self._told = now - self._told[1], None
            if not self._end.is_set():
                self._note("continued", f"the run goes on, after {seconds:.0f} s", seconds=round(seconds, 1))

    def _usual_s(self) -> float | None:
        """Seconds of a usual step; None before there are three."""
        return statistics.median(list(self._usual)) if len(self._usual) >= 3 else None

    def _patience_s(self) -> float:
        usual = self._usual_s()
        if self._phase != STEADY or usual is None:
            return self._slow_s(self._timeout()[1])
        return max(self.patience.step_s, self.patience.usual * usual)

    def _slow_s(self, timeout_s: float) -> float:
        """Patience in a phase that takes its time on some ranks: a share of its timeout, at most half."""
        return min(max(self.patience.other_s, self.patience.share * timeout_s), 0.5 * timeout_s)

    def _talk(self, board: Board, now: float, waited: float) -> None:
        """One look at the board: ask, answer, or decide."""
        if self._asked_at is None:
            again = self._decided_at is None or now - self._decided_at > self.patience.other_s
            if waited > self._patience_s() and again:
                board.post(f"ask-{self._round}", self.rank)
            if board.read(f"ask-{self._round}") is not None:
                self._asked_at = now
                here = replace(self._position(), waited_s=waited)
                self._waits = here.waiting is not None
                board.post(f"position-{self._round}-{self.rank}", here.dump())
                self._stacks.write(here)
            return
        later = 0.0 if self.rank == 0 else 2 * self.patience.tick_s  # rank 0 has the console
        if now - self._asked_at < self.patience.answer_s + later:
            return
        reporter = board.claim(f"verdict-{self._round}")
        if reporter:
            positions = self._positions(board)
            verdict = judge(positions, lambda rank: self._processes.find(rank, board))
            if sum(position is not None for position in positions.values()) <= 1:
                verdict = verdict or self._kept(self._asked_at)
            board.post(f"verdict-{self._round}", verdict and asdict(verdict))
        else:
            verdict = self._read_verdict()
        self._round += 1
        self._decide(verdict, now, waited, reporter=reporter)

    def _kept(self, now: float) -> HangVerdict | None:
        """The verdict before, where nobody else is left to wait: their collectives have timed out."""
        if self._verdict is None or self._others_since is None:
            return None
        return replace(self._verdict, waited_s=now - self._others_since)

    def _positions(self, board: Board) -> dict[int, Position | None]:
        posts = {rank: board.read(f"position-{self._round}-{rank}") for rank in range(self.mesh.world)}
        return {rank: None if post is None else Position.parse(post) for rank, post in posts.items()}

    def _read_verdict(self) -> HangVerdict | None:
        """The decision of another rank in this round."""
        with suppress(BoardSilent, OSError):
            data = self._board.read(f"verdict-{self._round}") if self._board is not None else None
            return HangVerdict(**data) if data else None
        return None

    def _without_board(self, now: float, waited: float) -> None:
        """The store's host doesn't answer, and once did: it is the one, and of the others rank 1 reports."""
        if not self._heard or waited <= self._patience_s() or self._decided_at is not None:
            return
        here = replace(self._position(), waited_s=waited)
        self._waits = here.waiting is not None
        self._stacks.write(here)
        positions: dict[int, Position | None] = dict.fromkeys(range(1, self.mesh.world), here)
        waits_for_0 = here.waiting is not None and 0 in here.waiting.members
        verdict = judge({**positions, 0: None}, lambda rank: self._processes.find(rank, None)) if waits_for_0 else None
        self._decide(verdict, now, waited, reporter=self.rank == 1)

    def _decide(self, verdict: HangVerdict | None, now: float, waited: float, *, reporter: bool) -> None:
        """The end of a round, on every rank."""
        asked, self._asked_at, self._decided_at, self._verdict = self._asked_at, None, now, verdict
        if verdict is None:
            self._others_since = None
            return
        longest = verdict.waited_s + now - (now if asked is None else asked)
        self._others_since = now - longest
        slow = verdict.phase != STEADY and longest <= self._slow_s(self.timeouts.start_s)
        if slow or (self._reported is not None and self._reported.fields() == verdict.fields()):
            return  # not yet, or no news
        self._reported = verdict
        if reporter:
            self._told = ("hang", self._progress_at)
            self._note("hang", f"no progress for {longest:.0f} s: {verdict.text}", **verdict.fields())
        if self._stuck():
            self._stacks.write_source_lines(self._stuck)

    def _stuck(self) -> bool:
        """Whether nothing has been done or begun since the last look."""
        return (self._marks, self._groups.begun() if self._groups else 0) == self._progress

    def _heartbeat(self, now: float) -> None:
        """A step that takes far longer than usual is reported while it does, once."""
        usual, seconds = self._usual_s(), now - self._step_began
        if self._phase != STEADY or usual is None or self._beat == self._step:
            return
        if seconds <= max(self.patience.stalled_s, self.patience.stalled_usual * usual):
            return
        self._beat = self._step
        message = ""
        if self._told is None:  # else a line stands there that has more
            self._told = ("stalled", self._step_began)
            where = position(self.rank, self._step, self._phase, self._main, None, []).where
            message = f"step {self._step + 1} has taken {seconds:.0f} s so far, usual are {usual:.2g} s"
            message += f"; rank 0 is at {where}" if where else ""
        fields = {"step": self._step + 1, "seconds": round(seconds, 1), "usual_s": round(usual, 3)}
        self._note("stalled", message, **fields)

    def _note(self, kind: str, message: str, **fields: Any) -> None:
        """An event and a line: by rank 0's record, or by this rank itself where rank 0 can't."""
        if self.record is not None:
            self.record.event_from_thread(kind, message, **fields)
            return
        if message:
            print(message, file=sys.stderr, flush=True)
        if self.folder.is_dir():
            events = EventsFile(self.folder / "events.jsonl")
            events.write(kind, **fields, message=message)
            events.close()

    def _position(self) -> Position:
        """Where this rank is now."""
        return position(self.rank, self._step, self._phase, self._main, self._groups, flights())
