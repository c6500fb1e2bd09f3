"""`train.compress` of `run.yaml`: gradients of whole replicas (`zero_stage: 0`) sent in fewer bytes.

    none        fp32, all-reduced                                        4 bytes a number, twice (n-1)/n
    bf16, fp16  half the bytes: to the rank that sums a part in fp32,    2 bytes a number, twice (n-1)/n
                and its sum to all (parallel/replicate.py)
    powersgd    of a matrix [m, c] two factors [m, r] and [c, r]         4 r (m + c) a matrix, twice (n-1)/n
                (parallel/power_sgd.py)

PowerSGD (Vogels et al. 2019, arXiv 1905.13727) leaves whole what its factors wouldn't shrink (tensors of one
dimension, small matrices) and gradients that another axis has yet to sum. Run files, trainer and planner use
this: what is sent and kept is counted from the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

from pydantic import Field

from scalewright.spec.base import Spec
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout

FP32, HALF = 4, 2
HEADER = 4  # bytes before each part of fp16: its scale
Number = Any  # an int, a float, or an array of them


class PowerSGDSpec(Spec):
    """The rank of the factors, and the steps before the first that is compressed."""

    rank: int = Field(4, ge=1)
    start_after: int = Field(0, ge=0)  # the first steps' gradients change fast, and are sent whole


class LowRank(Spec):
    """`{powersgd: {rank: 4}}`."""

    powersgd: PowerSGDSpec = PowerSGDSpec()


Compress = Literal["none", "bf16", "fp16"] | LowRank
WORDS = ("none", "bf16", "fp16")


def read_compress(value: Any) -> Any:
    """The value of `train.compress`, its keys parsed as one branch, so that an error is about that branch."""
    if isinstance(value, dict):
        return LowRank.parse(value, where="train.compress")
    if isinstance(value, LowRank) or value in WORDS:
        return value
    how = f"use one of {', '.join(WORDS)}, or {{powersgd: {{rank: 4}}}}"
    raise UserError(f"it is {value!r}", "train.compress", how)


def check_compress(compress: Compress, layout: Layout, *, islands: bool = False) -> None:
    """Raises UserError where there is nothing to compress, or where compressing would do something else.

    `islands`: replicas are islands (spec/diloco.py), which sum no gradients with each other.
    """
    if compress == "none":
        return
    where, written = "train.compress", word(compress)
    if layout.zero_stage:
        problem = f"{written} compresses gradients of whole replicas; zero_stage {layout.zero_stage} shards them"
        raise UserError(problem, where, "use layout.zero_stage=0, or train.compress=none")
    if layout.dp * layout.cp == (layout.dp_replicate if islands else 1):
        how = "use train.compress=none, or more devices"
        raise UserError(f"{written} has nothing to compress: no other rank holds the same weights", where, how)
    if layout.precision == "fp16" and isinstance(compress, LowRank):
        problem = "powersgd carries an error from step to step, and fp16's loss scale changes between them"
        raise UserError(problem, where, "use layout.precision=bf16, or train.compress=bf16")


def applicable(compress: Compress, layout: Layout, *, islands: bool = False) -> Compress:
    """`compress`, or none in a layout that has nothing for it."""
    try:
        check_compress(compress, layout, islands=islands)
    except UserError:
        return "none"
    return compress


def word(compress: Compress) -> str:
    """A kind's name."""
    return "powersgd" if isinstance(compress, LowRank) else compress


def rank_of(compress: Compress) -> int:
    """The rank of PowerSGD's factors; 0 of the others."""
    return compress.powersgd.rank if isinstance(compress, LowRank) else 0


def as_matrices(shape: Sequence[int], *, stacked: bool) -> tuple[int, int, int]:
    """(matrices, rows, columns) of a tensor of two dimensions or more; `stacked`: experts, a matrix each.

    Other dimensions than the first are columns, as of a convolution's weight (Vogels et al. 2019 §3).
    """
    return (prod(shape[:-2]), shape[-2], shape[-1]) if stacked else (1, shape[0], prod(shape[1:]))


def factors(shape: Sequence[int], rank: int, *, stacked: bool, partial: bool) -> tuple[int, int]:
    """Numbers of P and of Q of a rank's tensor; (0, 0) of one sent whole. `partial`: another axis has yet to sum it."""
    if not rank or partial or len(shape) < 2 or not prod(shape):
        return 0, 0
    count, rows, columns = as_matrices(shape, stacked=stacked)
    if rank * (rows + columns) >= rows * columns:
        return 0, 0
    return count * rows * rank, count * columns * rank


def kept_bytes(elements: Number, columns: Number) -> Number:
    """Bytes that PowerSGD keeps of tensors with so many elements, and so many numbers in their Qs.

    The error, its Q, and both as they were before the step, for one whose update is left out.
    """
    return 2 * FP32 * (elements + columns)


def half_part(size: int, ranks: int) -> int:
    """Numbers of the part of a bucket that each rank sums: an even one, so that a header is aligned."""
    return -(-size // (2 * ranks)) * 2


def half_bytes(size: Number, ranks: Number, fp16: Number) -> Number:
    """Bytes of either message of a bucket of `size` numbers, a multiple of `ranks` parts; `fp16`: 0 or 1."""
    return HALF * size + HEADER * ranks * fp16
