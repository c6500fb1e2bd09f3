"""DiLoCo: islands train by themselves, and an outer optimizer joins them now and then (spec/diloco.py: when).

    island i, inner steps      w_i  <- inner optimizer, on its part of the batch      nothing between islands
    outer step of a fragment   g     = mean over islands of (W - w_i)                 parallel/wire.py
                               m     = mu m + g           W <- W - eta (g + mu m)     Nesterov, in fp32
                               w_i  <- alpha w_i + (1 - alpha) W

(Douillard et al. 2023, arXiv 2311.08105, algorithm 1: eta = outer_lr, mu = outer_momentum; alpha and overlap:
Douillard et al. 2025, arXiv 2501.18512, equation 5. eta 1 and mu 0 average the weights: LocalSGD.)

An island is one index of `dp_replicate`, and may be split within in any way: a rank holds W and m of its own shards,
and exchanges them with the ranks that hold the same shards of the other islands. W is what validation measures and what
a checkpoint's model is. A router's correction bias, which no optimizer trains, is averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scalewright.parallel.collectives import all_sum
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.weights import Weight, Weights
from scalewright.parallel.wire import Mean, arrived, gathering
from scalewright.spec.diloco import DilocoSpec
from scalewright.spec.volumes import outer_steps
from scalewright.train.columns import BUSIEST, ENTROPY, LOCAL, LOSS, MEMORY, NORM, SKIPPED, STREAK, TOKENS, WRITTEN, Z

AXIS = "dp_replicate"
Named = Mapping[str, Mapping[str, Tensor]]  # {weight: {kind: tensor like its master}}
# A saved tensor's part that is a weight's box, by its kind; None: it wasn't saved.
Read = Callable[[str, Weight], Tensor | None]


@dataclass
class Fragment:
    """Weights that are synchronized together, and their outer state: fp32 [N], masters in a row."""

    weights: list[Weight]  # the trained ones first
    trained: int  # numbers of these
    outer: Tensor
    momentum: Tensor | None  # of the trained ones; None: outer_momentum 0
    rest: Tensor | None  # what rounding took; None: fp32 travels

    def views(self, flat: Tensor) -> Iterator[tuple[Weight, Tensor]]:
        """Each weight's part of a row of numbers, in its shape; weights beyond its end are left out."""
        start = 0
        for weight in self.weights:
            end = start + weight.master.numel()
            if end > len(flat):
                return
            yield weight, flat[start:end].view_as(weight.master)
            start = end

    def masters(self) -> Tensor:
        """A copy of the masters, in a row."""
        if not self.weights:  # a pipeline stage without layers of it
            return self.outer.clone()
        return torch.cat([weight.master.detach().reshape(-1) for weight in self.weights])


@dataclass
class _UnderWay:
    """A fragment's outer gradient on its way."""

    number: int
    half: int  # the step after which its second half starts
    due: int  # and that after which it is applied
    mean: Mean


class Islands:
    """One rank's part of the outer optimizer. `last`: the run's last step; `step`: the last one done."""

    def __init__(self, spec: DilocoSpec, weights: Weights, mesh: Mesh, *, by_layer: bool = True) -> None:
        """`by_layer`: layers make the fragments, else (of a user's own module) single tensors do."""
        self.spec, self.weights, self.mesh = spec, weights, mesh
        self.index, self.count = mesh.index(AXIS), mesh.size(AXIS)  # this rank's island; of how many
        self.step = self.last = 0
        self.under_way: list[_UnderWay] = []
        self.survives = False  # whether islands that are left go on in their processes (train/regroup.py)
        self.applied: set[int] = set()  # fragments, after the newest step
        self._arrived: _UnderWay | None = None  # a mean that all may not have yet
        self._rests: dict[int, Tensor] = {}  # what rounding had taken before fragments were sent
        moved = [w for w in weights if w.trained or w.name.endswith(".router.bias")]
        members: list[list[Weight]] = [[] for _ in range(spec.fragments)]
        for index, weight in enumerate(sorted(moved, key=lambda weight: not weight.trained)):
            place = weight.placement.tensor.layer + 1 if by_layer else index
            members[spec.fragment_of(place)].append(weight)
        self.fragments = [_fragment(spec, member, mesh.device) for member in members]

    @torch.no_grad()
    def begin(self, *, from_first: bool = False) -> None:
        """The masters are the outer weights. `from_first`: island 0's, for weights that may differ."""
        for fragment in self.fragments:
            fragment.outer.copy_(fragment.masters())
            if from_first and (group := self.mesh.group(AXIS)) is not None:
                dist.broadcast(fragment.outer, group=group, group_src=0)
                self._go_on_from(fragment, 0.0)
        if from_first:
            self.weights.publish()

    @torch.no_grad()
    def after_step(self) -> Tensor:
        """After an inner step: sends and applies what is due; the outer gradient's norm, 0 without one. A scalar on the
        device. A collective of the ranks that hold the same shards, at the same steps on all."""
        self.step += 1
        self.applied.clear()
        self._rests.clear()
        ends = self.step == self.last
        for flight in self.under_way:
            if self.step >= flight.half:
                flight.mean.advance()
        applied = [flight for flight in self.under_way if ends or flight.due == self.step]
        self.under_way = [flight for flight in self.under_way if flight not in applied]
        norms = [self._apply(flight, self.spec.kept_share) for flight in applied]
        alike = {flight.number for flight in applied if ends and not self.spec.kept_share}  # islands are, already
        sent = range(len(self.fragments)) if ends else self.spec.sent(self.step)
        for number in (number for number in sent if number not in alike):
            flight = self._send(number)
            if ends or not self.spec.overlap:
                self._await(flight)
                norms.append(self._apply(flight, 0.0 if ends else self.spec.kept_share))
            else:
                self.under_way.append(flight)
        if not norms:
            return torch.zeros((), device=self.mesh.device)
        self.weights.publish()
        return all_sum(torch.stack(norms).sum(), self.mesh, self.mesh.together).sqrt()

    @torch.no_grad()
    def make_up(self, mesh: Mesh, step: int, applied: Collection[int]) -> None:
        """The outer step after `step`, in which islands were lost, of those that are left and have met in `mesh`.
        `applied`: fragments that some of their ranks have applied, so that each has their mean, with the lost ones'
        part; the others are sent again. Without an overlap."""
        if self.step != step:
            self.applied.clear()  # those of an earlier one
        self.mesh, self.index, self.count, self.step = mesh, mesh.index(AXIS), mesh.size(AXIS), step
        ends = step == self.last
        due = [n for n in (range(len(self.fragments)) if ends else self.spec.sent(step)) if n not in self.applied]
        for number in due:
            if number not in applied:
                if number in self._rests:
                    self.fragments[number].rest = self._rests[number]
                self._apply(self._send(number), 0.0 if ends else self.spec.kept_share)
            elif self._arrived is not None:
                self._apply(self._arrived, 0.0 if ends else self.spec.kept_share)
        self.weights.publish()

    def _send(self, number: int) -> _UnderWay:
        fragment, overlap = self.fragments[number], self.spec.overlap
        if self.survives and fragment.rest is not None:
            self._rests[number] = fragment.rest.clone()
        gradient = fragment.masters()
        torch.sub(fragment.outer, gradient, out=gradient)
        mean = Mean(gradient, self.mesh, AXIS, self.spec.outer_dtype, fragment.rest)
        return _UnderWay(number, self.step + (overlap + 1) // 2, self.step + overlap, mean)

    def _await(self, flight: _UnderWay) -> None:
        """Waits until all ranks have a mean: once one applies it, each that lost others meanwhile can."""
        if self.survives:
            flight.mean.finish()
            self._arrived = flight
            all_sum(torch.zeros((), device=self.mesh.device), self.mesh, "world")

    def _apply(self, flight: _UnderWay, kept_share: float) -> Tensor:
        """The outer update of a fragment; this rank's part of the squared norm of its gradient."""
        fragment, rate = self.fragments[flight.number], self.spec.outer_lr
        with self.mesh.timers.comm(AXIS):
            gradient = flight.mean.finish()
        trained = gradient[: fragment.trained]
        outer = fragment.outer[: fragment.trained]
        outer.add_(trained, alpha=-rate)
        if fragment.momentum is not None:
            fragment.momentum.mul_(self.spec.outer_momentum).add_(trained)
            outer.add_(fragment.momentum, alpha=-rate * self.spec.outer_momentum)
        fragment.outer[fragment.trained :] -= gradient[fragment.trained :]
        self._go_on_from(fragment, kept_share)
        self.applied.add(flight.number)
        self._arrived = None
        shares = [part.square().sum() / weight.copies for weight, part in fragment.views(trained)]
        return torch.stack(shares).sum() if shares else gradient.new_zeros(())

    def _go_on_from(self, fragment: Fragment, kept_share: float) -> None:
        """The outer weights become this island's own, but for the share that it keeps."""
        for weight, outer in fragment.views(fragment.outer):
            if kept_share:
                weight.master.lerp_(outer, 1 - kept_share)
            else:
                weight.master.copy_(outer)

    @torch.no_grad()
    def hold_under_way(self) -> None:
        """Sends as many fragments as are on their way at once, the largest: for a count of memory."""
        sizes = [len(fragment.outer) for fragment in self.fragments]
        largest = sorted(range(len(sizes)), key=lambda number: -sizes[number])
        self.under_way = [self._send(number) for number in largest[: self.spec.under_way]]

    @contextmanager
    def outer_weights(self) -> Iterator[None]:
        """The outer weights in the place of this island's own, without memory for both."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for fragment in self.fragments:
            for weight, outer in fragment.views(fragment.outer):
                inner = weight.master.clone()
                weight.master.copy_(outer)
                outer.copy_(inner)
        self.weights.publish()

    @torch.no_grad()
    def merge(self, report: Tensor) -> Tensor:
        """An island's report -> that of all, the same on every rank but for LOCAL and memory's places. Loss, norm and
        loads are means weighted by the islands' counted tokens; decisions are those of the island with the longest
        streak of bad steps, or the largest spike."""
        if (group := self.mesh.group("islands")) is None:
            return report
        with self.mesh.timers.comm("islands"):
            rows = arrived(gathering(report[None], self.mesh.size("islands"), group))
        share = rows[:, TOKENS] / rows[:, TOKENS].sum().clamp(min=1)
        worst = (1e6 * rows[:, STREAK] + rows[:, Z]).argmax()
        merged = rows.index_select(0, worst[None])[0]
        mean = (share[:, None] * rows[:, : ENTROPY + 1]).sum(dim=0)
        merged[LOSS : NORM + 1] = mean[LOSS : NORM + 1]
        merged[BUSIEST : ENTROPY + 1] = mean[BUSIEST : ENTROPY + 1]
        merged[TOKENS : WRITTEN + 1] = rows[:, TOKENS : WRITTEN + 1].sum(dim=0)
        merged[SKIPPED] = rows[:, SKIPPED].amax()
        merged[LOCAL] = report[LOCAL]
        merged[MEMORY:] = rows[:, MEMORY:].amax(dim=0)
        return merged

    def tensors(self) -> list[Tensor]:
        """All that is kept between steps, beside weights and inner optimizer."""
        kept = [state for f in self.fragments for state in (f.outer, f.momentum, f.rest)]
        return [state for state in kept if state is not None]

    @property
    def step_bytes(self) -> float:
        """Bytes of this rank's outer steps, as collectives are counted, over the inner steps between them."""
        about = self.count, self.spec.inner_steps, self.spec.wire_bytes, self.spec.narrow
        transfers = (transfer for f in self.fragments for transfer in outer_steps(len(f.outer), *about))
        return float(sum(transfer.total for transfer in transfers))

    def outer(self) -> dict[str, Tensor]:
        """The outer weights by name."""
        return {w.name: part for fragment in self.fragments for w, part in fragment.views(fragment.outer)}

    def shared(self) -> dict[str, dict[str, Tensor]]:
        """What all islands have alike: momentum, and outer gradients that are on their way."""
        named: dict[str, dict[str, Tensor]] = {}
        rows = [(fragment, "momentum", fragment.momentum) for fragment in self.fragments]
        rows += [(self.fragments[flight.number], "gradient", flight.mean.finish()) for flight in self.under_way]
        for fragment, kind, row in rows:
            if row is not None:
                for weight, part in fragment.views(row):
                    named.setdefault(weight.name, {})[kind] = part
        return named

    def own(self) -> dict[str, dict[str, Tensor]]:
        """What this island has for itself: its weights, and what rounding took."""
        named = {w.name: {"weight": w.master.detach()} for f in self.fragments for w in f.weights}
        for fragment in self.fragments:
            if fragment.rest is not None:
                for weight, part in fragment.views(fragment.rest):
                    named[weight.name]["rest"] = part
        return named

    def state(self) -> dict[str, object]:
        """Plain data beside these tensors."""
        on_way = [[flight.number, flight.due] for flight in self.under_way]
        return {"islands": self.count, "fragments": len(self.fragments), "under_way": on_way}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any], shared: Read, own: Read | None) -> None:
        """Takes what `state`, `shared` and `own` gave, once the masters are the outer weights. `own` is None where
        other islands saved it: all then go on from the outer weights."""
        self.begin()
        self.under_way = []
        for fragment in self.fragments:
            for kind, flat, read in (("momentum", fragment.momentum, shared), ("rest", fragment.rest, own)):
                if flat is not None:
                    flat.zero_()
                    _fill(fragment, flat, kind, read)
        if own is None:
            return
        for fragment in self.fragments:
            weights = fragment.masters()
            _fill(fragment, weights, "weight", own)
            for weight, part in fragment.views(weights):
                weight.master.copy_(part)
        if state.get("fragments") == len(self.fragments):
            for number, due in state.get("under_way", ()):
                fragment = self.fragments[number]
                gradient = torch.zeros_like(fragment.outer)
                _fill(fragment, gradient, "gradient", shared)
                self.under_way.append(_UnderWay(number, due, due, Mean.taken(gradient, self.mesh)))
        self.weights.publish()


def _fragment(spec: DilocoSpec, weights: list[Weight], device: torch.device) -> Fragment:
    sizes = [weight.master.numel() for weight in weights]
    trained = sum(size for size, weight in zip(sizes, weights, strict=True) if weight.trained)

    def zeros(count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.float32, device=device)

    momentum = zeros(trained) if spec.outer_momentum else None
    return Fragment(weights, trained, zeros(sum(sizes)), momentum, zeros(sum(sizes)) if spec.narrow else None)


def _fill(fragment: Fragment, flat: Tensor, kind: str, read: Read | None) -> None:
    for weight, part in fragment.views(flat):
        tensor = read(kind, weight) if read is not None and all(weight.box[1]) else None
        if tensor is not None:
            weight.true(part).copy_(tensor)
