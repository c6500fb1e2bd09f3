"""The newest steps of a run in this node's memory: a restart on the same node goes on from there, without a disk.

    /dev/shm/scalewright-memory-USER-HASH/          HASH: of the run's folder
      5f0c…-0/  model-00000-000.safetensors, ...    a rank's snapshot itself (snapshot.py): a checkpoint's files
                part-00000.json                     its files, boxes and checksums, once its writer has counted them;
                                                    rank 0's has all that isn't a tensor, too
      5f0c…-1/  the same of another step; the older of the two is written over. 5f0c…: this start of the run
      step-00000010/                                what it went on from (recall.py), until a step of its own is whole

On several nodes each folder also has the copies of another node's parts (courier.py). No rank waits for another's part:
each counts for itself, and a restart looks whether all are there. A step is begun when the one before is whole on all
nodes that keep it, else left out: what the network doesn't carry costs freshness, never time. The memory outlives the
run's processes, and goes when the run ends as it should.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalewright.checkpoint.background import Background
from scalewright.checkpoint.format import committed
from scalewright.checkpoint.memory import root_of
from scalewright.checkpoint.memory.courier import part_name, put_json
from scalewright.checkpoint.memory.nodes import Nodes
from scalewright.checkpoint.save import Draft
from scalewright.checkpoint.snapshot import Snapshot
from scalewright.checkpoint.write import boxes_of, in_files
from scalewright.parallel.collectives import from_rank_zero, gather_json
from scalewright.parallel.mesh import Mesh

TICK_S = 0.05


class MemoryTier:
    """The steps of one rank in memory. All ranks make it, and call `begin` and `forget`, together."""

    def __init__(self, mesh: Mesh, folder: Path, *, apart: bool, limit_s: float, buddy: int | None = None) -> None:
        """`folder`: the run's; `apart`, `limit_s`: as of AsyncSaver; `buddy`: as of Nodes."""
        self.mesh, self.root, self.limit_s = mesh, root_of(folder), limit_s
        self.save = str(from_rank_zero(secrets.token_hex(6), mesh))
        folders = [self.root / f"{self.save}-{number}" for number in (0, 1)]
        self.sets = [Snapshot(mesh.device, apart=apart, folder=folder) for folder in folders]
        self.nodes = Nodes(mesh, self.root, buddy, limit_s)
        self.news: list[tuple[str, str, dict[str, Any]]] = []  # kind, message and fields of events, for rank 0
        self._writer, self._turn, self._begun = Background(), 0, 0
        self._job: dict[str, Any] | None = None  # to be given to the writer
        self._failed = ""  # why the newest isn't counted
        self._newest, self._lags, self._slow, self._trouble = -1, False, False, ""

    def begin(self, draft: Draft) -> str:
        """Keeps a step, written over the one before the last; why it can't, if so, and nothing is kept from then on.
        Left out, on all ranks, where the step before isn't yet on all nodes that are to have it."""
        self._wait()
        snapshot, rank = self.sets[self._turn], self.mesh.rank
        assert snapshot.folder is not None
        problem, lags = "", self.nodes.busy()
        try:
            make_private(snapshot.folder)
            if not all((snapshot.folder / file["name"]).exists() for file in snapshot.files):
                snapshot.close()  # somebody took the folder away: what lies in files without names is no use
            snapshot.prepare(draft.chunks, rank)
            self._writer.start()
        except OSError as error:
            problem = f"{error.strerror or error} (rank {rank})"
        answers = gather_json([problem, lags, self._failed or self.nodes.trouble], self.mesh)
        self._failed = ""
        if problem := next((text for text, *_ in answers if text), ""):
            self.close(clean=True)
            return problem
        self._tell(draft.step, answers)
        if self._lags:
            return ""
        self._make_room()
        (snapshot.folder / part_name(rank)).unlink(missing_ok=True)  # what follows changes the files that it describes
        snapshot.take(draft.chunks)
        about: dict[str, Any] = {"step": draft.step, "save": self.save, "run_id": draft.head["run_id"]}
        about["world"] = self.mesh.world
        self.nodes.copy(snapshot.folder, self.save, draft.step)
        if rank == 0:
            about["head"] = {"head": draft.head, "state": draft.state, "finite": draft.finite}
        boxes = {name: boxes_of(batch) for name, batch in in_files(draft.chunks, rank)}
        files = [{**file, "boxes": boxes[file["name"]]} for file in snapshot.files]
        self._job = {"folder": str(snapshot.folder), "files": files, "part": part_name(rank), "about": about}
        self._turn, self._begun, self._newest = 1 - self._turn, self._begun + 1, draft.step
        self.follow()
        return ""

    def _tell(self, step: int, answers: list[list[Any]]) -> None:
        """What all ranks know of the copies, where it is news."""
        nodes, lags = self.nodes, any(late for _, late, _ in answers)
        trouble = next((f"{nodes.hosts[nodes.of_rank[r]]}: {text}" for r, (*_, text) in enumerate(answers) if text), "")
        if lags and not self._slow:
            slower = "copying steps to another node takes longer than checkpoint.memory_every: some are left out"
            self.news.append(("lags", f"step {step}: {slower}", {"step": step}))
        if trouble and not self._trouble:
            message = f"the step in memory before {step} isn't on every node that should have it ({trouble})"
            self.news.append(("fault", message, {"step": step}))
        self._lags, self._slow, self._trouble = lags, self._slow or lags, trouble

    def _make_room(self) -> None:
        """What earlier starts left goes: what this one went on from, when a step of its own is whole."""
        if self.nodes.is_first and self._begun < 2 and self.root.is_dir():
            kept = committed(self.root) if self._begun == 0 else []
            for folder in self.root.iterdir():
                if folder not in kept and not folder.name.startswith(self.save):
                    shutil.rmtree(folder, ignore_errors=True)

    def follow(self) -> None:
        """Has the newest step's checksums counted, once it is in host memory; asked once a step."""
        snapshot = self.sets[1 - self._turn]
        if self._job is not None and snapshot.is_copied():
            job, self._job = self._job, None
            try:
                self._writer.begin(job, snapshot.handles)
            except OSError as error:
                self._give_up(str(error))

    def wait(self) -> None:
        """What the device is given from now on waits until all has been copied."""
        for snapshot in self.sets:
            snapshot.wait()

    def _wait(self) -> None:
        """Until the writer has counted what it was given; one that died, or takes too long, is started anew."""
        if self._job is not None:
            self.sets[1 - self._turn].is_copied(wait=True)
            self.follow()
        deadline = time.perf_counter() + self.limit_s
        while self._writer.busy:
            if (answer := self._writer.poll(TICK_S)) is not None and "problem" in answer:
                self._give_up(str(answer["problem"]))
                self._writer.kill()
            elif answer is None and time.perf_counter() > deadline:
                self._writer.kill()
                self._give_up(f"its writer took longer than {self.limit_s:g} s")

    def _give_up(self, problem: str) -> None:
        """Lets a courier that waits for this rank's part know that it won't come."""
        self._failed, about = problem, {"step": self._newest, "save": self.save, "problem": problem}
        folder = self.sets[1 - self._turn].folder
        assert folder is not None
        with suppress(OSError):
            put_json(folder / part_name(self.mesh.rank), about)

    def settle(self) -> None:
        """Waits until the newest step is whole, and its copy there or in trouble."""
        self._wait()
        while self.nodes.busy(TICK_S):
            pass

    def forget(self) -> None:
        """The run went back: what is kept lies in a future that won't be."""
        self._wait()
        self.nodes.stop()
        for snapshot in self.sets:
            assert snapshot.folder is not None
            for part in snapshot.folder.glob("part-*.json"):  # this node's ranks', and those that it copied
                part.unlink(missing_ok=True)

    def close(self, *, clean: bool) -> None:
        """Ends the writer and the courier; `clean`: the run has ended, and the memory is given back."""
        with suppress(OSError):
            self._writer.kill()
        self.nodes.close()
        for snapshot in self.sets:
            snapshot.close()
        if clean:
            shutil.rmtree(self.root, ignore_errors=True)


def make_private(folder: Path) -> None:
    """Makes a folder that only this user reads. Raises OSError for one of somebody else's."""
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    if folder.parent.is_symlink() or folder.parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder.parent} is another user's")
    folder.mkdir(exist_ok=True)
