"""PowerSGD: a matrix's gradient as two thin factors (Vogels et al. 2019, arXiv 1905.13727, algorithms 1, 2).

    M = gradient + error                               on every rank, [rows, columns]
    P = M Q             summed over the ranks          [rows, r]; Q is the last step's: power iteration
    P = orthonormal columns of P                       the same on every rank
    Q = M^T P           error = M - P Q^T, then summed [columns, r]
    gradient = P Q^T

Every rank keeps what its own M lost (algorithm 2) and adds it to the next step's gradient; the errors sum to what the
sum lost, and a rank's own stays below its M, since P P^T projects. Gradients here are sums, not means: so are P and Q.

What isn't a matrix, or would take as much in factors, is sent whole, beside P; so is a gradient that another axis has
yet to sum (spec/compress.py). Under tp and pp each rank compresses the parts that it holds: halves of a matrix have
factors of their own, another approximation and no worse. A step whose update is left out changes no error and no Q.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from scalewright.parallel.bucket import Bucket, Stages
from scalewright.parallel.weights import Weight
from scalewright.spec.compress import PowerSGDSpec, as_matrices, factors

DEPENDENT = 1e-6  # of a column's length: what is left of one that lies among those before it


@dataclass
class Matrix:
    """A weight whose gradient is compressed, and what lasts from step to step; [count, rows, columns]."""

    weight: Weight
    gradient: Tensor  # a view of its bucket
    error: Tensor
    q: Tensor  # [count, columns, r]
    next_error: Tensor  # of the step that runs, until its update is taken
    next_q: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """(matrices, rows, columns)."""
        count, rows, columns = self.gradient.shape
        return count, rows, columns


class PowerSGD:
    """The stages of a bucket, and their state: an error and a Q for every compressed weight."""

    def __init__(self, spec: PowerSGDSpec, buckets: Sequence[Bucket]) -> None:
        self.spec = spec
        self.steps = 0  # that the run has behind it
        self.plans = {id(bucket): _Plan.of(bucket, spec.rank) for bucket in buckets}

    @property
    def compresses(self) -> bool:
        """Whether the step that runs is compressed."""
        return self.steps >= self.spec.start_after

    @property
    def matrices(self) -> Iterator[Matrix]:
        """All compressed weights."""
        return (matrix for plan in self.plans.values() for matrix in plan.matrices)

    def __call__(self, bucket: Bucket, group: dist.ProcessGroup) -> Stages:
        """Sums a bucket over a group, in place, up to what the factors lose."""
        plan = self.plans[id(bucket)]
        if not self.compresses or not plan.matrices:
            yield _sum(bucket.buffer, group)
            return
        first = plan.begin()
        yield _sum(first, group)
        second = plan.go_on(first)
        yield _sum(second, group)
        plan.end(first, second)

    def keep(self, keep: Tensor) -> None:
        """After a step: its error and Q are the next one's if its update is taken (a bool on the device)."""
        if self.compresses:
            for matrix in self.matrices:
                torch.where(keep, matrix.next_error, matrix.error, out=matrix.error)
                torch.where(keep, matrix.next_q, matrix.q, out=matrix.q)
        self.steps += 1

    def tensors(self) -> Iterator[Tensor]:
        """All that lasts from step to step, and all that a step writes beside it."""
        for matrix in self.matrices:
            yield from (matrix.error, matrix.q, matrix.next_error, matrix.next_q)

    def state(self) -> dict[str, Tensor]:
        """This rank's error and Q of every compressed weight, for a checkpoint."""
        return {
            f"{kind}/{matrix.weight.name}": tensor
            for matrix in self.matrices
            for kind, tensor in (("error", matrix.error), ("q", matrix.q))
        }

    def begin_anew(self, steps: int) -> None:
        """No error, and the first Q; `steps`: that the run has behind it."""
        self.steps = steps
        for matrix in self.matrices:
            matrix.error.zero_()
            matrix.q.copy_(first_q(matrix.weight.name, matrix.weight.box[0], tuple(matrix.q.shape)))


def _sum(tensor: Tensor, group: dist.ProcessGroup) -> dist.Work:
    handle: dist.Work | None = dist.all_reduce(tensor, group=group, async_op=True)
    assert handle is not None  # this rank is in the group
    return handle


class _Plan:
    """Where the factors of a bucket's matrices lie in its two messages."""

    def __init__(self, matrices: list[Matrix], whole: list[Tensor], rank: int) -> None:
        # by rows, so that columns of equal length are made orthogonal together
        self.matrices = sorted(matrices, key=lambda matrix: matrix.shape[1])
        self.whole, self.rank = whole, rank
        self.p_sizes = [m.shape[0] * m.shape[1] * rank for m in self.matrices]
        self.q_sizes = [m.q.numel() for m in self.matrices]
        self.whole_sizes = [tensor.numel() for tensor in whole]

    @classmethod
    def of(cls, bucket: Bucket, rank: int) -> _Plan:
        matrices, whole = [], []
        for weight, view in zip(bucket.members, bucket.views, strict=True):
            stacked = weight.placement.tensor.role.startswith("expert")
            partial = bool(weight.placement.grad_sum)
            shared = bucket.group is not None  # a group of one sums nothing
            numbers, _ = factors(view.shape, rank, stacked=stacked, partial=partial)
            if shared and numbers:
                matrices.append(_matrix(weight, view.view(as_matrices(view.shape, stacked=stacked)), rank))
            else:
                whole.append(view)
        return cls(matrices, whole, rank)

    def begin(self) -> Tensor:
        """The first message: every P, then what is sent whole."""
        sizes = sum(self.p_sizes) + sum(self.whole_sizes)
        message = self.matrices[0].error.new_empty(sizes)
        *ps, whole = torch.split(message, [*self.p_sizes, sum(self.whole_sizes)])
        for matrix, p in zip(self.matrices, ps, strict=True):
            torch.add(matrix.gradient, matrix.error, out=matrix.next_error)  # M, until its loss is known
            torch.bmm(matrix.next_error, matrix.q, out=self._p(matrix, p))
        if self.whole:
            torch.cat([tensor.reshape(-1) for tensor in self.whole], out=whole)
        return message

    def go_on(self, message: Tensor) -> Tensor:
        """The second message: every Q. The errors are known with it."""
        *ps, whole = torch.split(message, [*self.p_sizes, sum(self.whole_sizes)])
        parts = torch.split(whole, self.whole_sizes) if self.whole else ()
        for tensor, part in zip(self.whole, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))
        begin = 0
        for rows, size in self._by_rows():
            orthogonalize(message[begin : begin + size].view(-1, rows, self.rank))
            begin += size
        second = message.new_empty(sum(self.q_sizes))
        for matrix, p, q in zip(self.matrices, ps, torch.split(second, self.q_sizes), strict=True):
            local_q = q.view(matrix.q.shape)
            torch.bmm(matrix.next_error.mT, self._p(matrix, p), out=local_q)
            matrix.next_error.baddbmm_(self._p(matrix, p), local_q.mT, alpha=-1)
        return second

    def end(self, first: Tensor, second: Tensor) -> None:
        """The gradients; and the next step's Qs."""
        *ps, _ = torch.split(first, [*self.p_sizes, sum(self.whole_sizes)])
        for matrix, p, q in zip(self.matrices, ps, torch.split(second, self.q_sizes), strict=True):
            summed = q.view(matrix.q.shape)
            torch.bmm(self._p(matrix, p), summed.mT, out=matrix.gradient)
            # a column of zeros would stay one for ever: M 0 = 0
            some = summed.norm(dim=1, keepdim=True) > 0
            torch.where(some, summed, matrix.q, out=matrix.next_q)

    def _p(self, matrix: Matrix, flat: Tensor) -> Tensor:
        count, rows, _ = matrix.shape
        return flat.view(count, rows, self.rank)

    def _by_rows(self) -> Iterator[tuple[int, int]]:
        """(rows, numbers of P) of all matrices with so many rows."""
        sizes: dict[int, int] = {}
        for matrix, size in zip(self.matrices, self.p_sizes, strict=True):
            sizes[matrix.shape[1]] = sizes.get(matrix.shape[1], 0) + size
        yield from sizes.items()


def _matrix(weight: Weight, gradient: Tensor, rank: int) -> Matrix:
    count, _, columns = gradient.shape
    q = gradient.new_empty(count, columns, rank)
    q.copy_(first_q(weight.name, weight.box[0], (count, columns, rank)))
    error = torch.zeros_like(gradient)
    return Matrix(weight, gradient, error, q, torch.zeros_like(error), q.clone())


def first_q(name: str, offsets: Sequence[int], shape: tuple[int, ...]) -> Tensor:
    """The first step's Q: normal numbers, a function of the weight and of the part of it that is held."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {list(offsets)}".encode()))
    return torch.randn(shape, generator=generator)


def orthogonalize(p: Tensor) -> Tensor:
    """Orthonormal columns of p [count, rows, r], in place: Gram-Schmidt, each column projected twice.

    A column that lies among those before it becomes zero: what is left of it is rounding, and would count again in a
    direction that they have. (One projection isn't enough where columns are close to each other: Giraud et al. 2005.)
    """
    for index in range(p.shape[-1]):
        column, before = p[..., index : index + 1], p[..., :index]
        length = column.norm(dim=-2, keepdim=True)
        if index:
            for _ in range(2):
                column -= before @ (before.mT @ column)
        left = column.norm(dim=-2, keepdim=True)
        kept = left > DEPENDENT * length
        column *= torch.where(kept, 1 / left, 0.0)
    return p
