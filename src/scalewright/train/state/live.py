"""A run's state as a rank of a living replica has it: read like a checkpoint, by the ranks at its place in any replica.

island/3/weight/head.weight  ──► island/0/weight/head.weight      every island's own is in the first's names
rank 5, replica 2, place 1   ◄── rank 1, replica 0, place 1       the same boxes: replicas are split alike
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from scalewright.checkpoint.boxes import StoredTensor
from scalewright.checkpoint.format import ISLAND, OPTIMIZER, Manifest
from scalewright.checkpoint.read import CheckpointReader
from scalewright.spec.placement import Box
from scalewright.spec.run import RunSpec


@dataclass(frozen=True)
class Owed:
    """A step that was done when ranks were lost, and what is still to be done after it."""

    row: bool  # its numbers may not have been written
    report: list[float] = field(default_factory=list)
    seconds: float = 0.0
    hash: str = ""  # of its samples


class LiveReader(CheckpointReader):
    """The state in host memory. `shapes` are those of whole tensors."""

    def __init__(
        self, run: RunSpec, run_id: str, state: Mapping[str, Any], tensors: Mapping[str, Tensor],
        shapes: Mapping[str, tuple[int, ...]], owed: Owed | None,
    ) -> None:  # fmt: skip
        model = {} if isinstance(run.model, str) else run.model.dump()
        stored = {
            name: StoredTensor(shapes[name], str(tensor.dtype).removeprefix("torch."), ())
            for name, tensor in tensors.items()
        }
        step, samples = int(state["step"]), int(state["samples"])
        self.manifest = Manifest(step, samples, run_id, model, state["run"]["layout"], stored, {})
        self.folder, self.state, self.tensors, self.owed = (
            run.folder / "checkpoints" / "live",
            dict(state),
            tensors,
            owed,
        )

    def has(self, name: str) -> bool:
        """Whether this rank has it."""
        return _stored(name) in self.tensors

    def read(self, name: str, box: Box | None = None, shape: tuple[int, ...] | None = None) -> Tensor:
        """What this rank holds of a tensor: the box that a rank at its place wants."""
        return self.tensors[_stored(name)]


def _stored(name: str) -> str:
    """The name among the first island's."""
    if not name.startswith(ISLAND):
        return name
    rest = name.removeprefix(ISLAND).partition("/")[2]
    return rest if rest.startswith(OPTIMIZER) else f"{ISLAND}0/{rest}"
