"""A run's checkpoint out of its store onto the disk, where that has none that is as new and sound.

    the store's finished ones newer than the disk's, newest first
      ──► each rank its share of the files into fetching-step-N ──► checksums ──► rename: a checkpoint as if saved here
      ──► a damaged one: passed over, and named; the one before it

Every byte comes over the network once, whatever the number of ranks. What lies beside checkpoints/ comes, too, where
the run's folder lacks it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from scalewright.checkpoint.format import free_name
from scalewright.checkpoint.read import damage
from scalewright.checkpoint.store.bring import Place, beside, run_place, step_number
from scalewright.checkpoint.store.upload import RUN_ID
from scalewright.checkpoint.verify import is_finite
from scalewright.parallel.collectives import from_rank_zero, gather_json
from scalewright.parallel.mesh import Mesh
from scalewright.spec.common.files import sync_folder
from scalewright.spec.common.untrusted import inside
from scalewright.spec.errors import RunError, UserError
from scalewright.storage.mirror import check_room, fetch_file
from scalewright.storage.objects import Entry

FETCHING = "fetching-"


def restore(url: str, root: Path, mesh: Mesh, after: int) -> tuple[Path | None, list[str]]:
    """The newest sound checkpoint of a step beyond `after` (-1: any) in a run's place in a store, now under
    `checkpoints/` on the disk, and notes on newer ones. None where there is none. All ranks call it; raises UserError
    or RunError, on all of them, where the store can't be read."""
    listed: dict[str, list[list[object]]] = {}
    problem = ""
    place = run_place(url, create=True)
    if mesh.rank == 0:
        try:
            steps = {name: entries for name, entries in place.committed().items() if step_number(name) > after}
            listed = {name: [[e.name, e.bytes, e.tag] for e in entries] for name, entries in steps.items()}
        except (UserError, RunError) as error:
            problem = str(error)
    listed, problem = from_rank_zero([listed, problem], mesh)
    if problem:
        raise RunError(f"cannot look for the run's checkpoints: {problem}")
    notes: list[str] = []
    for name, rows in listed.items():
        entries = [Entry(str(path), int(str(size)), str(tag)) for path, size, tag in rows]
        if (wrong := _bring(place, name, entries, root, mesh)) is None:
            return root / name, [*notes, f"{name} was fetched from {place.store.url}"]
        notes.append(f"skipped a checkpoint in the store: {name}: {wrong}")
    return None, notes


def _bring(place: Place, name: str, entries: list[Entry], root: Path, mesh: Mesh) -> str | None:
    """Fetches one checkpoint; the problem, the same on every rank."""
    partial, home = root / f"{FETCHING}{name}", root.parent  # no name that a save has, or completes

    def begin() -> None:
        root.mkdir(parents=True, exist_ok=True)
        for leftover in root.glob(f"{FETCHING}*"):
            shutil.rmtree(leftover)
        partial.mkdir()
        check_room(sum(entry.bytes for entry in entries), place.store, root)
        for entry in beside(place):
            if entry.name != RUN_ID and not (path := inside(home, entry.name)).exists():
                path.parent.mkdir(exist_ok=True)
                fetch_file(place.store, entry, path)

    def share() -> None:
        for entry in entries[mesh.rank :: mesh.world]:
            file = inside(partial, entry.name.removeprefix(f"{place.under}{name}/"))
            if file.parent == partial:
                fetch_file(place.store, entry, file)

    def finish() -> None:
        final = root / name
        if not is_finite(partial) and any(root.glob("step-*/COMMIT")):
            raise UserError("its numbers aren't finite")
        if final.exists():
            final.rename(free_name(final, "damaged"))
        partial.rename(final)
        sync_folder(root)

    problem = _together(begin if mesh.rank == 0 else None, mesh) or _together(share, mesh) or damage(partial, mesh)
    problem = problem or _together(finish if mesh.rank == 0 else None, mesh)
    if problem is not None and mesh.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
    return problem


def _together(work: Callable[[], None] | None, mesh: Mesh) -> str | None:
    """Every rank's work (None: it has none); the first problem, the same on every rank."""
    problem = None
    try:
        if work is not None:
            work()
    except (UserError, RunError, OSError) as error:
        problem = str(error)
    return next((text for text in gather_json(problem, mesh) if text), None)
