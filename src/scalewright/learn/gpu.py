"""A GPU's own arithmetic: warps, blocks, occupancy, tiles and waves.

    kernel ──► blocks of threads ──► each on one SM, as warps of 32 that issue together
    occupancy    warps that an SM holds / those that it could: bounded by threads, registers, shared memory, blocks
    waves        ceil(blocks / (SMs x blocks an SM)): the last one may be nearly empty

NVIDIA, CUDA C++ Programming Guide, technical specifications by compute capability. A tile of t x t results reads each
input once for t uses: 2 t³ FLOPs for 2 t² numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

WARP = 32


@dataclass(frozen=True)
class Limits:
    """What an SM holds, by compute capability 8.0 (A100) and 9.0 (H100), which differ in shared memory alone."""

    threads: int = 2048
    blocks: int = 32
    registers: int = 65_536
    shared_bytes: int = 233_472  # 228 KiB; 8.0 has 164


def warps(threads: int) -> int:
    """Warps of a block; the last one may be partly idle."""
    return ceil(threads / WARP)


def blocks_per_sm(threads: int, registers: int = 32, shared_bytes: int = 0, limits: Limits = Limits()) -> int:
    """Blocks that an SM holds at once; `registers` a thread, `shared_bytes` a block."""
    bounds = [limits.blocks, limits.threads // (warps(threads) * WARP)]
    bounds.append(limits.registers // (registers * warps(threads) * WARP))
    if shared_bytes:
        bounds.append(limits.shared_bytes // shared_bytes)
    return min(bounds)


def occupancy(threads: int, registers: int = 32, shared_bytes: int = 0, limits: Limits = Limits()) -> float:
    """Warps that an SM holds over those that it could."""
    return blocks_per_sm(threads, registers, shared_bytes, limits) * warps(threads) * WARP / limits.threads


def matmul_tiles(rows: int, out: int, tile: int = 128) -> int:
    """Blocks of a product [rows, out], one for each tile of its result."""
    return ceil(rows / tile) * ceil(out / tile)


def wave_efficiency(blocks: int, multiprocessors: int, each: int = 1) -> float:
    """The share of all waves' places that blocks fill."""
    places = multiprocessors * each
    return blocks / (ceil(blocks / places) * places)


def matmul_wave_efficiency(rows: int, out: int, multiprocessors: int, tile: int = 128) -> float:
    """The same for a product's tiles, one on an SM at a time."""
    return wave_efficiency(matmul_tiles(rows, out, tile), multiprocessors)


def tile_intensity(tile: int, element: float = 2.0) -> float:
    """FLOPs for each byte that a tile of a product reads: tile / element."""
    return tile / element


def threads_in_flight(multiprocessors: int, limits: Limits = Limits()) -> int:
    """Threads that a device holds at once."""
    return multiprocessors * limits.threads


def launches_hidden(kernel_s: float, launch_s: float) -> float:
    """How far ahead of the device the host gets: seconds of a kernel over those of its launch; below 1 it starves."""
    return kernel_s / launch_s
