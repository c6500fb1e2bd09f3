"""Where a run goes on from: the newest checkpoint of its folder that is whole, one that is named, or nothing.

auto     with checkpoint.memory_every: the step in the nodes' memory, where that is newer than any save
         newest, if its checksums hold, else the one before it, ...; all damaged: an error
         with checkpoint.store: the store's, where that is newer; on an empty disk it is all there is
PATH     that one, unless it is another run's and this run has come further by now
never    an earlier run in the folder is renamed out of the way
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.checkpoint.format import COMMIT, committed, finish_commits, read_manifest
from scalewright.checkpoint.memory.recall import recall
from scalewright.checkpoint.memory.tier import MemoryTier
from scalewright.checkpoint.read import CheckpointReader, damage, find_checkpoint, newest_verified
from scalewright.checkpoint.store.bring import bring, comes_later, run_place, step_number
from scalewright.checkpoint.store.restore import restore
from scalewright.data.dataset import Dataset, open_data
from scalewright.data.mixture import Positions
from scalewright.parallel.collectives import from_rank_zero
from scalewright.parallel.mesh import Mesh
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.common.urls import is_url, parse_url
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.run import RunSpec
from scalewright.train.batches import in_vocabulary
from scalewright.train.resolve import Resolved
from scalewright.train.state.attempts import went_back
from scalewright.train.state.changes import Changes, check_promises, data_settings, find_changes, run_settings
from scalewright.train.state.run_state import optimizer_name


@dataclass(frozen=True)
class Origin:
    """The checkpoint that a run goes on from, its training data from there on, and what has changed since."""

    reader: CheckpointReader | None  # None: it begins
    dataset: Dataset
    changes: Changes
    notes: list[str]  # on checkpoints that were passed over

    @property
    def state(self) -> Mapping[str, Any]:
        """The checkpoint's state.json; empty for a run that begins."""
        return self.reader.state if self.reader is not None else {}


def find_origin(
    resolved: Resolved, mesh: Mesh, memory: MemoryTier | None = None, live: CheckpointReader | None = None
) -> Origin:
    """Where a run goes on from: `live`, where ranks have it; `memory`: of the nodes, where steps are kept there. All
    ranks call it; raises UserError when it is another run than was saved."""
    run = resolved.run
    reader, notes = (live, []) if live is not None else _find_resume(run, mesh, memory)
    state = reader.state if reader is not None else {}
    samples = int(state.get("samples", 0))
    saved = state.get("data", {})  # without positions of an older release's run, or of a user's own data
    positions = Positions.parse(saved) if "segments" in saved else None
    dataset = in_vocabulary(open_data(run.data, "train", run.seed, positions, samples), resolved.vocabulary)
    if reader is None:
        return Origin(None, dataset, Changes(), notes)
    settings, data = run_settings(run, resolved.tokens), data_settings(dataset, run, samples)
    changes = find_changes(state, settings, data, reader.manifest.model)
    check_promises(changes, run.allow_changes, reader.folder)
    return Origin(reader, dataset, changes, notes)


def _find_resume(run: RunSpec, mesh: Mesh, memory: MemoryTier | None) -> tuple[CheckpointReader | None, list[str]]:
    """The checkpoint to continue from, and what was wrong with newer ones. Checkpoints that are all damaged are an
    error: a run that began anew there would bury them."""
    if run.resume == "never":
        return None, []
    root = run.folder / "checkpoints"
    if run.resume != "auto":
        given, is_own = _given(run, root)
        newest, notes = (None, []) if is_own else _further(given, run, root, mesh)
        if newest is not None:
            note = f"this run has come further than {given}: it goes on from {newest.name}"
            return CheckpointReader(newest, verify_files=False), [*notes, note]
        later = comes_later(given)
        if problem := None if later else damage(given, mesh):
            raise UserError(f"the checkpoint is damaged: {problem}", str(given), "resume an older one, or auto")
        return CheckpointReader(given, verify_files=later), []
    if memory is not None and (kept := _from_memory(run, _newest_step(run, root, mesh), memory)) is not None:
        return kept, []
    folder, rejected = newest_verified(root, mesh)
    folder, notes = _from_store(run, root, folder, mesh)
    if memory is not None and rejected:  # of the steps that were passed over some may be in memory
        step = from_rank_zero(read_manifest(folder).step if folder and mesh.rank == 0 else -1, mesh)
        if (kept := _from_memory(run, step, memory)) is not None:
            return kept, [f"skipped a checkpoint: {r}" for r in rejected] + notes
    if folder is None and rejected:
        count = "its only checkpoint is" if len(rejected) == 1 else f"all {len(rejected)} checkpoints are"
        how = "restore one, or begin anew with resume=never (what is there is kept aside)"
        raise UserError(f"this run can't go on: {count} damaged, {rejected[0]}", str(root), how)
    if folder is None:
        saves = [event for event in read_jsonl(run.folder / "events.jsonl") if event.get("kind") == "save"]
        gone = "the run begins anew: its checkpoints are gone, the last of step"
        return None, notes + [f"{gone} {event.get('step')}" for event in saves[-1:]]
    return CheckpointReader(folder, verify_files=False), [f"skipped a checkpoint: {r}" for r in rejected] + notes


def _given(run: RunSpec, root: Path) -> tuple[Path, bool]:
    """The checkpoint that `resume` names, and whether it is the run's own, on the disk or in its place in the store."""
    is_own, given = False, run.resume
    if run.checkpoint.store and is_url(run.resume):
        url = parse_url(run.resume)
        is_own = str(url.parent.parent) == run.checkpoint.store
        given = str(root / url.name) if is_own and (root / url.name / COMMIT).exists() else given
    folder = find_checkpoint(bring(given, states=True, later=True))
    return folder, is_own or folder.resolve().parent == root.resolve()


def _from_store(run: RunSpec, root: Path, folder: Path | None, mesh: Mesh) -> tuple[Path | None, list[str]]:
    """The store's newest sound checkpoint where it is newer than the disk's, and notes. A store that can't be read is
    an error only where the run would begin anew for it."""
    if run.checkpoint.store is None or went_back(run.folder):
        return folder, []
    try:
        newer, notes = restore(run.checkpoint.store, root, mesh, read_manifest(folder).step if folder else -1)
    except (UserError, RunError) as error:
        if folder is None:
            raise
        return folder, [f"{error}; it goes on from the disk's {folder.name}"]
    return newer or folder, notes


def _newest_step(run: RunSpec, root: Path, mesh: Mesh) -> int:
    """The newest saved step by its name alone, on disk or in the store: no file is read. -1: none."""
    steps = [-1]
    if mesh.rank == 0:
        finish_commits(root)
        steps += [step_number(folder.name) for folder in committed(root)[:1]]
        if run.checkpoint.store is not None:
            with suppress(UserError, RunError):  # it doesn't answer: _from_store tells, where it matters
                steps += [step_number(name) for name in list(run_place(run.checkpoint.store).committed())[:1]]
    return int(from_rank_zero(max(steps), mesh))


def _from_memory(run: RunSpec, after: int, memory: MemoryTier) -> CheckpointReader | None:
    """The newest step in the nodes' memory that is sound, where it lies beyond `after`."""
    ids: list[str] = []
    if memory.mesh.rank == 0 and not went_back(run.folder):
        with suppress(OSError, ValueError):  # whatever is there, the disk is left
            events = read_jsonl(run.folder / "events.jsonl")
            ids = sorted({str(event["run_id"]) for event in events if "run_id" in event})
    ids = from_rank_zero(ids, memory.mesh)
    if not ids or (kept := recall(memory, ids, after)) is None:
        return None
    memory.news.append(("memory", kept.line, {"step": kept.step, "copies": kept.copies}))
    return CheckpointReader(kept.folder, verify_files=False, fetch=kept.fetch)


def _further(given: Path, run: RunSpec, root: Path, mesh: Mesh) -> tuple[Path | None, list[str]]:
    """The run's own newest checkpoint when it lies beyond a `given` one from elsewhere, and notes. A job that is
    requeued with `resume: PATH` then goes on instead of beginning at PATH each time. One of the run's own is taken as
    it is: the user goes back on purpose."""
    newest, notes = _from_store(run, root, newest_verified(root, mesh)[0], mesh)
    further = newest is not None and read_manifest(newest).step > read_manifest(given).step
    return (newest if further else None), notes


def check_optimizer(run: RunSpec, reader: CheckpointReader) -> None:
    """Raises UserError when the checkpoint has the state of another optimizer than the run's."""
    before, now = reader.state.get("optimizer_name"), optimizer_name(run)
    if before is not None and before != now:
        problem = f"the checkpoint has the state of optimizer {before} but the run's is {now}"
        how = f"use {before}, or begin a run of its own from the weights alone with init: {reader.folder}"
        raise UserError(problem, str(reader.folder), how)
