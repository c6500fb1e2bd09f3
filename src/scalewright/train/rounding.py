"""Stochastic rounding of fp32 to bfloat16, the same on every layout: its noise is a function of the place.

    fp32 bits   s eeeeeeee mmmmmmm | mmmmmmmmmmmmmmmm     + noise of 0 .. 2^16 - 1; the right half is cut off
                what bf16 has      | what it lacks

A number goes up with the probability of the part that is lost: its mean is kept (Gupta et al. 2015, arXiv
1502.02551, eq. 1). AdamW needs that: with beta2 = 0.999 a step shrinks exp_avg_sq by 1/1000 at most, less
than half of bf16's last place (1/256 to 1/128), and rounding to nearest would leave it as it is for ever.

    noise = hash(number in the flattened whole tensor + hash(step, name, seed))

No generator keeps a state, so a resume rounds as the run would have, and a rank that holds a part of a tensor
rounds as one that holds it all.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

_MULTIPLIER = 0x045D9F3B  # of T. Mueller's 32-bit integer hash; any odd number with mixed bits would do
_STEP = -1640531535  # 2^32 over the golden ratio, as int32: steps' keys are far apart
_LOST = 0xFFFF  # the bits that bf16 lacks


@dataclass(frozen=True)
class Numbering:
    """The numbers that a rank's part of a tensor has in the whole, row by row.

    `local`: the part's shape, padding included; `offsets`: of its first element; `whole`: the true shape.
    """

    local: tuple[int, ...]
    offsets: tuple[int, ...]
    whole: tuple[int, ...]

    def of(self, begin: int, end: int, device: torch.device) -> Tensor:
        """int32 [end - begin], modulo 2^32: the numbers of elements [begin, end) of the flattened part."""
        if self.local[1:] == self.whole[1:]:  # whole rows follow one another
            first = (self.offsets[0] * prod(self.whole[1:]) if self.whole else 0) + begin
            return torch.arange(end - begin, dtype=torch.int32, device=device).add_(_wrapped(first))
        left = torch.arange(begin, end, dtype=torch.int64, device=device)
        numbers, stride = torch.zeros_like(left), 1
        for size, offset, length in zip(self.local[::-1], self.offsets[::-1], self.whole[::-1], strict=True):
            numbers += (left % size + offset) * stride
            left //= size
            stride *= length
        return numbers.to(torch.int32)


def key(name: str, seed: int, step: Tensor) -> Tensor:
    """int32 scalar of a tensor's step (a scalar on the device): no value leaves the device."""
    base = _wrapped(zlib.crc32(f"{seed} {name}".encode()))
    return mixed(step.to(torch.int32) * _STEP + base)


def mixed(x: Tensor) -> Tensor:
    """int32 whose bits depend on all bits of x, in place: a bijection (T. Mueller's integer hash)."""
    for _ in range(2):
        x ^= _upper(x)
        x *= _MULTIPLIER
    x ^= _upper(x)
    return x


def halves(noise: Tensor) -> tuple[Tensor, Tensor]:
    """The two 16-bit halves of int32 noise, each 0 .. 2^16 - 1 in int32."""
    return noise & _LOST, _upper(noise)


def _upper(x: Tensor) -> Tensor:
    """The upper half; int32's own shift would fill with the sign."""
    return (x >> 16).bitwise_and_(_LOST)


def rounded(x: Tensor, noise: Tensor) -> Tensor:
    """fp32 x rounded to numbers that bfloat16 has, in place; `noise` as `halves` gives it."""
    bits = x.view(torch.int32)
    bits += noise
    bits &= ~_LOST
    return x


def _wrapped(number: int) -> int:
    """A whole number modulo 2^32, as int32 has it."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)
