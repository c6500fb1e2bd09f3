"""Replicated data parallelism (DDP; Li et al. 2020): every rank holds all, gradients are summed.

    backward:  block 3's gradients ready --> bucket 0 full --> all-reduce starts, while block 2 runs backward
               ...                          bucket 1 full --> ...
    finish():  waits for the last of them

Gradients live in flat fp32 buckets, in the order in which the backward makes them. They also serve one rank alone in
bf16: each micro-batch's bf16 gradient is added to the fp32 sum as soon as it is made, and freed. Buckets are reduced in
the order of their numbers, whatever order they fill in: a model whose ranks leave different parameters unused would
otherwise sum one rank's bucket 0 with another's bucket 1. In a pipeline a stage's buckets start together after its last
backward, while other stages still run; an embedding that two stages share (both ends of a V) waits for both.

Buckets may travel in two bytes a number, half of what an fp32 all-reduce sends (`HalfBuckets`):

    rank 0   [a0 | a1]  cast  --all-to-all-->  a0 b0  fp32 sum, cast  --all-gather-->  [s0 | s1]  fp32 again
    rank 1   [b0 | b1]                         a1 b1

Each contribution is rounded once and each sum once, however many ranks there are, and sums are in fp32. An
all-reduce in the narrow type would round after every rank, in an order that is the backend's. bf16's rounding
is at most 2^-9 of a number, fp16's 2^-12 of those within 2^-29 of the largest.

Gradients are sums already divided by the global batch's tokens: small, but nothing bounds them. So fp16 has a
power of two before each part that is sent, which puts its largest number between 2^14 and 2^15: finite ones
can't overflow, and others stay what they are, for the guard to see. It travels in front of the numbers:

    bytes of a part     [factor fp32 | numbers fp16 ...]        bf16: [numbers ...]
"""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalewright.parallel.bucket import AllReduce, Bucket, Reduction, Staged, Stages
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.power_sgd import PowerSGD
from scalewright.parallel.weights import Weight, Weights
from scalewright.spec.compress import HALF, HEADER, Compress, LowRank, half_part
from scalewright.spec.volumes import BUCKET_BYTES


class GradientBuckets:
    """Flat fp32 gradient sums, reduced when the last micro-batch has filled them.

    `overlap`: each bucket as soon as it is full, for a backward that runs whole. `tied`: stages of this rank
    that share a parameter, held by the first of them. `compress`: how they are sent.
    """

    def __init__(
        self, weights: Weights, mesh: Mesh, bucket_bytes: int = BUCKET_BYTES, *, overlap: bool = True,
        tied: Collection[int] = (), compress: Compress = "none",
    ) -> None:  # fmt: skip
        self.groups = {False: mesh.group("gradient")}
        if any(_is_expert(weight) for weight in weights):
            self.groups[True] = mesh.group("ehsdp")
        self.weights = weights
        self.overlap = overlap
        self.tied = frozenset(tied)
        self.buckets: list[Bucket] = []
        self._syncing = False  # whether the hooks start reductions
        self._next = 0  # the bucket that they start next
        self._ended: set[int] = set()  # stages that have run their last backward of the step
        self._started: set[int] = set()  # and stages whose buckets have been started
        together: dict[tuple[int, bool], list[Weight]] = {}
        for weight in weights.trained()[::-1]:  # the backward makes the last layer's gradients first
            together.setdefault((weight.stage, _is_expert(weight)), []).append(weight)
        for (stage, experts), items in together.items():
            self._fill(stage, self.groups[experts], items, bucket_bytes)
        axis = "dp_shard" if mesh.size("fsdp") > 1 else "dp_replicate"
        self.compression = PowerSGD(compress.powersgd, self.buckets) if isinstance(compress, LowRank) else None
        self.reduction: Reduction
        if self.compression is not None:
            self.reduction = Staged(self.compression, mesh.timers, axis)
        elif isinstance(compress, str) and compress != "none":
            dtype = torch.float16 if compress == "fp16" else torch.bfloat16
            self.reduction = Staged(HalfBuckets(dtype), mesh.timers, axis)
        else:
            self.reduction = AllReduce(mesh.timers, axis)

    def _fill(self, stage: int, group: dist.ProcessGroup | None, items: list[Weight], bucket_bytes: int) -> None:
        current: list[Weight] = []
        filled = 0
        for index, weight in enumerate(items):
            current.append(weight)
            filled += weight.master.numel() * 4
            if filled >= bucket_bytes or index == len(items) - 1:
                self._add_bucket(stage, group, current)
                current, filled = [], 0

    def _add_bucket(self, stage: int, group: dist.ProcessGroup | None, members: list[Weight]) -> None:
        device = members[0].compute.device
        size = sum(weight.master.numel() for weight in members)
        buffer = torch.zeros(size, dtype=torch.float32, device=device)
        bucket = Bucket(stage, group, buffer, members, waiting=len(members))
        self.buckets.append(bucket)
        offset = 0
        for weight in members:
            view = bucket.buffer[offset : offset + weight.master.numel()].view_as(weight.master)
            offset += weight.master.numel()
            weight.main_gradient = view
            if weight.compute.dtype == torch.float32:
                weight.compute.grad = view  # autograd adds in place
            self._watch(weight.compute, view, bucket)

    def _watch(self, parameter: nn.Parameter, view: Tensor, bucket: Bucket) -> None:
        index = len(bucket.views)
        bucket.views.append(view)
        bucket.untouched.append(True)

        def ready(parameter: nn.Parameter) -> None:
            if parameter.grad is not view and parameter.grad is not None:
                if bucket.untouched[index]:
                    view.copy_(parameter.grad)  # the step's first: nothing to add to, nothing to zero before
                else:
                    view.add_(parameter.grad)
                parameter.grad = None if parameter.dtype != torch.float32 else view
            bucket.untouched[index] = False
            if self._syncing:
                bucket.waiting -= 1
                self._start_full()

        parameter.register_post_accumulate_grad_hook(ready)  # type: ignore[no-untyped-call]

    def begin(self, stage: int, last: bool) -> None:
        """Before a micro-batch: only the last one's backward starts reductions."""
        self._syncing = last and self.overlap
        if self._syncing:
            self._next = 0
            for bucket in self.buckets:
                bucket.waiting = len(bucket.views)

    def end(self, stage: int, last: bool) -> None:
        """After a backward; the stage's last one starts its reductions, where no hook has."""
        self._syncing = False
        if not last or self.overlap:
            return
        self._ended.add(stage)
        if stage not in self.tied:
            self._start_stage(stage)
        elif self.tied <= self._ended:
            for waited in sorted(self.tied):
                self._start_stage(waited)

    def _start_stage(self, stage: int) -> None:
        self._started.add(stage)
        for bucket in self.buckets:
            if bucket.stage == stage:
                self._start(bucket)

    def _start_full(self) -> None:
        while self._next < len(self.buckets) and not self.buckets[self._next].waiting:
            self._start(self.buckets[self._next])
            self._next += 1

    def _start(self, bucket: Bucket) -> None:
        for view, untouched in zip(bucket.views, bucket.untouched, strict=True):
            if untouched:  # no backward reached it: the numbers are the last step's
                view.zero_()
        self.reduction.start(bucket)

    def finish(self) -> None:
        """After the last backward: reduces buckets that hold unused parameters, and waits for all."""
        for bucket in self.buckets[self._next :]:
            if bucket.stage not in self._started:
                self._start(bucket)
        self.reduction.finish()

    def clear(self) -> None:
        """Before a step: zeroes the sums of fp32 parameters and points them there again.

        The sums of bf16 parameters are overwritten by the step's first gradients instead: two passes less.
        """
        self._next = 0
        self._ended.clear()
        self._started.clear()
        summed_in_place = False
        for weight in self.weights.trained():
            in_place = weight.compute.dtype == torch.float32
            weight.compute.grad = weight.main_gradient if in_place else None
            summed_in_place |= in_place
        for bucket in self.buckets:
            bucket.untouched = [True] * len(bucket.views)
            if summed_in_place:
                bucket.buffer.zero_()


def _is_expert(weight: Weight) -> bool:
    """Whether its copies are on the ranks of the sparse view."""
    return weight.placement.tensor.role.startswith("expert")


_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
_TOP = 15  # the largest number of a part lies below 2^15; fp16 ends at 2^16
_LEAST = -100  # exponent of the smallest largest number that is scaled: factors stay normal numbers


class HalfBuckets:
    """The stages of a bucket; `dtype`: bfloat16 or float16."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.header = HEADER if dtype == torch.float16 else 0

    def __call__(self, bucket: Bucket, group: dist.ProcessGroup) -> Stages:
        """Sums a bucket over a group, in place."""
        ranks, size = dist.get_world_size(group), bucket.buffer.numel()
        part = half_part(size, ranks)
        sent = self.pack(_padded(bucket.buffer, ranks * part).view(ranks, part))
        received = torch.empty_like(sent)
        yield _work(dist.all_to_all_single(received, sent, group=group, async_op=True))
        sent = self.pack(self.unpack(received).sum(0, keepdim=True))
        received = sent.new_empty(ranks, sent.shape[1])
        yield _work(_gather(received, sent, group=group, async_op=True))
        bucket.buffer.copy_(self.unpack(received).view(-1)[:size])

    def pack(self, parts: Tensor) -> Tensor:
        """fp32 [parts, n] as bytes [parts, header + 2 n]; n is even."""
        if not self.header:
            return parts.to(self.dtype).view(torch.uint8)
        count, size = parts.shape
        packed = torch.empty(count, self.header + HALF * size, dtype=torch.uint8, device=parts.device)
        exponent = torch.frexp(torch.linalg.vector_norm(parts, float("inf"))).exponent.clamp(min=_LEAST)
        packed[:, : self.header].view(torch.float32).copy_(_power_of_two(exponent - _TOP))
        packed[:, self.header :].view(self.dtype).copy_(parts * _power_of_two(_TOP - exponent))
        return packed

    def unpack(self, packed: Tensor) -> Tensor:
        """The fp32 numbers [parts, n] of bytes."""
        if not self.header:
            return packed.view(self.dtype).float()
        factors = packed[:, : self.header].view(torch.float32)
        return packed[:, self.header :].view(self.dtype).float().mul_(factors)


def _padded(flat: Tensor, size: int) -> Tensor:
    missing = size - flat.numel()
    return torch.nn.functional.pad(flat, (0, missing)) if missing else flat


def _power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent, exactly, for -126 to 127 (fp32's own exponents)."""
    return ((exponent + 127) << 23).to(torch.int32).view(torch.float32)


def _work(handle: dist.Work | None) -> dist.Work:
    assert handle is not None  # this rank is in the group
    return handle
