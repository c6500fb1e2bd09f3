"""Which ranks of a layout do the same: they hold tensors of the same shapes, at the same kind of place.

    tp 8, pp 8, dp 8:   rank 0 = rank 1 = ... = rank 63   (first stage)     64 ranks, one group
                        rank 64 = ... = rank 127          (second stage)    64 ranks, ...

Pure arithmetic over `spec/`: nothing is built. Ranks are compared by the shapes that they hold, so that they
differ where stages have other layers, where rows don't divide, and at the ends of the vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod
from typing import Any

from scalewright.spec.grid import Grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import Placement, box, local_shape, stage_layers
from scalewright.spec.schedule import stage_ranks


@dataclass(frozen=True)
class EqualRanks:
    """Ranks that hold and run the same."""

    ranks: tuple[int, ...]
    pp: int  # their place in the pipeline
    params_local: int  # true numbers that each holds, without padding
    program: Any  # equal for groups that run the same, each in its own order of the schedule


def equal_ranks(
    placements: tuple[Placement, ...], grid: Grid, layout: Layout, model: ModelSpec | None = None
) -> list[EqualRanks]:
    """The groups of like ranks, by their lowest rank; `model` is null for a user's own module."""
    owners = stage_ranks(layout.schedule, layout.pp, layout.virtual_stages)
    held = [_held_by(placements, owners, rank) for rank in range(layout.pp)]
    places = [_place(model, layout, owners, rank) for rank in range(layout.pp)]
    shapes = _Shapes(grid)
    groups: defaultdict[Any, list[int]] = defaultdict(list)
    for rank in range(grid.world):
        coords = grid.coords(rank)
        groups[(coords["pp"], *shapes.of(held[coords["pp"]], coords))].append(rank)
    return [
        EqualRanks(tuple(ranks), pp, sum(prod(shape) * count for shape, count in true), (places[pp], allocated))
        for (pp, allocated, true), ranks in groups.items()
    ]


def _held_by(placements: tuple[Placement, ...], owners: tuple[int, ...], rank: int) -> list[tuple[Placement, int]]:
    """What a pipeline rank holds: one placement of every kind, and how many tensors are of that kind."""
    kinds: defaultdict[Any, list[Placement]] = defaultdict(list)
    for placement in placements:
        if rank in {owners[stage] for stage in placement.stages}:
            kinds[placement.tensor.shape, placement.splits, placement.grad_sum].append(placement)
    return [(alike[-1], len(alike)) for alike in kinds.values()]


def _place(model: ModelSpec | None, layout: Layout, owners: tuple[int, ...], rank: int) -> Any:
    """Each stage of a pipeline rank: whether its neighbours are elsewhere, and what its layers are like."""
    if model is None:
        return ()
    layers, last, stages = stage_layers(model, layout), len(owners) - 1, []
    for stage, owner in enumerate(owners):
        if owner == rank:
            start = sum(layers[:stage])
            ends = (stage == 0, stage == last)
            apart = (stage > 0 and owners[stage - 1] != rank, stage < last and owners[stage + 1] != rank)
            stages.append((ends, apart, tuple(model.kind(n) for n in range(start, start + layers[stage]))))
    return tuple(stages)


class _Shapes:
    """Shapes of placements on ranks; computed once for each kind of placement and each place."""

    def __init__(self, grid: Grid) -> None:
        self.sizes = grid.size_of
        self._cache: dict[Any, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def of(self, held: list[tuple[Placement, int]], coords: dict[str, int]) -> tuple[Any, Any]:
        """(shapes allocated, true shapes), each with counts."""
        allocated, true = [], []
        for placement, count in held:
            key = (placement.tensor.shape, placement.splits, tuple(coords[split.axis] for split in placement.splits))
            if key not in self._cache:
                self._cache[key] = (local_shape(placement, coords, self.sizes), box(placement, coords, self.sizes)[1])
            shape, part = self._cache[key]
            allocated.append((shape, count))
            true.append((part, count))
        return tuple(allocated), tuple(true)
