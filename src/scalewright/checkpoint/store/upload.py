"""A run's checkpoints, put into its store behind its saves: no step waits for them, and no failure there ends the run.

    save committed on the disk ──offer──► each rank's thread: its own files ──► parts/STEP-RANK
                                          rank 0: waits for all parts ──► COMMIT, last ──► older ones go

A file is open from the offer on, so that the run may remove the checkpoint meanwhile. One checkpoint is under way and
one waits, on all ranks the same ones; while one waits, further ones are left out, and events tell that the store lags.
What fails is tried again, with growing pauses, until the next one is due. A kill at any put leaves the older ones as
they are: whatever has no COMMIT doesn't exist, and goes with the next that has one.

A part's content is the digest of the local COMMIT, and what went wrong: parts that an earlier attempt at the step left
don't count.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from scalewright.checkpoint.format import COMMIT, COMMIT_BYTES
from scalewright.checkpoint.store.bring import SAVES, forget, heads, is_committed, run_place, step_number
from scalewright.checkpoint.verify import Retention, superfluous
from scalewright.spec.common.heartbeat import Heartbeat
from scalewright.spec.ends import COMPANIONS, ORIGIN
from scalewright.spec.errors import RunError, UserError
from scalewright.storage.mirror import fetch
from scalewright.storage.objects import AbsentError, Store, StoreError

PARTS, RUN_ID, ASIDE = "parts", "RUN_ID", "COMMIT.aside"
OF_RANK = re.compile(r"-(\d{5})[-.]")  # in a file's name: the rank that wrote it
BESIDE = ("run.yaml", "tokenizer.json", "metrics.jsonl", "events.jsonl", *COMPANIONS)
PART_BYTES = 1 << 10
LAST_TRIES, LAST_PAUSE_S = 3, 2.0  # once another one is due, or the run ends
PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # seconds before a failed one is tried again
STALL_S = 600.0  # without another rank's part
END_S = 300.0  # at the run's end without a file that is put


class Tell(Protocol):
    """Takes an event; a run's record (`event_from_thread`)."""

    def __call__(self, kind: str, message: str = "", **fields: Any) -> None: ...


@dataclass
class Saved:
    """A committed checkpoint, to be put into the store; its rank's files are open."""

    name: str  # step-00000400
    digest: str
    commit: bytes
    files: dict[str, BinaryIO]
    folder: Path
    began: float = field(default_factory=time.monotonic)
    done: set[str] = field(default_factory=set)
    bytes: int = 0

    @property
    def step(self) -> int:
        """Its step."""
        return step_number(self.name)

    def close(self) -> None:
        """Lets go of its files."""
        for file in self.files.values():
            file.close()


class Uploader:
    """One rank's. `offer` and `go_back` return at once; a thread does the work."""

    def __init__(self, url: str, rank: int, world: int, kept: Retention, tell: Tell | None = None) -> None:
        """`kept` are the finished checkpoints that stay in the store; `tell` is rank 0's."""
        self.place = run_place(url, create=True)
        self.rank, self.world, self.kept, self.tell = rank, world, kept, tell
        self.run_id: str | None = None  # rank 0's, from `claim` on
        self._queue: deque[Saved | int] = deque()  # a number: finished ones after that step are put aside
        self._changed, self._closing = threading.Condition(), False
        self._moved = time.monotonic()  # when something was last put
        self._thread: threading.Thread | None = None
        self._beside: dict[str, tuple[int, int]] = {}  # of files beside checkpoints/: size and time, as they were put

    @property
    def store(self) -> Store:
        """The run's place."""
        return self.place.store

    def claim(self, run_id: str) -> None:
        """Rank 0's, before the first step and each save: the place is this run's, and can be written to. Raises
        UserError where it holds another's checkpoints, or where permission or credentials lack; StoreError where the
        store doesn't answer now."""
        self.run_id, owner = run_id, None
        with suppress(AbsentError):
            owner = self.store.read(RUN_ID, 1 << 10).decode("utf-8", "replace")
        if owner == run_id:
            return
        if owner is not None and self.place.committed():  # without any it was lost before its first one came
            how = "give this run a place of its own, or remove what is there"
            raise UserError("the store's place holds the checkpoints of another run", str(self.store.url), how)
        self.store.put(RUN_ID, run_id.encode())

    @property
    def waiting(self) -> bool:
        """Whether a checkpoint waits for the one under way: the next is then left out, on all ranks."""
        return any(isinstance(task, Saved) for task in self._queue)

    def offer(self, folder: Path) -> None:
        """Takes a committed checkpoint of the local disk. Raises nothing."""
        try:
            commit = (folder / COMMIT).read_bytes()
            names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != COMMIT)
            mine = [name for name in names if self._is_mine(name)]
            files: dict[str, BinaryIO] = {name: open(folder / name, "rb") for name in mine}  # noqa: SIM115
            saved = Saved(folder.name, hashlib.sha256(commit).hexdigest(), commit, files, folder)
        except OSError as error:
            self.say("fault", f"{folder.name} isn't put into the store: {error}")
            return
        self._add(saved)

    def go_back(self, step: int) -> None:
        """The run goes on from this step: finished ones after it are of a future that was given up."""
        if self.rank == 0:
            self._add(step)

    def left_out(self, step: int) -> None:
        """Says that the store lags."""
        how = "it isn't put there; save less often to it (checkpoint.store_every), or give it more bandwidth"
        self.say("store", f"the store is behind the saves: step {step} has to wait too long, {how}", step=step)

    def close(self) -> None:
        """Waits for what is under way, as long as it moves on; then lets go of it, and says so."""
        with self._changed:
            self._closing = True
            self._moved = time.monotonic()
            self._changed.notify_all()
        with Heartbeat(f"putting saves into {self.store.url}", enabled=self.tell is not None):
            while self._thread is not None and self._thread.is_alive():
                self._thread.join(0.05)
                if time.monotonic() - self._moved > END_S:
                    self.say("fault", f"the store is stuck: what wasn't put there stays on the disk ({self.store.url})")
                    return

    def _is_mine(self, name: str) -> bool:
        match = OF_RANK.search(name)
        return (int(match[1]) % self.world if match else 0) == self.rank

    def _add(self, task: Saved | int) -> None:
        with self._changed:
            self._queue.append(task)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="store", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                task = self._queue.popleft()
            if isinstance(task, Saved):
                self._until_put(task)
                task.close()
            else:
                self._attempt(partial(self._put_aside, task), f"later steps than {task} aren't set aside in the store")

    def _until_put(self, saved: Saved) -> None:
        """Puts a checkpoint; again where that fails, until another one is due, or the run ends."""
        pauses, failed, left = iter(PAUSES), f"{saved.name} isn't in the store yet", LAST_TRIES
        while problem := self._attempt(partial(self._put, saved), failed):
            if self.rank:  # rank 0 tells of it
                text = f"{saved.digest} {problem}".encode("utf-8", "ignore")[:PART_BYTES]
                self._attempt(partial(self.store.put, self._part(saved.step, self.rank), text), failed)
            pause = next(pauses, PAUSES[-1])
            with self._changed:
                ends = self._changed.wait_for(lambda: self.waiting or self._closing, pause)
            if ends and not left:
                self.say("fault", f"{saved.name} isn't put into the store", step=saved.step)
                return
            if ends:
                left -= 1
                time.sleep(min(pause, LAST_PAUSE_S))

    def _attempt(self, work: Callable[[], None], failed: str) -> str:
        """What went wrong with it, which is also an event; empty: nothing."""
        try:
            work()
        except (UserError, RunError) as error:
            problem = str(error)
        except BaseException as error:  # a panic of the library's is no Exception, and no end of the run
            problem = f"{type(error).__name__} {str(error)[:200]}"
        else:
            return ""
        self.say("fault", f"{failed}: {problem}")
        return problem

    def say(self, kind: str, message: str = "", **fields: Any) -> None:
        """Writes an event; on rank 0."""
        if self.tell is not None:
            with suppress(Exception):  # the disk that holds the events may be full
                self.tell(kind, message, **fields)

    def _put(self, saved: Saved) -> None:
        """This rank's files; rank 0 also all that comes after the other ranks' are there."""
        where, store = f"{SAVES}/{saved.name}", self.store
        if self.run_id is not None:
            self.claim(self.run_id)
        if not self._makes_room(saved, where):
            return
        for name, file in saved.files.items():
            if name not in saved.done:
                file.seek(0)
                store.put(f"{where}/{name}", file)
                saved.done.add(name)
                saved.bytes += os.fstat(file.fileno()).st_size
                self._moved = time.monotonic()
        if self.rank:
            store.put(self._part(saved.step, self.rank), saved.digest.encode())
            return
        self._wait_for_parts(saved)
        self._put_beside(saved.folder.parent.parent)
        store.put(f"{where}/{COMMIT}", saved.commit)
        seconds = time.monotonic() - saved.began
        self.say("store", step=saved.step, url=str(store.url / where), seconds=round(seconds, 3), bytes=saved.bytes)
        store.delete([part.name for part in store.list(PARTS) if part.name <= self._part(saved.step, 99_999)])
        self._prune(saved)

    def _makes_room(self, saved: Saved, where: str) -> bool:
        """Whether this very checkpoint isn't there yet. Another one of its step loses its COMMIT before a file of it is
        replaced: rank 0 does so, the others wait."""
        while True:
            try:
                if self.store.read(f"{where}/{COMMIT}", COMMIT_BYTES) == saved.commit:
                    return False
            except AbsentError:
                return True
            if self.rank == 0:
                self.store.delete([f"{where}/{COMMIT}"])
            time.sleep(0.1 if self.rank == 0 else 1.0)

    @staticmethod
    def _part(step: int, rank: int) -> str:
        return f"{PARTS}/{step:08d}-{rank:05d}"

    def _wait_for_parts(self, saved: Saved) -> None:
        """Until every other rank has put its files; StoreError where none came for long."""
        missing, since, pause = set(range(1, self.world)), time.monotonic(), 0.05
        while missing:
            there = {entry.name for entry in self.store.list(PARTS)}
            for rank in [rank for rank in sorted(missing) if self._part(saved.step, rank) in there]:
                part = self.store.read(self._part(saved.step, rank), PART_BYTES).decode("utf-8", "replace")
                digest, _, problem = part.partition(" ")
                if digest == saved.digest and problem:
                    raise StoreError(f"rank {rank}: {problem}")
                if digest == saved.digest:
                    missing.discard(rank)
                    since = self._moved = time.monotonic()
            if missing and time.monotonic() - since > STALL_S:
                raise StoreError(f"rank {min(missing)} hasn't put its files for {STALL_S:.0f} s")
            if missing:
                time.sleep(pause := min(2 * pause, 2.0))

    def _put_beside(self, home: Path) -> None:
        """The files of the run's folder that models and resumes need; those that changed since they were put."""
        origin = home / ORIGIN
        for path in [*(home / name for name in BESIDE), *(sorted(origin.iterdir()) if origin.is_dir() else [])]:
            with suppress(FileNotFoundError):
                facts = path.stat()
                name, state = path.relative_to(home).as_posix(), (facts.st_size, facts.st_mtime_ns)
                if path.is_file() and self._beside.get(name) != state:
                    with open(path, "rb") as file:
                        self.store.put(name, file)
                    self._beside[name] = state

    def _prune(self, newest: Saved) -> None:
        """Removes what isn't kept, COMMIT first; and what has none, of steps before the newest."""
        steps, place = self.place.steps(), self.place
        whole = {name: entries for name, entries in steps.items() if is_committed(name, entries)}
        fetch(place.store, [head for entries in whole.values() for head in heads(entries)], place.mirror)
        forget(place, whole)
        old = {folder.name for folder in superfluous([place.folder(name) for name in whole], self.kept)}
        for name, entries in steps.items():
            if name in old or (name not in whole and step_number(name) < newest.step):
                commit = f"{SAVES}/{name}/{COMMIT}"
                self.store.delete([commit] if name in whole else [])
                self.store.delete([entry.name for entry in entries if entry.name != commit])

    def _put_aside(self, after: int) -> None:
        """Finished ones of later steps lose their COMMIT, which is kept beside it."""
        for name in self.place.committed():
            if step_number(name) > after:
                commit = f"{SAVES}/{name}/{COMMIT}"
                self.store.put(f"{SAVES}/{name}/{ASIDE}", self.store.read(commit, COMMIT_BYTES))
                self.store.delete([commit])
                self.say("fault", f"set {name} aside in the store: the run goes on from step {after}", step=after)
