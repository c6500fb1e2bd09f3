"""Saves while the run trains on: a snapshot, a writer process beside every rank, and a late commit.

    save       all ranks: folder, memory, snapshot (snapshot.py)                the run stands still for this
    training   each rank: its writer writes; "written", 1 or 0, travels with every step's report (train/columns.py)
    all have   their answers are gathered; rank 0 commits on a thread           no step waits for a disk
    settle     waits for all that: before the next save, a rewind and the end

A part that can't be written costs the checkpoint, never the run. All ranks come to `begin`, `collect` and `settle`
together, since they decide by what all of them know.
"""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any

from scalewright.checkpoint.background import Background
from scalewright.checkpoint.save import Draft, failed, in_words, together
from scalewright.checkpoint.snapshot import Snapshot
from scalewright.checkpoint.verify import NAMED
from scalewright.checkpoint.write import boxes_of, in_files
from scalewright.parallel.collectives import from_rank_zero, gather_json
from scalewright.parallel.mesh import Mesh
from scalewright.spec.errors import RunError

TICK_S = 0.05
LINES_BYTES = 1 << 16  # left on the disk for the run's lines: without room for them it would end


@dataclass(frozen=True)
class Outcome:
    """How a save ended."""

    step: int
    at: float  # time.perf_counter() of its end
    problem: str = ""


class AsyncSaver:
    """The saves of one rank; at most one is under way."""

    def __init__(self, mesh: Mesh, *, apart: bool, limit_s: float) -> None:
        """`apart`: updates wait for `snapshot.wait`; `limit_s`: of a writer, once its rank waits for it."""
        self.mesh, self.limit_s = mesh, limit_s
        self.snapshot, self.writer = Snapshot(mesh.device, apart=apart), Background()
        self.failures = 0  # of saves in a row
        self._news: deque[Outcome] = deque()
        self._draft: Draft | None = None  # that is being written
        self._begun: Any = None  # what rank 0 has of it
        self._given = False  # to the writer
        self._answer: dict[str, Any] | None = None
        self._committed: Draft | None = None  # that rank 0 commits, or has committed since all last spoke of it
        self._thread: Thread | None = None
        self._problem = ""  # of the commit

    def begin(self, draft: Draft) -> str:
        """Copies what a draft saves, and has it written; else, where memory or a writer is missing, in words why, and
        nothing has begun. Raises RunError on all ranks when the folder can't be made, or the disk is too full."""

        def prepare() -> list[Any]:
            try:
                self.snapshot.prepare(draft.chunks, self.mesh.rank)
                self.writer.start()
            except (OSError, ValueError, MemoryError) as error:
                return [f"{error} (rank {self.mesh.rank})", 0, None, 0]
            begun = draft.begin() if self.mesh.rank == 0 else None
            return ["", self.snapshot.bytes, begun, shutil.disk_usage(draft.partial).free if begun else 0]

        answers = together(self.mesh, draft.partial, prepare)
        if problem := next((text for text, *_ in answers if text), ""):
            self.failures += 1
            self.snapshot.close()
            return problem
        total = sum(size for _, size, *_ in answers)
        if total + total // 64 + LINES_BYTES > answers[0][3]:
            raise RunError(failed(draft.partial, "no space left on the disk", 0, self.mesh))
        self.snapshot.take(draft.chunks)
        self._draft, self._begun, self._given, self._answer = draft, answers[0][2], False, None
        self._give()
        return ""

    @property
    def under_way(self) -> bool:
        """Whether parts of a save are being written, or nobody has asked yet whether they are."""
        return self._draft is not None

    @property
    def unsettled(self) -> bool:
        """Whether the newest save isn't known to all ranks as finished, or failed."""
        return self._draft is not None or self._committed is not None

    @property
    def committed(self) -> bool:
        """On rank 0: whether the commit that was begun has ended, and `settle` wouldn't wait for it."""
        return self._committed is not None and self._thread is not None and not self._thread.is_alive()

    @property
    def written(self) -> bool:
        """Whether this rank's part is on the disk, or won't be."""
        self._give()
        if self._given and self._answer is None:
            self._answer = self.writer.poll()
        return self._answer is not None

    def _give(self) -> None:
        """Gives the snapshot to the writer, once all of it is in host memory."""
        if self._draft is None or self._given or not self.snapshot.is_copied():
            return
        self._given = True
        job = {"folder": str(self._draft.partial.absolute()), "files": self.snapshot.files}
        try:
            self.writer.begin(job, self.snapshot.handles)
        except OSError as error:
            self._answer = {"problem": f"no writer: {error}"}

    def collect(self) -> None:
        """All parts are written, or have failed: rank 0 commits, or removes what there is."""
        draft, first = self._draft, self.mesh.rank == 0
        assert draft is not None
        assert self._answer is not None
        self._draft = None
        part: dict[str, Any] = {}
        if not (problem := self._answer.get("problem", "")):
            boxes = {name: boxes_of(batch) for name, batch in in_files(draft.chunks, self.mesh.rank)}
            files = {name: {**entry, "boxes": boxes[name]} for name, entry in self._answer["files"].items()}
            part = {"files": files, "nonfinite": self._answer["nonfinite"][:NAMED]}
        answers = gather_json([problem, part], self.mesh)
        for rank, (problem, _) in enumerate(answers):
            if problem:
                self.failures += 1
                self._tell(draft, failed(draft.partial, in_words(problem), rank, self.mesh))
                return
        self._committed = draft
        if first:
            every = [self._begun, *(part for _, part in answers)]
            self._thread = Thread(target=self._commit, args=(draft, every), daemon=True, name="commit")
            self._thread.start()

    def _commit(self, draft: Draft, parts: list[Any]) -> None:
        self._problem = f"cannot save {draft.partial.with_suffix('').name}: its commit was ended"
        try:
            draft.finish(parts)
            self._problem = ""
        except Exception as error:  # told, and the run goes on
            self._problem = failed(draft.partial, in_words(str(error)), 0, self.mesh)
        finally:
            self._tell(draft, self._problem)

    def _tell(self, draft: Draft, problem: str = "") -> None:
        self._news.append(Outcome(draft.step, time.perf_counter(), problem))

    def news(self) -> Iterator[Outcome]:
        """The ends of saves since the last call; that of a commit is told on rank 0 at once, elsewhere by `settle`."""
        while self._news:
            yield self._news.popleft()

    def settle(self) -> None:
        """Waits until the save that is under way is finished, or has failed, on all ranks."""
        if self._draft is not None:
            deadline = time.perf_counter() + self.limit_s
            self.snapshot.is_copied(wait=True)
            while not self.written:
                if time.perf_counter() > deadline:
                    self.writer.kill()
                    self._answer = {"problem": f"its writer took longer than {self.limit_s:g} s"}
                elif self._given:
                    self._answer = self.writer.poll(TICK_S)
            self.collect()
        if self._committed is None:
            return
        draft, self._committed = self._committed, None
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        problem = from_rank_zero(self._problem, self.mesh)
        if self.mesh.rank:
            self._tell(draft, problem)
        self.failures = self.failures + 1 if problem else 0

    def close(self) -> None:
        """Ends it, whatever is under way: a commit that has begun is waited for, up to the limit."""
        if self._thread is not None:
            self._thread.join(self.limit_s)
        with suppress(OSError):
            self.writer.kill()
        self.snapshot.close()
