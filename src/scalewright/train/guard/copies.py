"""Silent corruption: numbers that several ranks hold alike are compared, bit for bit, every so many steps.

    weights, optimizer states ─► a sum of each tensor's bits ─► one number for all that the same ranks hold
    those numbers, of all ranks ─► one all-gather of a few bytes ─► alike?           no host waits for it
    not alike ─► the tensors' own sums ─► the odd one: rank and tensor               two copies: both are named

Copies are what `spec/placement.py` calls them: replicas, norms under tensor parallelism, shared KV heads, both ends of
a tied embedding, DiLoCo's outer weights. All that changes them (summed gradients, one clipping factor, an elementwise
update) is the same on each, so healthy ones are equal in every bit, and one that a device or its memory spoiled stays
different. (Seen on CPUs. A GPU whose kernels add in another order from call to call may give copies that differ where
each is computed apart, as norms are under tensor parallelism without sequence parallelism.) What has one copy, as a
shard of ZeRO under one replica, can't be compared. A wrong gradient that is summed spoils all copies alike, and isn't
seen either.

The sum is that of the bits as whole numbers, modulo 2**64: one flipped bit b changes it by 2**b, which is never 0; two
flips cancel where they are the same bit, up in one number and down in another. It reads 12 bytes a parameter (AdamW).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from scalewright.parallel.collectives import gather_json
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.weights import Weights
from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import RunError
from scalewright.spec.grid import Grid
from scalewright.train.diloco import Islands
from scalewright.train.metrics.measured import Readback
from scalewright.train.metrics.record import Record

Axes = tuple[str, ...]  # along which ranks hold the same
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # by bytes
SHOWN = 3  # tensors in a message; the event has more
KEPT = 50


class Corrupt(RunError):
    """A run whose copies of the same numbers differ."""


class Held(NamedTuple):
    """A tensor of this rank that others hold, too."""

    axes: Axes
    name: str
    kind: str  # `weight`, or of the optimizer's states
    tensor: Tensor


@dataclass(frozen=True)
class Odd:
    """A tensor whose copies differ."""

    name: str
    kind: str
    ranks: tuple[int, ...]  # that differ from most others; all that hold it, where there is no majority
    copies: int

    @property
    def decided(self) -> bool:
        """Whether the copies tell which is wrong."""
        return len(self.ranks) < self.copies

    def __str__(self) -> str:
        what = f"'{self.name}'" if self.kind == "weight" else f"{self.kind} of '{self.name}'"
        ranks = ", ".join(map(str, self.ranks))
        if self.decided:
            one = len(self.ranks) == 1
            return f"{'rank' if one else 'ranks'} {ranks} of {self.copies} that hold {what}"
        return f"ranks {ranks}, which don't agree on {what}, without a majority"

    def dump(self) -> dict[str, object]:
        """An entry of the event's `tensors`."""
        known = {"ranks": list(self.ranks), "copies": self.copies, "decided": self.decided}
        return {"tensor": self.name, "of": self.kind, **known}


@dataclass
class Copies:
    """One rank's part of the comparison; all ranks call it together."""

    weights: Weights
    optimizer: torch.optim.Optimizer
    mesh: Mesh
    every: int  # steps between comparisons; 0: never
    action: str = "log"  # `train.guard.corruption`
    islands: Islands | None = None
    record: Record | None = None  # rank 0's
    _pending: bool = False
    _known: list[Odd] = field(default_factory=list)  # of the last comparison
    _names: list[tuple[Axes, str, str]] = field(default_factory=list)  # of its tensors

    def __post_init__(self) -> None:
        self._readback = Readback(self.mesh.device)
        self._sums = self._gathered = self._odd = torch.zeros(0, dtype=torch.int64)

    @cached_property
    def kinds(self) -> list[Axes]:
        """All sets of axes along which any rank's numbers have copies."""
        if not self.every or self.mesh.world == 1:
            return []
        with_copies = sum(held.tensor.nbytes for held in self._weights())
        every = sum(weight.master.nbytes for weight in self.weights)
        ranks = gather_json([sorted({held.axes for held in self._held()}), with_copies, every], self.mesh)
        share = sum(rank[1] for rank in ranks) / max(sum(rank[2] for rank in ranks), 1)
        kinds = sorted({tuple(axes) for rank in ranks for axes in rank[0]})
        if self.record is not None:
            note = "" if kinds else "each number is held once under this layout: there are no copies to compare"
            self.record.event("copies", note and f"{note} (train.guard.check_copies)", every=self.every, share=share)
        return kinds

    @cached_property
    def _first(self) -> Tensor:
        """[world, kinds]: of each rank, the first that holds the same."""
        rows = [first_holders(self.mesh.grid, axes) for axes in self.kinds]
        return torch.tensor(rows, device=self.mesh.device).T.contiguous()

    def after(self, step: int, *, saves: bool) -> None:
        """After a step: compares where one is due, and before a save, whose numbers are to be sound. Raises Corrupt on
        every rank. What was begun after the last step is looked at first."""
        if not self.kinds:
            return
        due = step % self.every == 0
        if self._pending:
            self._judge(self._readback.flush())
        if due or saves:
            self._judge(self._readback.push(step, self._compare()))
            if saves:
                self._judge(self._readback.flush())

    @torch.no_grad()
    def _compare(self) -> Tensor:
        """Whether any copies differ: bool [1] on the device."""
        held = sorted(self._held(), key=lambda item: item.axes)
        device, self._pending = self.mesh.device, True
        self._names = [(item.axes, item.name, item.kind) for item in held]
        sums = [bit_sum(item.tensor).to(device, non_blocking=True) for item in held]
        self._sums = torch.stack(sums) if sums else torch.zeros(0, dtype=torch.int64, device=device)
        mixed = self._sums * self._factors(len(held))
        of_kind = [[at for at, item in enumerate(held) if item.axes == axes] for axes in self.kinds]
        parts = [mixed[places[0] : places[-1] + 1].sum() if places else mixed.new_zeros(()) for places in of_kind]
        together = torch.stack(parts)
        self._gathered = together.new_empty((self.mesh.world, len(parts)))
        with self.mesh.timers.comm("world"):
            dist.all_gather(list(self._gathered.unbind()), together, group=self.mesh.group("world"))
        return (self._gathered != self._gathered.gather(0, self._first)).any().reshape(1)

    def _factors(self, count: int) -> Tensor:
        """Odd numbers, so that no difference of one tensor is lost, nor that of two in most cases."""
        if len(self._odd) != count:
            self._odd = torch.arange(count, device=self.mesh.device) * 0x1E3779B97F4A7C16 + 1
        return self._odd

    def _judge(self, answers: Sequence[tuple[int, list[float]]]) -> None:
        for step, (differs,) in answers:
            self._pending = False
            odd = self._find() if differs else []
            if odd and odd != self._known:
                self._tell(step, odd)
            self._known = odd

    def _find(self) -> list[Odd]:
        """The tensors whose copies differ, by the sums of the last comparison."""
        gathered, first = self._gathered.tolist(), self._first.tolist()
        bad = {(first[rank][at], at) for rank, row in enumerate(gathered) for at, number in enumerate(row)
               if number != gathered[first[rank][at]][at]}  # fmt: skip
        mine = [self.kinds[at] for at in range(len(self.kinds)) if (first[self.mesh.rank][at], at) in bad]
        sums = zip(self._names, self._sums.tolist(), strict=True)
        parts = gather_json([[*names, number] for names, number in sums if names[0] in mine], self.mesh)
        holders: dict[tuple[str, str, int], dict[int, int]] = {}
        for rank, part in enumerate(parts):
            for axes, name, kind, number in part:
                at = self.kinds.index(tuple(axes))
                holders.setdefault((name, kind, first[rank][at]), {})[rank] = number
        return [odd for (name, kind, _), by_rank in holders.items() if (odd := vote(name, kind, by_rank))]

    def _tell(self, step: int, odd: list[Odd]) -> None:
        more = f", and {counted(len(odd) - SHOWN, 'more tensors')}" if len(odd) > SHOWN else ""
        problem = f"step {step}: numbers that ranks hold alike differ: {'; '.join(map(str, odd[:SHOWN]))}{more}"
        stops = self.action == "stop"
        if self.record is not None:
            tensors = [entry.dump() for entry in odd[:KEPT]]
            keys = {"action": "stopped" if stops else "logged", "tensors": tensors, "count": len(odd)}
            self.record.event("corrupt", "" if stops else problem, step=step, **keys)
        if stops:
            how = "look at that rank's device and its memory; the same command goes on from the newest checkpoint"
            raise Corrupt(f"{problem}. Nothing was saved since they did; {how}, or train.guard.corruption=log")

    def _weights(self) -> Iterator[Held]:
        sizes = self.mesh.grid.copying
        for weight in self.weights:
            if axes := _axes(weight.placement.copies, sizes):
                yield Held(axes, weight.name, "weight", weight.master.detach())

    def _held(self) -> Iterator[Held]:
        """All tensors of this rank that have copies, in the same order on the ranks that hold them."""
        masters = {weight.name: weight.master for weight in self.weights}
        for held in self._weights():
            yield held
            states: dict[str, Any] = self.optimizer.state.get(masters[held.name], {})
            for kind, state in sorted(states.items()):
                if isinstance(state, Tensor):
                    yield held._replace(kind=kind, tensor=state)
        for fragment in self.islands.fragments if self.islands is not None else ():
            for kind, row in (("outer", fragment.outer), ("outer momentum", fragment.momentum)):
                for weight, part in fragment.views(row) if row is not None else ():
                    if axes := _axes(weight.placement.copies, self.mesh.grid.size_of):
                        yield Held(axes, weight.name, kind, part)


def _axes(axes: Sequence[str], sizes: Any) -> Axes:
    return tuple(sorted(axis for axis in axes if sizes[axis] > 1))


def first_holders(grid: Grid, axes: Sequence[str]) -> list[int]:
    """Of each rank, the first that is joined to it by these axes: it holds the same box.

    >>> first_holders(make_grid(Layout(devices=4, tp=2, zero_stage=0)), ("fsdp",))
    [0, 1, 0, 1]
    """
    first = list(range(grid.world))
    for axis in axes:
        joined: dict[int, int] = {}
        for group in grid.groups(axis):
            least = min(first[rank] for rank in group)
            joined |= {first[rank]: min(least, joined.get(first[rank], least)) for rank in group}
        first = [joined[holder] for holder in first]
    return first


@torch.no_grad()
def bit_sum(tensor: Tensor) -> Tensor:
    """The sum of a tensor's bits, taken as whole numbers of 8 bytes, or of its numbers' size where those don't fill
    them; modulo 2**64, an int64 scalar on its device. Wherever a copy lies in memory, it is the same."""
    flat = tensor.detach().reshape(-1)
    size = flat.element_size()
    if flat.numel() % (8 // size):
        return flat.view(INTEGERS[size]).sum(dtype=torch.int64)
    return (flat.clone() if flat.storage_offset() * size % 8 else flat).view(torch.int64).sum()


def vote(name: str, kind: str, by_rank: dict[int, int]) -> Odd | None:
    """The copies that differ from most; None where all are equal."""
    counts = Counter(by_rank.values()).most_common()
    if len(counts) < 2:
        return None
    usual = counts[0][0] if counts[0][1] > counts[1][1] else None
    return Odd(name, kind, tuple(rank for rank, number in by_rank.items() if number != usual), len(by_rank))
