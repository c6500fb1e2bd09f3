"""All kernels of all units as flat arrays, by class, with what no constant changes worked out.

    units --> works --> one row a kernel --> classes: matmul, attention, move
                                             k: the kernel's own numbers     u: its unit's, beside it

A fit of constants makes it once. A matrix product runs in tiles of 128 by 128, or 256 by 128, as CUTLASS and
cuBLAS mostly choose them:

    padded   edges of tiles that stick out       waves   the last wave of tiles leaves units idle
    deep     seconds from tile to tile against those of a tile's products: more where a unit is faster
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalewright.plan.cost.parts import REST
from scalewright.plan.cost.units import Facts, Unit
from scalewright.plan.cost.work import (
    ATTENTION,
    BLOCK,
    COLUMN,
    FORWARD,
    GROUPED,
    KERNEL,
    LOSS,
    MATMUL,
    MOVE,
    PERMUTE,
    REGIONS,
    WEIGHT,
)

PHASES = 3
TILE = 128  # rows and columns of a threadblock's tile; and of the MXU
ARRAY = 50e12  # FLOP/s of a unit beyond which it is one systolic array, not a multiprocessor
SMALL_TILE = 1.1  # what a tile of 128 by 128 loses against one of 256 by 128: operands are read more often
CLASSES = {"matmul": (MATMUL, GROUPED), "attention": (ATTENTION,), "move": (MOVE, LOSS, PERMUTE)}
_CHIP = (
    "priced", "newer_attention", "fast_exponentials", "bound_by_power", "power", "memory_rate", "units",
    "peak", "width", "peak16", "width16", "measured", "tpu",
)  # fmt: skip
_TRAINER = (
    "own", "kernels", "attention", "dropout", "year", "held_grads", "capacity_factor", "permutes_fused",
    "low_linear", "low_experts", "low_attention", "recipe", "one_by_one", "fused_experts",
)  # fmt: skip

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Class:
    """Kernels of one class: place in the sums [units, REGIONS, PHASES], own numbers, and their units'."""

    name: str
    place: np.ndarray
    part: np.ndarray  # place in the sums [units, PARTS + 1], of forwards
    k: Arrays
    u: Arrays


@dataclass(frozen=True)
class Flat:
    """The kernels of all units, and their FLOPs."""

    classes: tuple[Class, ...]
    square: np.ndarray  # FLOPs of a forward [units, REGIONS], attention over the full square
    masked: np.ndarray  # the same as mask and window leave them
    parts: np.ndarray  # of these, what parts of a block have [units, PARTS]
    units: int
    timed: dict[int, Unit]  # units of machines whose kernels a probe timed


def flatten(units: Sequence[Unit], facts: Facts) -> Flat:
    """The kernels of all units as one array, by class."""
    works = [unit.work for unit in units]
    rows = np.concatenate([work.kernels for work in works]) if works else np.zeros((0, len(KERNEL)))
    unit = np.repeat(np.arange(len(works)), [len(work.kernels) for work in works])
    beside = {name: facts.chips[name] for name in _CHIP} | {name: facts.trainers[name] for name in _TRAINER}
    column = {name: rows[:, at] for name, at in COLUMN.items()}
    region = unit * REGIONS + column["region"].astype(int)
    place = region * PHASES + np.where(column["early"] > 0, FORWARD, column["phase"]).astype(int)
    classes = []
    # parts of a block, in the forward; all else is summed up in the column behind them
    in_block = (column["region"] == BLOCK) & (column["phase"] == FORWARD)
    part = unit * (REST + 1) + np.where(in_block, column["part"], REST).astype(int)
    for name, kinds in CLASSES.items():
        at = np.flatnonzero(np.isin(column["kind"], kinds))
        k = {key: np.ascontiguousarray(values[at]) for key, values in column.items()}
        u = {key: values[unit[at]] for key, values in beside.items()}
        u |= {key: u[key].astype(int) for key in ("priced", "width16", "kernels", "recipe")}
        if name == "matmul":
            k |= _padded_experts(k, u)
            k |= _tiled(k, u)
        classes.append(Class(name, place[at], part[at], k, u))
    forward = column["flops"] * column["count"] * (column["phase"] == FORWARD)
    masked = forward * np.where(column["kind"] == ATTENTION, column["mark"], 1.0)
    shape = (len(works), REGIONS)
    parts = np.bincount(part, masked, len(works) * (REST + 1)).reshape(len(works), REST + 1)
    square, masked = (
        np.bincount(region, flops, len(works) * REGIONS).reshape(shape) for flops in (forward, masked)
    )
    timed = {index: unit for index, unit in enumerate(units) if unit.chip.timings is not None}
    return Flat(tuple(classes), square, masked, parts[:, :REST], len(works), timed)


def _padded_experts(k: Arrays, u: Arrays) -> Arrays:
    """Products of experts that pad to a capacity, and the rows of each."""
    grouped = k["kind"] == GROUPED
    more = np.where(grouped, u["capacity_factor"], 1.0)
    backward = k["phase"] == WEIGHT  # whose depth the rows are
    m, depth = np.where(backward, k["m"], k["m"] * more), np.where(backward, k["k"] * more, k["k"])
    rows = np.where(backward, depth, m)
    return {"m": m, "k": depth, "flops": k["flops"] * more, "bytes": k["bytes"] * more, "rows": rows}


def _tiled(k: Arrays, u: Arrays) -> Arrays:
    """What tiles make of matrix products' shapes, and what goes with them."""
    low = np.where(k["kind"] == GROUPED, u["low_experts"], u["low_linear"]) > 0
    plain = (k["mark"] > 0) | (u["width"] < 2) | ~low  # runs in 16 bits or more whatever the run's precision
    peak = np.where(plain, u["peak16"], u["peak"])
    m, n, depth = (np.maximum(k[name], 1.0) for name in ("m", "n", "k"))
    large = np.maximum(_waves(m, n, 2 * TILE, k, u), 1.0)
    small = _waves(m, n, TILE, k, u) * SMALL_TILE
    each = peak / u["units"]
    padded = (np.ceil(m / TILE) * TILE / m) * (np.ceil(n / TILE) * TILE / n)
    return {
        "plain": plain,
        "peak": peak,
        "width": np.where(plain, u["width16"], u["width"]).astype(int),
        "waves": np.where(u["tpu"] > 0, 0.0, np.minimum(large, small) - 1),
        # seconds from tile to tile, over those of its products; an array of 128 by 128 fills in 128 steps
        "deep": np.where(each > ARRAY, 0.0, each / (2 * 2 * TILE * TILE) / depth),
        "padded": padded * np.where(each > ARRAY, 1 + TILE / depth, 1.0),
        # gradients of weights are added to what earlier micro-batches left: read and written once more
        "added": np.where(k["phase"] == WEIGHT, k["groups"] * m * n * 2 * u["held_grads"], 0.0),
        "operands": np.where(plain, 0.0, k["groups"] * (m + n) * k["k"]),
    }


def _waves(m: np.ndarray, n: np.ndarray, rows: int, k: Arrays, u: Arrays) -> np.ndarray:
    """Time of whole waves of tiles over that of the tiles alone."""
    together = np.where(u["one_by_one"] > 0, 1.0, k["groups"])
    tiles = np.ceil(m / rows) * np.ceil(n / TILE) * together
    return np.asarray(np.ceil(tiles / u["units"]) * u["units"] / np.maximum(tiles, 1.0))
