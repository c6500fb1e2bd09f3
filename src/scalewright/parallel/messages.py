"""Hidden states and their gradients on their way between the ranks of a pipeline.

    rank 0  --- pp_down --->  rank 1  --- pp_down --->  rank 2        to a higher rank
    rank 0  <---- pp_up ----  rank 1  <---- pp_up ----  rank 2        to a lower one

A send returns at once, a receive blocks (on a GPU: its stream, not the host). Between two ranks messages come
out in the order in which they went in; `spec/schedules/build.py` sees to it that the two ends agree.

Neither Gloo nor NCCL moves a large message before its receive is posted. So the first receive from each peer
is posted when the step begins, and each further one when the one before it has come: a message travels while
its receiver computes, for one buffer more per peer.

    rank 0   F0 > F1 >            receive posted when needed:   F0 ====> F0
    rank 1   ==> F0 ==> F1        posted one message ahead:     F0 ==> F0 while F1 arrives

A sent tensor is kept until it has arrived. That needs no further message: when one comes back, the schedule has how
many of ours its sender had received by then (`acknowledgements`); the rest are waited for at the end of the step.

NCCL does the operations of one communicator strictly in turn, also between different pairs of ranks, and a send there
waits for its receive. A rank that sends to one neighbour and receives from the other through one communicator can wait
in a circle (zbv and dualpipev do from 4 ranks on, zb-interleaved from 3). So on a GPU pairs that meet at a rank have
communicators of their own: lanes 0 and 1 in turn, and lane 2 from the last rank round to the first.
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
    """One rank's sends and receives. Peers are ranks of the pp axis; `start` comes first."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.rank = mesh, mesh.index("pp")
        self._members = next(ranks for ranks in mesh.grid.groups("pp") if mesh.rank in ranks)
        # By peer: sent tensors, in order; how many of this step's are free again, and how many have come.
        self._sent: defaultdict[int, deque[tuple[dist.Work, Tensor]]] = defaultdict(deque)
        self._freed: defaultdict[int, int] = defaultdict(int)
        self._received: defaultdict[int, int] = defaultdict(int)
        self._acknowledged: Mapping[int, Sequence[int]] = {}
        # By peer: the receive that is posted, and how many of this step's are still to be posted.
        self._posted: dict[int, tuple[dist.Work, Tensor]] = {}
        self._incoming: dict[int, int] = {}
        self._shape: tuple[int, ...] = ()
        self._dtype = torch.float32
        self.sent_bytes = 0  # of all steps; a measured step's are told apart in train/metrics/measured.py

    def start(
        self, shape: Sequence[int], dtype: torch.dtype, incoming: Mapping[int, int] | None = None,
        acknowledged: Mapping[int, Sequence[int]] | None = None,
    ) -> None:  # fmt: skip
        """Before a step whose messages are all of one shape; posts the first receive from each peer.

        `incoming`: messages of the step from each peer (others are received without being posted ahead).
        `acknowledged`: for each peer, how many of our messages it has received before each of its own.
        Waits for sends that are still under way from before.
        """
        self.finish()
        self._shape, self._dtype = tuple(shape), dtype
        self._incoming, self._acknowledged = dict(incoming or {}), acknowledged or {}
        self._freed.clear()
        self._received.clear()
        for peer in self._incoming:
            self._post_next(peer)

    def send(self, tensor: Tensor, peer: int) -> None:
        """Starts to send a tensor; it must not be changed any more."""
        tensor = tensor.detach().contiguous()
        work = dist.isend(tensor, self._members[peer], group=self._group(self.rank, peer))
        assert work is not None  # only for ranks outside the group
        self._sent[peer].append((work, tensor))
        self.sent_bytes += tensor.nbytes

    def receive(self, peer: int) -> Tensor:
        """The next tensor from a peer; posts the receive of the one after it."""
        work, tensor = self._posted.pop(peer) if peer in self._posted else self._post(peer)
        with self.mesh.timers.comm("pp"):
            work.wait()
        self._post_next(peer)
        acknowledged = self._acknowledged.get(peer, ())
        if self._received[peer] < len(acknowledged):
            self._free(peer, acknowledged[self._received[peer]])
        self._received[peer] += 1
        return tensor

    def _post_next(self, peer: int) -> None:
        if self._incoming.get(peer, 0) > 0:
            self._incoming[peer] -= 1
            self._posted[peer] = self._post(peer)

    def _post(self, peer: int) -> tuple[dist.Work, Tensor]:
        tensor = torch.empty(self._shape, dtype=self._dtype, device=self.mesh.device)
        work = dist.irecv(tensor, self._members[peer], group=self._group(peer, self.rank))
        assert work is not None  # only for ranks outside the group
        return work, tensor

    def finish(self) -> None:
        """Waits until everything has arrived."""
        for peer, sent in self._sent.items():
            self._free(peer, self._freed[peer] + len(sent))

    def _free(self, peer: int, count: int) -> None:
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
