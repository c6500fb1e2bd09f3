"""Gradient buckets in two bytes a number: half of what an fp32 all-reduce sends.

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

import torch
import torch.distributed as dist
from torch import Tensor

from scalewright.parallel.bucket import Bucket, Stages
from scalewright.spec.compress import HALF, HEADER, half_part

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
