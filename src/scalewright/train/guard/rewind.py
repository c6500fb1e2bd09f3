"""`train.guard.spike: rewind`: from a spike back to the newest checkpoint, and on without its samples.

    step        10 saved    11       12       13 spike
    samples     ..79        80..87   88..95   96..103
    once more               80..87   88..95   104..111        96..103 are left out

All that a resume brings back comes back, so the run is bit for bit one that had
`train.guard.leave_out: [[96, 104]]` from its beginning; and one that is killed on the way meets the same
spike and goes back again. PaLM's spikes were got over so: from a checkpoint before them, without the batches
around them (Chowdhery et al. 2022, section 5.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scalewright.checkpoint.format import read_manifest
from scalewright.checkpoint.read import newest_verified
from scalewright.data.left_out import Range
from scalewright.parallel.mesh import Mesh
from scalewright.train.batches import DataPosition

MOST = 3  # batches that are left out after one checkpoint: when more of them spike, the data aren't the cause


@dataclass(frozen=True)
class Target:
    """Where a run goes back to, and the samples that it then leaves out."""

    folder: Path
    step: int
    samples: Range


class Rewind(Exception):
    """Raised on all ranks when the run is to go back."""

    def __init__(self, target: Target) -> None:
        super().__init__(f"to step {target.step}")
        self.target = target


@dataclass
class Rewinder:
    """Finds where a run goes back to. All ranks ask it together."""

    root: Path  # its checkpoints
    mesh: Mesh
    batch: int
    place: DataPosition  # where the run went on from last: its start, a resume, or a rewind

    def find(self, step: int) -> Target | str:
        """The place to go back to from a step that spiked; else why there is none, in words."""
        folder, _ = newest_verified(self.root, self.mesh)
        if folder is None:
            return "there is no checkpoint to go back to"
        saved = read_manifest(folder)
        ahead = self.place.left_out.count(saved.samples)
        if ahead >= MOST * self.batch:
            return f"{ahead} samples after step {saved.step} are left out already"
        samples = self.place.taken(step, self.batch)
        return Target(folder, saved.step, (int(samples[0]), int(samples[-1]) + 1))
