"""Hidden states and their gradients on their way between the ranks of a pipeline.

    rank 0  --- pp_down --->  rank 1  --- pp_down --->  rank 2        to a higher rank
    rank 0  <---- pp_up ----  rank 1  <---- pp_up ----  rank 2        to a lower one

A send returns at once, a receive blocks (on a GPU: its stream, not the host). Between two ranks messages come
out in the order in which they went in; `spec/schedules/messages.py` sees to it that the two ends agree.

A sent tensor is kept until it has arrived. That needs no further message: when one comes back, the schedule
has how many of ours its sender had received by then, so those are free (`acknowledgements`); the rest are
waited for at the end of the step.

NCCL does the operations of one communicator strictly in turn, also between different pairs of ranks, and a
send there waits for its receive. So a rank that sends to one neighbour and receives from the other through
one communicator can wait in a circle (zbv and dualpipev do from 4 ranks on, zb-interleaved from 3). On a GPU,
then, pairs that meet at a rank have communicators of their own: lanes 0 and 1 in turn, and lane 2 for the way
from the last rank round to the first.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from scalewright.parallel.mesh import Mesh
from scalewright.spec.schedule import RECEIVES, SENDS, Schedule


class Messages:
    """One rank's sends and receives. Peers are ranks of the pp axis."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.rank = mesh, mesh.index("pp")
        self._members = next(ranks for ranks in mesh.grid.groups("pp") if mesh.rank in ranks)
        # By peer: sent tensors, in order; how many of this step's are free again, and how many have come.
        self._sent: defaultdict[int, deque[tuple[dist.Work, Tensor]]] = defaultdict(deque)
        self._freed: defaultdict[int, int] = defaultdict(int)
        self._received: defaultdict[int, int] = defaultdict(int)
        self._acknowledged: Mapping[int, Sequence[int]] = {}
        self.sent_bytes = 0  # of all steps; a measured step's are told apart in train/record/measured.py

    def start(self, acknowledged: Mapping[int, Sequence[int]]) -> None:
        """Before a step: for every peer, how many of our messages it has received before each of its own.

        Waits for sends that are still under way from before.
        """
        self.finish()
        self._acknowledged = acknowledged
        self._freed.clear()
        self._received.clear()

    def send(self, tensor: Tensor, peer: int) -> None:
        """Starts to send a tensor; it must not be changed any more."""
        tensor = tensor.detach().contiguous()
        work = dist.isend(tensor, self._members[peer], group=self._group(self.rank, peer))
        assert work is not None  # only for ranks outside the group
        self._sent[peer].append((work, tensor))
        self.sent_bytes += tensor.nbytes

    def receive(self, shape: Sequence[int], dtype: torch.dtype, peer: int) -> Tensor:
        """The next tensor from a peer."""
        tensor = torch.empty(tuple(shape), dtype=dtype, device=self.mesh.device)
        work = dist.irecv(tensor, self._members[peer], group=self._group(peer, self.rank))
        assert work is not None
        with self.mesh.timers.comm("pp"):
            work.wait()
        acknowledged = self._acknowledged.get(peer, ())
        if self._received[peer] < len(acknowledged):
            self._free(peer, acknowledged[self._received[peer]])
        self._received[peer] += 1
        return tensor

    def finish(self) -> None:
        """Waits until everything has arrived."""
        for peer, sent in self._sent.items():
            self._free(peer, self._freed[peer] + len(sent))

    def _free(self, peer: int, count: int) -> None:
        """Lets the first `count` of the step's messages to a peer go."""
        while self._freed[peer] < count:
            work, _ = self._sent[peer].popleft()
            with self.mesh.timers.comm("pp"):
                work.wait()
            self._freed[peer] += 1

    def _group(self, source: int, target: int) -> dist.ProcessGroup | None:
        axis = "pp_down" if source < target else "pp_up"
        return self.mesh.group(f"{axis}_{lane(source, target)}") or self.mesh.group(axis)


def lane(source: int, target: int) -> int:
    """The lane of a pair of ranks: two pairs that meet at a rank never share one, whatever the schedule.

    Lane 0 is the axis's own group.
    """
    low, high = sorted((source, target))
    return low % 2 if high - low == 1 else 2


def acknowledgements(plan: Schedule, rank: int) -> dict[int, list[int]]:
    """For every peer and each of its messages to `rank`: how many of `rank`'s it has received before.

    Data of the schedule: a peer does its list in order.
    """
    counts: dict[int, list[int]] = {}
    for peer, actions in enumerate(plan.actions):
        received = 0
        for action in actions:
            if action.peer == rank and action.kind in RECEIVES:
                received += 1
            elif action.peer == rank and action.kind in SENDS:
                counts.setdefault(peer, []).append(received)
    return counts
