"""Whole matrices out of cut ones: each goes to one of the ranks that share it, and comes back changed.

    rank 0 of fsdp    rows 0-3 of A, B, C, D  ─┐ all-to-all ┌─►  A and D
    rank 1            rows 4-7 of the same    ─┘            └─►  B and C    ──► over tp likewise ──► f(whole)
                                                                                and the same way back

An optimizer that looks at a matrix as a whole (Muon) needs nothing else. Every matrix is computed once among the ranks
that share it, and of n ranks with Psi numbers each sends Psi/n and gets them back. A gather would bring Psi to every
rank, where all compute all (Liu et al. 2025, arXiv 2502.16982, algorithm 1). Stacked experts [E, ., .] are as many
matrices: cuts between experts stay. Ranks that hold copies (dp_replicate, and fsdp without ZeRO) compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from scalewright.parallel.functions import AxisGroup, axis_group, exchanged
from scalewright.parallel.mesh import Mesh
from scalewright.spec.placement import Box, Placement, Split, box

Function = Callable[[Tensor], Tensor]  # of a matrix or a stack; the result has the same shape and dtype


class Owners:
    """The ways of some cut matrices to their owners."""

    def __init__(self, placements: Sequence[Placement], mesh: Mesh) -> None:
        self.chains: dict[tuple[str, ...], list[int]] = {}
        for index, placement in enumerate(placements):
            self.chains.setdefault(tuple(s.axis for s in _cuts(placement, mesh)), []).append(index)
        self.ways = [_way([placements[i] for i in members], chain, mesh) for chain, members in self.chains.items()]

    def apply(self, parts: Sequence[Tensor], function: Function) -> list[Tensor]:
        """`function` of every whole matrix; of each the part that this rank gave. A collective."""
        made = list(parts)
        for members, way in zip(self.chains.values(), self.ways, strict=True):
            for index, part in zip(members, _apply(way, [parts[i] for i in members], function), strict=True):
                made[index] = part
        return made


def _cuts(placement: Placement, mesh: Mesh) -> list[Split]:
    """The cuts through single matrices, the last one first."""
    first = len(placement.tensor.shape) - 2  # a stack's own dimension is before
    return [s for s in reversed(placement.splits) if s.parts > 1 and mesh.size(s.axis) > 1 and s.dim >= first]


@dataclass(frozen=True)
class _Stop:
    """One exchange: parts of some matrices, over the ranks of an axis."""

    group: AxisGroup
    owners: tuple[int, ...]  # of every matrix, by rank of the group
    boxes: tuple[tuple[Box, ...], ...]  # of every matrix, by rank: the part that it holds

    def mine(self) -> list[int]:
        return [index for index, owner in enumerate(self.owners) if owner == self.group.index]

    def there(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Parts of all matrices -> this rank's own matrices, whole along the axis."""
        flat = torch.cat([parts[index].reshape(-1) for index in self._order()])
        mine = self.mine()
        pieces = [self._size(index, rank) for rank in range(self.group.size) for index in mine]
        arrived = iter(torch.split(exchanged(flat, self._held(), self._owned(), self.group), pieces))
        wholes = [flat.new_empty(_span(self.boxes[index])[1]) for index in mine]
        for rank in range(self.group.size):
            for index, whole in zip(mine, wholes, strict=True):
                _part(whole, self.boxes[index], rank).copy_(next(arrived).view(self.boxes[index][rank][1]))
        return wholes

    def back(self, wholes: Sequence[Tensor], like: Tensor) -> list[Tensor]:
        """The other way round; `like`: any tensor of the same dtype and device."""
        pieces = [
            _part(whole, self.boxes[index], rank).reshape(-1)
            for rank in range(self.group.size)
            for index, whole in zip(self.mine(), wholes, strict=True)
        ]
        flat = torch.cat(pieces) if pieces else like.new_empty(0)
        order, rank = self._order(), self.group.index
        sizes = [self._size(index, rank) for index in order]
        arrived = torch.split(exchanged(flat, self._owned(), self._held(), self.group), sizes)
        parts = dict(zip(order, arrived, strict=True))
        return [parts[index].view(self.boxes[index][rank][1]) for index in range(len(self.owners))]

    def _order(self) -> list[int]:
        """The matrices by owner, as they are sent."""
        return sorted(range(len(self.owners)), key=self.owners.__getitem__)

    def _size(self, index: int, rank: int) -> int:
        return prod(self.boxes[index][rank][1])

    def _held(self) -> list[int]:
        """Numbers of this rank's parts, by the owner of their matrix."""
        sizes = [0] * self.group.size
        for index, owner in enumerate(self.owners):
            sizes[owner] += self._size(index, self.group.index)
        return sizes

    def _owned(self) -> list[int]:
        """Numbers of this rank's matrices, by the rank that holds them."""
        mine = self.mine()
        return [sum(self._size(index, rank) for index in mine) for rank in range(self.group.size)]


def _way(placements: list[Placement], chain: Sequence[str], mesh: Mesh) -> list[_Stop]:
    """The exchanges of some matrices that are cut over the same axes; ends where this rank owns none."""
    stops: list[_Stop] = []
    for axis in chain:
        if not placements:
            break
        sizes = mesh.grid.size_of
        coords = [{**mesh.coords, axis: rank} for rank in range(sizes[axis])]
        boxes = tuple(tuple(box(placement, at, sizes) for at in coords) for placement in placements)
        # by whole shapes, so that ranks with other parts of the same matrices agree
        owners = balanced([placement.tensor.shape for placement in placements], sizes[axis])
        stops.append(_Stop(axis_group(mesh, axis), owners, boxes))
        placements = [_without(placements[index], axis) for index in stops[-1].mine()]
    return stops


def _apply(way: Sequence[_Stop], parts: list[Tensor], function: Function) -> list[Tensor]:
    if not parts:
        return []
    if not way:
        return [function(part) for part in parts]
    stop, *rest = way
    return stop.back(_apply(rest, stop.there(parts), function), parts[0])


def balanced(shapes: Sequence[Sequence[int]], ranks: int) -> tuple[int, ...]:
    """An owner for every matrix: dearest first, each to the rank that has least to do.

    The price is that of products with a matrix's own transpose: rows x columns x the smaller of both.
    """
    prices = [prod(shape) * min(shape[-2:]) for shape in shapes]
    load, owners = [0] * ranks, [0] * len(shapes)
    for index in sorted(range(len(shapes)), key=lambda index: (-prices[index], index)):
        owner = min(range(ranks), key=lambda rank: (load[rank], rank))
        owners[index] = owner
        load[owner] += prices[index]
    return tuple(owners)


def _without(placement: Placement, axis: str) -> Placement:
    return replace(placement, splits=tuple(split for split in placement.splits if split.axis != axis))


def _span(boxes: Sequence[Box]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The offsets and the shape of what some boxes cover together."""
    filled = [part for part in boxes if prod(part[1])] or list(boxes)
    first = tuple(min(offsets) for offsets in zip(*(offsets for offsets, _ in filled), strict=True))
    ends = zip(*([o + s for o, s in zip(*part, strict=True)] for part in filled), strict=True)
    return first, tuple(max(end) - start for end, start in zip(ends, first, strict=True))


def _part(whole: Tensor, boxes: Sequence[Box], rank: int) -> Tensor:
    """A rank's part of what all boxes cover."""
    offsets, sizes = boxes[rank]
    if not prod(sizes):
        return whole.new_empty(sizes)
    first = _span(boxes)[0]
    return whole[tuple(slice(o - f, o - f + s) for o, f, s in zip(offsets, first, sizes, strict=True))]
