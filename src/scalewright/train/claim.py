"""One run at a time in a folder: the same command, started twice, must not write into one run's files.

    rank 0   lock out_dir/events.jsonl  ->  train  ->  the lock goes, however the process ends (kill -9, too)

With `resume: never` a folder that holds an earlier run is renamed first, so that nothing of it is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec


@contextmanager
def claim_folder(run: RunSpec) -> Iterator[None]:
    """Holds the run's folder; raises UserError when another process trains there. Called by rank 0."""
    folder = run.folder
    if run.resume == "never" and any((folder / name).exists() for name in ("metrics.jsonl", "checkpoints")):
        with _locked(folder):
            folder.rename(_free_name(folder))
    with _locked(folder):
        yield


def _free_name(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    return aside


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """A lock that the kernel takes back when its holder dies; where there are none, nothing is locked."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "events.jsonl", "ab")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UserError(
            f"cannot write: {error.strerror}", str(folder), "free space, or set out_dir"
        ) from None
    with file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                "another process is training there", str(folder), "wait for it or stop it, or set out_dir"
            ) from None
        except (ImportError, OSError):  # Windows, or a file system without locks
            pass
        yield
