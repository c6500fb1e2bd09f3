"""The newest steps of a run in this node's memory: a restart on the same node goes on from there, without a disk.

    /dev/shm/scalewright-memory-USER-HASH/          HASH: of the run's folder
      set-0/  model-00000-000.safetensors, ...      a rank's snapshot itself (snapshot.py): a checkpoint's files
              part-00000.json                       its files, boxes and checksums, once its writer has counted them
              head.json                             rank 0's: all that isn't a tensor
      set-1/  the same of another step; the older of the two is written over
      step-00000010/                                what a restart made of a set whose head and parts are of one step

No rank waits for another's part: each counts for itself, and a restart looks whether all are there. The memory outlives
the run's processes, and goes when the run ends as it should. It is this node's alone: where ranks of other nodes
wrote, parts are missing here, and the run goes on from the disk.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from scalewright.checkpoint.background import Background
from scalewright.checkpoint.format import committed, step_folder
from scalewright.checkpoint.save import Draft
from scalewright.checkpoint.snapshot import Snapshot
from scalewright.checkpoint.verify import finite_entry
from scalewright.checkpoint.write import Written, boxes_of, commit, in_files
from scalewright.parallel.collectives import gather_json
from scalewright.parallel.mesh import Mesh
from scalewright.spec.common.files import write_whole

SHARED = Path("/dev/shm")
OLD_S = 86_400.0  # of memory that a run left behind, and that a later one takes away
HEAD = "head.json"
TICK_S = 0.05


def root_of(folder: Path) -> Path:
    """Where a run's steps lie in memory, by its folder."""
    return SHARED / f"scalewright-memory-{os.getuid()}-{sha256(str(folder.resolve()).encode()).hexdigest()[:16]}"


class MemoryTier:
    """The steps of one rank in memory. All ranks call `begin` together."""

    def __init__(self, mesh: Mesh, folder: Path, *, apart: bool, limit_s: float) -> None:
        """`folder`: the run's; `apart`, `limit_s`: as of AsyncSaver."""
        self.mesh, self.root, self.limit_s = mesh, root_of(folder), limit_s
        self.sets = [Snapshot(mesh.device, apart=apart, folder=self.root / f"set-{number}") for number in (0, 1)]
        self._writer, self._turn, self._begun = Background(), 0, 0
        self._job: dict[str, Any] | None = None  # to be given to the writer

    def begin(self, draft: Draft) -> str:
        """Keeps a step, written over the one before the last; why it can't, if so, and nothing is kept from then on."""
        self._wait()
        snapshot, rank = self.sets[self._turn], self.mesh.rank
        assert snapshot.folder is not None
        problem, part = "", snapshot.folder / _part(rank)
        try:
            _private(snapshot.folder)
            part.unlink(missing_ok=True)  # what follows changes the files that it describes
            snapshot.prepare(draft.chunks, rank)
            if rank == 0:  # of a step whose parts come later: until then no set is whole
                head = {"world": self.mesh.world, "head": draft.head, "state": draft.state, "finite": draft.finite}
                write_whole(snapshot.folder / HEAD, json.dumps(head))
            self._writer.start()
        except OSError as error:
            problem = f"{error.strerror or error} (rank {rank})"
        if problem := next(filter(None, gather_json(problem, self.mesh)), ""):
            self.close(clean=True)
            return problem
        if rank == 0 and self._begun == 1:  # one is whole by now; what the run went on from isn't needed
            for folder in committed(self.root):
                shutil.rmtree(folder, ignore_errors=True)
        snapshot.take(draft.chunks)
        boxes = {name: boxes_of(batch) for name, batch in in_files(draft.chunks, rank)}
        files = [{**file, "boxes": boxes[file["name"]]} for file in snapshot.files]
        self._job = {"folder": str(snapshot.folder), "files": files, "part": part.name, "step": draft.step}
        self._turn, self._begun = 1 - self._turn, self._begun + 1
        self.follow()
        return ""

    def follow(self) -> None:
        """Has the newest step's checksums counted, once it is in host memory; asked once a step."""
        snapshot = self.sets[1 - self._turn]
        if self._job is not None and snapshot.is_copied():
            job, self._job = self._job, None
            with suppress(OSError):  # its part is missing then; the next begin tells
                self._writer.begin(job, snapshot.handles)

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
        while self._writer.busy and self._writer.poll(TICK_S) is None:
            if time.perf_counter() > deadline:
                self._writer.kill()

    def forget(self) -> None:
        """The run went back: what is kept lies in a future that won't be."""
        self._wait()
        for snapshot in self.sets:
            assert snapshot.folder is not None
            (snapshot.folder / _part(self.mesh.rank)).unlink(missing_ok=True)

    def close(self, *, clean: bool) -> None:
        """Ends the writer; `clean`: the run has ended, and the memory is given back."""
        with suppress(OSError):
            self._writer.kill()
        for snapshot in self.sets:
            snapshot.close()
        if clean:
            shutil.rmtree(self.root, ignore_errors=True)


def _part(rank: int) -> str:
    return f"part-{rank:05d}.json"


def _private(folder: Path) -> None:
    """Makes a folder that only this user reads. Raises OSError for one of somebody else's."""
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    if folder.parent.is_symlink() or folder.parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder.parent} is another user's")
    folder.mkdir(exist_ok=True)


def newest(folder: Path, run_ids: Collection[str]) -> Path | None:
    """The newest step in memory of the run in `folder`, with one of these ids, as a checkpoint; None: there is none.
    Rank 0 calls it, before training; what other runs left here long ago is taken away."""
    root = root_of(folder)
    for left in SHARED.glob(f"scalewright-memory-{os.getuid()}-*"):
        with suppress(OSError):
            if left != root and time.time() - max(p.stat().st_mtime for p in (left, *left.iterdir())) > OLD_S:
                shutil.rmtree(left)
    if not root.is_dir() or root.is_symlink() or root.stat().st_uid != os.getuid():
        return None
    whole = sorted(_whole_sets(root), key=lambda entry: int(entry[1]["head"]["step"]))
    made = committed(root)
    if whole and whole[-1][1]["head"]["run_id"] in run_ids:
        held, about, parts = whole[-1]
        nonfinite = finite_entry(about["finite"], (name for part in parts for name in part.nonfinite))
        final = step_folder(root, int(about["head"]["step"]))
        if not made or final.name > made[0].name:
            commit(held, final, parts, {**about["state"], **nonfinite}, **about["head"])
            return final
    return made[0] if made else None


def _whole_sets(root: Path) -> Iterator[tuple[Path, dict[str, Any], list[Written]]]:
    """(folder, head, parts) of sets whose parts are all of their head's step."""
    for held in root.glob("set-*"):
        with suppress(OSError, ValueError, KeyError, TypeError):  # of a save that was cut off
            about = json.loads((held / HEAD).read_text("utf-8"))
            parts = [json.loads((held / _part(rank)).read_text("utf-8")) for rank in range(int(about["world"]))]
            if all(part["step"] == about["head"]["step"] for part in parts):
                yield held, about, [Written(part["files"], part["nonfinite"]) for part in parts]
