"""A save of a run: drafted by all ranks together, then written at once, or from a snapshot (asynchronous.py).

    rank 0      the run's lines (track/saved.py)        fsync
    each rank   model-*, optimizer-* into step-N.tmp/   fsync, checksums             write.py
    rank 0      manifest.json, state.json, COMMIT; step-N.tmp -> step-N; prune       write.py, verify.py

All that isn't a tensor is in the draft, as it was at its step.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from scalewright.checkpoint.format import BUFFER, COMPLEX, PARTIAL, committed, rank_name, step_folder
from scalewright.checkpoint.verify import Retention, finite_entry
from scalewright.checkpoint.write import (
    Chunk,
    IslandTensors,
    States,
    Written,
    chunks_of,
    commit,
    describe,
    make_empty,
    prune,
    whole_chunk,
    write_rank,
)
from scalewright.parallel.collectives import gather_json
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.weights import Weights
from scalewright.spec.common.files import write_whole
from scalewright.spec.errors import RunError

NEWEST = Retention()


class Lines(Protocol):
    """The run's files of lines, rank 0's (train/metrics/record.py)."""

    def copies(self) -> Mapping[str, bytes]:
        """What a checkpoint keeps of them, by file name."""

    def sync(self) -> None:
        """Has them on the disk."""


@dataclass(frozen=True)
class Draft:
    """A save before a byte of it is written."""

    root: Path
    step: int
    chunks: list[Chunk]  # that this rank writes
    head: dict[str, Any]  # keys of the manifest besides files
    state: dict[str, object]
    lines: Lines | None
    kept: Retention
    finite: bool  # whether the step's loss and gradient norm were
    texts: dict[str, bytes] = field(default_factory=dict)  # rank 0's

    @property
    def final(self) -> Path:
        """The folder of the checkpoint."""
        return step_folder(self.root, self.step)

    @property
    def partial(self) -> Path:
        """Where it is written."""
        return self.final.with_name(self.final.name + PARTIAL)

    def begin(self) -> dict[str, Any]:
        """Makes its folder, with the run's lines; rank 0 alone. Raises OSError, RunError."""
        make_empty(self.root, self.partial)
        for name, text in self.texts.items():
            write_whole(self.partial / name, text.decode("utf-8", "replace"))
        return vars(describe(self.partial, self.texts))

    def finish(self, parts: Iterable[Mapping[str, Any]]) -> None:
        """Makes it a checkpoint, of all that ranks have `Written`, and prunes; on rank 0. Raises as `begin`."""
        if self.lines is not None:
            self.lines.sync()
        written = [Written(**part) for part in parts]
        finiteness = finite_entry(self.finite, (name for part in written for name in part.nonfinite))
        commit(self.partial, self.final, written, {**self.state, **finiteness}, **self.head)
        prune(self.root, self.kept)


def draft(
    root: Path,
    weights: Weights,
    states: States,
    mesh: Mesh,
    *,
    step: int,
    samples: int,
    run_id: str,
    model: dict[str, object],
    layout: dict[str, object],
    state: dict[str, object],
    buffers: Mapping[str, Tensor] | None = None,
    of_rank: Mapping[str, Tensor] | None = None,
    islands: IslandTensors | None = None,
    lines: Lines | None = None,
    kept: Retention = NEWEST,
    finite: bool = True,
) -> Draft:
    """All that this rank holds, to be saved together with every other rank's.

    `states` maps a weight's canonical name to {optimizer state: tensor like the weight's master}. `state` has no
    tensors; `finite`: whether the step's loss and gradient norm were. It is recorded together with whether every number
    written is. `buffers` are the same on every rank, and rank 0 writes them; `of_rank` are this rank's alone.
    `islands`: each writes its own weights and states; those under `optimizer/` are island 0's. `lines`: on rank 0.
    """
    chunks = chunks_of(weights, states, mesh, islands)
    chunks += [whole_chunk(rank_name(name, mesh.rank), tensor) for name, tensor in (of_rank or {}).items()]
    if mesh.rank == 0:
        chunks += [whole_chunk(BUFFER + name, tensor) for name, tensor in (buffers or {}).items()]
    if complexes := [name for name, tensor in (buffers or {}).items() if tensor.is_complex()]:
        state = {**state, COMPLEX: complexes}
    head = {"step": step, "samples": samples, "run_id": run_id, "model": model, "layout": layout}
    texts = dict(lines.copies()) if lines is not None else {}
    return Draft(root, step, chunks, head, state, lines, kept, finite, texts)


def save(draft: Draft, mesh: Mesh) -> Path:
    """Saves at once, together with every other rank; the committed folder. Raises RunError on every rank when any of
    them could not write; earlier checkpoints stay."""
    first = mesh.rank == 0
    begun = together(mesh, draft.partial, draft.begin if first else None)
    written = together(mesh, draft.partial, lambda: vars(write_rank(draft.partial, draft.chunks, mesh.rank)))
    together(mesh, draft.partial, (lambda: draft.finish([begun[0], *written])) if first else None)
    return draft.final


def together(mesh: Mesh, partial: Path, write: Callable[[], Any] | None) -> list[Any]:
    """Every rank's result of its write (None: it has nothing to write), or RunError on all when one had a problem."""
    problem = value = None
    try:
        value = write() if write is not None else None
    except Exception as error:  # safetensors wraps OSError in an error of its own
        problem = in_words(str(error))
    answers = gather_json([problem, value], mesh)
    for rank, (text, _) in enumerate(answers):
        if text:
            raise RunError(failed(partial, text, rank, mesh))
    return [answer for _, answer in answers]


def in_words(problem: str) -> str:
    """A problem of a write, as it is told."""
    full = "No space left" in problem or "os error 28" in problem
    return "no space left on the disk" if full else problem


def failed(partial: Path, problem: str, rank: int, mesh: Mesh) -> str:
    """The error of a save that came to nothing; rank 0 removes what there is of it."""
    if mesh.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
    older = "older checkpoints are kept" if committed(partial.parent) else "no older checkpoint exists"
    return f"cannot save {partial.with_suffix('').name}: {problem} (rank {rank}); {older}"
