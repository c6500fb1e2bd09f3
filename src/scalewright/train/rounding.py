"""Numbers in fewer bits, alike on every layout. fp32 in bfloat16: rounded stochastically, by a noise of the place.

    fp32 bits   s eeeeeeee mmmmmmm | mmmmmmmmmmmmmmmm     + noise of 0 .. 2^16 - 1; the right half is cut off
                what bf16 has      | what it lacks

    noise       hash(number in the flattened whole tensor + hash(step, name, seed))

A number goes up with the probability of the part that is lost: its mean is kept (Gupta et al. 2015, arXiv 1502.02551,
eq. 1). AdamW needs that: with beta2 = 0.999 a step shrinks exp_avg_sq by 1/1000 at most, less than half of bf16's last
place (1/256 to 1/128), and rounding to nearest would leave it as it is for ever. No generator keeps a state, so a
resume rounds as the run would have, and a rank that holds a part of a tensor rounds as one that holds it all.

fp32 in a byte: block-wise quantisation to levels that lie closer together near zero.

    256 neighbours of the flattened tensor     scale = their largest magnitude
    each                                       the nearest level of x / scale, by its number

    levels     10^-e (1 + 9 (j + 1) / 2^k) / 10,  j = 0 .. 2^k - 1     e leading zeros leave k bits
    signed     e + k = 6:  0, and 127 of either sign                   exp_avg
    unsigned   e + k = 7:  0, and 255                                  exp_avg_sq

Dynamic tree quantisation (Dettmers et al. 2022, arXiv 2110.02861, §1.3 and §2.1): seven decades, with up to 128 steps
in the first. Steps end on their upper border here, so that 1 and -1 are levels: a block's largest number is kept
exactly, and numbers that were quantised are quantised to the same bytes again. Checkpoints rely on it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from scalewright.spec.optimizers import OPTIMIZERS

_MULTIPLIER = 0x045D9F3B  # of T. Mueller's 32-bit integer hash; any odd number with mixed bits would do
_STEP = -1640531535  # 2^32 over the golden ratio, as int32: steps' keys are far apart
_LOST = 0xFFFF  # the bits that bf16 lacks


@dataclass(frozen=True)
class Numbering:
    """The numbers that a rank's part of a tensor has in the whole, row by row. `local`: the part's shape, padding
    included; `offsets`: of its first element; `whole`: the true shape."""

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


BLOCK = OPTIMIZERS["adamw_8bit"].block
LEAST_SCALE = 2.0**-100  # a block below it counts as zeros: scale times the lowest level is a normal number


def levels(signed: bool) -> list[float]:
    """All levels, ascending: 255 signed or 256 unsigned ones."""
    bits = 6 if signed else 7
    places = [(e, 2 ** (bits - e), j) for e in range(bits, -1, -1) for j in range(2 ** (bits - e))]
    up = [(1 + 9 * (j + 1) / steps) / 10 * 10.0**-e for e, steps, j in places]
    return [*([-level for level in reversed(up)] if signed else []), 0.0, *up]


class Bytes:
    """Quantisation to a table of levels on a device."""

    def __init__(self, signed: bool, device: torch.device) -> None:
        table = levels(signed)
        self.zero = table.index(0.0)
        self.levels = torch.tensor(table, dtype=torch.float32, device=device)
        self.borders = (self.levels[1:] + self.levels[:-1]) / 2

    def pack(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 codes [n] and fp32 scales [blocks(n)] of finite fp32 x [n]."""
        missing = -len(x) % BLOCK  # of the last block, which is filled up with zeros
        rows = (torch.nn.functional.pad(x, (0, missing)) if missing else x).view(-1, BLOCK)
        largest = torch.linalg.vector_norm(rows, float("inf"), dim=1)
        scales = torch.where(largest < LEAST_SCALE, 0.0, largest)
        rows = rows / torch.where(scales > 0, scales, float("inf"))[:, None]
        codes = torch.bucketize(rows, self.borders, out_int32=True)
        return codes.to(torch.uint8).view(-1)[: len(x)], scales

    def unpack(self, codes: Tensor, scales: Tensor) -> Tensor:
        """fp32 [n] of codes [n] and their scales."""
        x = torch.index_select(self.levels, 0, codes.to(torch.int32))
        whole = len(x) // BLOCK
        x[: whole * BLOCK].view(-1, BLOCK).mul_(scales[:whole, None])
        if whole < len(scales):
            x[whole * BLOCK :].mul_(scales[-1])
        return x


def blocks(elements: int) -> int:
    """The number of scales of so many numbers."""
    return -(-elements // BLOCK)
