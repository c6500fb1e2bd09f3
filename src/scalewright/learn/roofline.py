"""The roofline: a kernel takes at least as long as its FLOPs, and at least as long as its bytes.

    FLOP/s |        ________ peak              intensity   FLOPs / bytes of an operation
           |      /                            ridge       peak / bytes per second of a device
           |    /  bytes per second            below the ridge an operation is bound by memory
           |  /
           +--------|------------ FLOPs/byte
                  ridge

Williams, Waterman, Patterson 2009; Austin et al., How To Scale Your Model, part 1. All rates are of one device, bytes/s
for reads and writes together; `bytes_per_s` may also be a link's. A data sheet's numbers stand at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Literal


def compute_seconds(flops: float, peak: float) -> float:
    """Seconds of `flops` at `peak` FLOP/s: no kernel is faster."""
    return flops / peak


def ridge_point(peak: float, bytes_per_s: float) -> float:
    """FLOPs per byte above which compute binds: of a device's memory, or of a link (the book's alpha, part 5)."""
    return peak / bytes_per_s


def critical_batch(
    peak: float, bytes_per_s: float, weight_bytes: float = 2.0, experts: int = 1, active_experts: int = 1
) -> float:
    """Tokens above which a weight matrix's FLOPs take longer than reading it: ridge · bytes / 2.

    Each weight is 2 FLOPs a token, so in 16 bits this is the ridge itself. Experts see active / experts of
    the tokens. For a batch much smaller than the matrix (scaling book, parts 1 and 7).
    """
    return ridge_point(peak, bytes_per_s) * weight_bytes / 2 * experts / active_experts


@dataclass(frozen=True)
class Floor:
    """The two times under which an operation can't be, in seconds."""

    compute: float
    memory: float

    @property
    def seconds(self) -> float:
        """The larger one: compute and traffic overlap."""
        return max(self.compute, self.memory)

    @property
    def bound(self) -> Literal["compute", "memory"]:
        """Which of them it is."""
        return "compute" if self.compute >= self.memory else "memory"


def matmul_flops(rows: float, into: float, out: float) -> float:
    """FLOPs of [rows, into] x [into, out]: a multiplication and an addition for each triple."""
    return 2 * rows * into * out


def matmul_floor(rows: int, into: int, out: int, peak: float, bytes_per_s: float, width: float = 2.0) -> Floor:
    """A matrix product [rows, into] x [into, out] whose three matrices pass memory once; `width` in bytes."""
    moved = sum(tensor_bytes(shape, width) for shape in ((rows, into), (into, out), (rows, out)))
    return Floor(compute_seconds(matmul_flops(rows, into, out), peak), moved / bytes_per_s)


def attention_intensity(queries: int, keys: int, group: int = 1) -> float:
    """FLOPs per byte of fused 16-bit attention: T S G / (T G + S) for T queries, S keys, G heads a KV head.

    T = S gives T G / (G + 1) (prefill); one query gives S G / (G + S), which tends to G (decode). Scaling
    book, part 4, question 4. Full square; scores never reach memory.
    """
    return queries * keys * group / (queries * group + keys)


def elementwise_intensity(operands: int, width: float, flops: float = 1.0) -> float:
    """FLOPs per byte of an operation that reads and writes `operands` elements in all for each result."""
    return flops / (operands * width)


def elementwise_seconds(elements: int, operands: int, width: float, bytes_per_s: float) -> float:
    """Seconds of such an operation, which memory always binds."""
    return operands * tensor_bytes((elements,), width) / bytes_per_s


def tensor_bytes(shape: Sequence[float], width: float) -> float:
    """Bytes of a tensor whose elements take `width` bytes."""
    return prod(shape) * width


def padding_factor(shape: Sequence[int], tile: Sequence[int]) -> float:
    """How many times as large a tensor is when each dimension is rounded up to its tile's."""
    return prod(ceil(size / t) * t for size, t in zip(shape, tile, strict=True)) / prod(shape)


def einsum_flops(rule: str, sizes: Mapping[str, int]) -> float:
    """FLOPs of an einsum of two operands (`ij,jk->ik`): 2 for each combination of all its indices."""
    return 2.0 * prod(sizes[index] for index in set(rule) - set("->, "))


@dataclass(frozen=True)
class MeshFlops:
    """FLOPs of one device, and of all together: more than once where a mesh axis has copies."""

    device: float
    total: float


def sharded_matmul_flops(rows: int, into: int, out: int, mesh: Mapping[str, int], cut: Sequence[str]) -> MeshFlops:
    """A matrix product whose dimensions are cut over the axes in `cut` of a device mesh.

    The mesh's other axes repeat it: each of their ranks does the same (scaling book, part 4, question 2).
    """
    device = matmul_flops(rows, into, out) / prod(mesh[axis] for axis in cut)
    return MeshFlops(device, device * prod(mesh.values()))


def vector_flops_per_s(units: int, clock: float, flops_per_cycle: float = 2.0) -> float:
    """FLOP/s of `units` arithmetic units; vendors count a fused multiply-add as two."""
    return units * clock * flops_per_cycle


def vector_clock(flops_per_s: float, units: int, flops_per_cycle: float = 2.0) -> float:
    """The clock, in Hz, at which so many units reach a printed rate."""
    return flops_per_s / (units * flops_per_cycle)


def memory_bytes_per_s(clock: float, bus_bytes: float, transfers: float = 2.0) -> float:
    """Bytes/s of a memory bus; `transfers` a cycle: 2 for double data rate."""
    return clock * bus_bytes * transfers


def link_bytes_per_s(links: int, bytes_per_s: float, devices: int = 1) -> float:
    """Bytes/s of all links of `devices` together (or of a switch's ports)."""
    return links * bytes_per_s * devices


def bits_to_bytes_per_s(bits_per_s: float, links: int = 1) -> float:
    """Network links are sold in bits per second."""
    return links * bits_per_s / 8
