"""One run at a time in a folder: the same command, started twice, must not write into one run's files.

    rank 0   lock out_dir/events.jsonl  ->  train  ->  the lock goes, however the process ends (kill -9, too)

With `resume: never` a folder that holds an earlier run is renamed first, so that nothing of it is lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scalewright.checkpoint.format import free_name
from scalewright.spec.base import read_yaml
from scalewright.spec.common.untrusted import inside
from scalewright.spec.ends import COMPANIONS, ORIGIN
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec

REPLACED = ("run.yaml", "tokenizer.json", "report.html", ORIGIN, *COMPANIONS)  # what a run writes anew
WRITTEN = ("events.jsonl", "metrics.jsonl", "tokenizer.json", *COMPANIONS)  # through a link, if it is one


class InUseError(UserError):
    """Another process trains in the folder: whatever is written there is its own."""


def check_folder(run: RunSpec, force: bool = False) -> None:
    """Raises UserError when the run would replace files of its folder that no run wrote, or can't save there. A run's
    own run.yaml holds its `environment`; whatever lies beside one is the run's. So `out_dir: .`, or a folder of
    prepared tokens, costs nobody a file."""
    folder, saves = run.folder, run.folder / "checkpoints"
    if os.path.lexists(saves) and not saves.is_dir():  # it would begin anew, and fail when it saves
        how = "mount or restore the folder that belongs there, or set out_dir"
        raise UserError("the checkpoints' folder is none, or a link that leads nowhere", str(saves), how)
    there = [name for name in REPLACED if (folder / name).exists()]
    if not force and there and not _is_runs(folder / "run.yaml"):
        problem = f"the run would replace {there[0]} in its folder, and no run wrote that"
        raise UserError(problem, f"out_dir: {folder}", "set out_dir to another folder, or add --force")


def _is_runs(path: Path) -> bool:
    with suppress(UserError):
        content = read_yaml(path)
        return isinstance(content, dict) and isinstance(content.get("environment"), dict)
    return False


def check_free(run: RunSpec) -> None:
    """Raises UserError when another process trains in the folder, before workers start; makes no file."""
    with suppress(FileNotFoundError), hold_folder(run.folder, create=False):
        pass


@contextmanager
def claim_folder(run: RunSpec) -> Iterator[None]:
    """Holds the run's folder; raises UserError when another process trains there. Called by rank 0."""
    folder = run.folder.resolve()  # one that is "." has no name to rename
    if run.resume == "never" and any((folder / name).exists() for name in ("metrics.jsonl", "checkpoints")):
        with hold_folder(folder):
            folder.rename(free_name(folder, "old"))
    with hold_folder(folder):
        yield


@contextmanager
def hold_folder(folder: Path, create: bool = True) -> Iterator[None]:
    """A run's folder, by a lock that the kernel takes back when its holder dies; no file in it leads out. Without
    `create` FileNotFoundError where nothing was trained there."""
    try:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        for name in WRITTEN:
            inside(folder, name)
        file = open(folder / "events.jsonl", "ab" if create else "r+b")  # noqa: SIM115 - closed below
    except OSError as error:
        if not create and isinstance(error, FileNotFoundError):
            raise
        where = str(error.filename or folder)
        raise UserError(f"cannot write: {error.strerror}", where, "free space, or set out_dir") from None
    with file:
        held = True
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # `resume: never` of another start may have renamed the folder since it was opened
            held = os.path.samestat(os.fstat(file.fileno()), os.stat(folder / "events.jsonl"))
        except (BlockingIOError, FileNotFoundError):
            held = False
        except (ImportError, OSError):  # Windows, or a file system without locks
            pass
        if not held:
            raise InUseError("another process is training there", str(folder), "wait for it or stop it, or set out_dir")
        yield
