"""Replicated data parallelism (DDP; Li et al. 2020): every rank holds all, gradients are summed.

    backward:  block 3's gradients ready --> bucket 0 full --> all-reduce starts, while block 2 runs backward
               ...                          bucket 1 full --> ...
    finish():  waits for the last of them

Gradients live in flat fp32 buckets, in the order in which the backward makes them. They also serve one rank
alone in bf16: each micro-batch's bf16 gradient is added to the fp32 sum as soon as it is made, and freed.

Buckets are reduced in one order, that of their numbers, whatever order they fill in: a model whose ranks
leave different parameters unused would otherwise sum one rank's bucket 0 with another's bucket 1.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalewright.parallel.mesh import Mesh
from scalewright.parallel.weights import Weight, Weights

BUCKET_BYTES = 25 * 2**20  # torch DDP's default: large enough for bandwidth, small enough to overlap


class GradientBuckets:
    """Flat fp32 gradient sums; each bucket is all-reduced as soon as the last micro-batch has filled it."""

    def __init__(
        self, weights: Weights, mesh: Mesh, bucket_bytes: int = BUCKET_BYTES, *, overlap: bool = True
    ) -> None:
        self.group = mesh.group("gradient")
        self.overlap = overlap
        self.weights = weights
        self.syncing = True
        self._buffers: list[Tensor] = []
        self._waiting: list[int] = []  # parameters of each bucket that the current backward has yet to reach
        self._sizes: list[int] = []
        self._handles: list[dist.Work] = []
        self._next = 0  # the bucket to reduce next
        self._views: list[Tensor] = []  # every parameter's part of its bucket,
        self._untouched: list[bool] = []  # and whether the step has yet to give it a gradient
        current: list[int] = []
        filled = 0
        items = weights.trained()[::-1]  # the backward makes the last layer's gradients first
        for index, weight in enumerate(items):
            current.append(index)
            filled += weight.master.numel() * 4
            if filled >= bucket_bytes or index == len(items) - 1:
                self._add_bucket([items[i] for i in current])
                current, filled = [], 0

    def _add_bucket(self, members: list[Weight]) -> None:
        device = members[0].master.device
        buffer = torch.zeros(sum(w.master.numel() for w in members), dtype=torch.float32, device=device)
        number, offset = len(self._buffers), 0
        self._buffers.append(buffer)
        self._sizes.append(len(members))
        self._waiting.append(len(members))
        for weight in members:
            view = buffer[offset : offset + weight.master.numel()].view_as(weight.master)
            offset += weight.master.numel()
            weight.main_gradient = view
            self._views.append(view)
            if weight.compute.dtype == torch.float32:
                weight.compute.grad = view  # autograd adds in place
            self._watch(weight.compute, view, number)

    def _watch(self, parameter: nn.Parameter, view: Tensor, bucket: int) -> None:
        index = len(self._untouched)
        self._untouched.append(True)

        def ready(parameter: nn.Parameter) -> None:
            if parameter.grad is not view and parameter.grad is not None:
                if self._untouched[index]:
                    view.copy_(parameter.grad)  # the step's first: nothing to add to, nothing to zero before
                else:
                    view.add_(parameter.grad)
                parameter.grad = None if parameter.dtype != torch.float32 else view
            self._untouched[index] = False
            if self.syncing:
                self._waiting[bucket] -= 1
                self._reduce(only_full=True)

        parameter.register_post_accumulate_grad_hook(ready)  # type: ignore[no-untyped-call]

    def begin(self, stage: int, last: bool) -> None:
        """Before a micro-batch: only the last one's backward starts the reductions."""
        self.syncing = last and self.overlap
        if last:
            self._waiting = list(self._sizes)
            self._handles, self._next = [], 0

    def end(self, stage: int, last: bool) -> None:
        """The hooks have started what is due."""

    def _reduce(self, only_full: bool) -> None:
        """Starts the reductions that are due, in order."""
        while self._next < len(self._buffers) and not (only_full and self._waiting[self._next]):
            if self.group is not None:
                handle = dist.all_reduce(self._buffers[self._next], group=self.group, async_op=True)
                self._handles.append(handle)
            self._next += 1

    def finish(self) -> None:
        """After the last backward: reduces buckets that hold unused parameters, and waits for all."""
        for view, untouched in zip(self._views, self._untouched, strict=True):
            if untouched:  # no backward reached it; what is there is the last step's
                view.zero_()
        self._reduce(only_full=False)
        for handle in self._handles:
            handle.wait()

    def clear(self) -> None:
        """Before a step: zeroes the sums of fp32 parameters and points them there again.

        The sums of bf16 parameters are overwritten by the step's first gradients instead: two passes less.
        """
        self._untouched = [True] * len(self._untouched)
        if any(weight.compute.dtype == torch.float32 for weight in self.weights.trained()):
            for buffer in self._buffers:
                buffer.zero_()
        for weight in self.weights.trained():
            if weight.compute.dtype == torch.float32:
                weight.compute.grad = weight.main_gradient
            else:
                weight.compute.grad = None
