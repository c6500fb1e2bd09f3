"""Where a run goes on from: the newest checkpoint of its folder that is whole, one that is named, or nothing.

auto     newest, if its checksums hold, else the one before it, ...; all damaged: an error
PATH     that one, unless it is another run's and this run has come further by now
never    an earlier run in the folder is renamed out of the way
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from scalewright.checkpoint.format import read_manifest
from scalewright.checkpoint.read import CheckpointReader, damage, find_checkpoint, newest_verified
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import fill
from scalewright.spec.errors import UserError
from scalewright.spec.run import PythonRef, RunSpec
from scalewright.train.batches import Place
from scalewright.train.network import Network, checkpoint_source
from scalewright.train.optimizer import write_states


def find_resume(run: RunSpec, mesh: Mesh) -> tuple[CheckpointReader | None, list[str]]:
    """The checkpoint to continue from, and what was wrong with newer ones.

    Checkpoints that are all damaged are an error: a run that began anew there would bury them.
    """
    if run.resume == "never":
        return None, []
    root = run.folder / "checkpoints"
    if run.resume != "auto":
        given = find_checkpoint(run.resume)
        if (own := _further(given, root, mesh)) is not None:
            return CheckpointReader(own, verify_files=False), [
                f"this run has come further than {given}: it goes on from {own.name}"
            ]
        if problem := damage(given, mesh):
            raise UserError(
                f"the checkpoint is damaged: {problem}", str(given), "resume an older one, or auto"
            )
        return CheckpointReader(given, verify_files=False), []
    folder, rejected = newest_verified(root, mesh)
    if folder is None and rejected:
        count = "its only checkpoint is" if len(rejected) == 1 else f"all {len(rejected)} checkpoints are"
        raise UserError(
            f"this run can't go on: {count} damaged, {rejected[0]}",
            str(root),
            "restore one, or begin anew with resume=never (what is there is kept aside)",
        )
    return (CheckpointReader(folder, verify_files=False) if folder else None), [
        f"skipped a checkpoint: {r}" for r in rejected
    ]


def _further(given: Path, root: Path, mesh: Mesh) -> Path | None:
    """The run's own newest checkpoint when it lies beyond a `given` one from elsewhere.

    A job that is requeued with `resume: PATH` then goes on instead of beginning at PATH each time. One of the
    run's own checkpoints is taken as it is: the user goes back on purpose.
    """
    if given.resolve().parent == root.resolve():
        return None
    own, _ = newest_verified(root, mesh)
    if own is None or read_manifest(own).step <= read_manifest(given).step:
        return None
    return own


def check_same_run(run: RunSpec, reader: CheckpointReader) -> None:
    """Raises UserError when the checkpoint is of another model or optimizer than the run."""
    before, now = reader.state.get("optimizer_name"), optimizer_name(run)
    if before is not None and before != now:
        raise UserError(
            f"the checkpoint has the state of optimizer {before} but the run's is {now}",
            str(reader.folder),
            f"use {before}, or begin a run of its own from the weights alone with init: {reader.folder}",
        )
    mine, theirs = plain_model(run), reader.manifest.model
    different = [key for key in mine if key not in ("name", "version") and mine[key] != theirs.get(key)]
    if different:
        key = different[0]
        raise UserError(
            f"the checkpoint's model has {key} {theirs.get(key)!r} but the run's has {mine[key]!r}",
            str(reader.folder),
            "give this run a name of its own, or resume=never",
        )


def restore(reader: CheckpointReader, network: Network, optimizer: torch.optim.Optimizer) -> Place:
    """Weights and optimizer state from a checkpoint, whatever layout wrote it; returns where it stands."""
    weights = network.parallel.weights
    fill(weights, checkpoint_source(reader))

    def read(kind: str, weight: Any) -> torch.Tensor | None:
        name = f"optimizer/{kind}/{weight.name}"
        if not reader.has(name):
            return None
        return reader.read(name, weight.box, weight.placement.tensor.shape).to(weight.master.device)

    numbers = reader.state.get("optimizer", {})
    write_states(optimizer, weights, reader.optimizer_states(), read, numbers)
    state = reader.state
    return Place(int(state["step"]), int(state["samples"]), int(state["tokens"]))


def plain_model(run: RunSpec) -> dict[str, Any]:
    """The model as a checkpoint writes it down."""
    return {} if isinstance(run.model, str) else run.model.dump()


def optimizer_name(run: RunSpec) -> str:
    """What a checkpoint's optimizer state is of."""
    return run.optimizer.python if isinstance(run.optimizer, PythonRef) else run.optimizer.name
