"""Seconds of every kernel on its device: a roofline whose roof depends on the shape.

    matrix product   max( FLOPs / (peak · e · depth(k) · waves(m, n)),  bytes / (rate · e_m) ) + gap
                     depth(k) = k / (k + k0)          waves = tiles / (whole waves of tiles), partly won back
                     k0 = seconds from tile to tile · (peak / multiprocessors) / FLOPs of a tile and step of k
    attention        fused: FLOPs that mask and window leave / (peak · e · head size)
                     in memory: both products over the full square, and passes over the scores
    the rest         bytes · passes(generation of kernels) / (rate · e_m) + gap

e, e_m, k0, passes: data/constants.yaml. Eight- and four-bit products also cast their operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalewright.plan import work as w
from scalewright.plan.chips import FAMILIES
from scalewright.plan.constants import Constants
from scalewright.plan.frameworks import ATTENTION, KERNELS
from scalewright.plan.table import Facts, Unit

BITS = ("bits32", "bits16", "bits8", "bits4")
BLACKWELL = FAMILIES.index("blackwell")
PHASES = 3
TILE = 128  # rows and columns of a threadblock's tile, as CUTLASS and cuBLAS mostly choose it; the MXU's too
ARRAY = 50e12  # FLOP/s of a unit beyond which it is one systolic array, not a multiprocessor
SMALL_TILE = 1.1  # what a tile of 128 by 128 loses against one of 256 by 128: each operand is read more often
CAST_BYTES = 4.0  # an operand of 8 bits: 2 bytes read, 1 written as it is and 1 transposed
_MOVES = (w.MOVE, w.LOSS, w.PERMUTE)


@dataclass(frozen=True)
class Flat:
    """All kernels of all units, sorted by class, with the device's and the trainer's numbers beside each.

    Nothing here depends on a constant, so a fit makes it once.
    """

    classes: tuple[tuple[str, np.ndarray, dict[str, np.ndarray]], ...]  # name, place in the sums, columns
    square: np.ndarray  # FLOPs of a forward [units, REGIONS], attention over the full square
    masked: np.ndarray  # the same as mask and window leave them
    units: int


@dataclass(frozen=True)
class Prices:
    """Seconds on the device: [units, REGIONS, PHASES], and attention's core alone."""

    seconds: np.ndarray
    core: np.ndarray  # [units, REGIONS, 2]: forward, backward
    flops: np.ndarray  # [units, REGIONS] of a forward, attention as the mask leaves it
    square: np.ndarray  # the same, attention over the full square


_BESIDE = ("family", "power", "memory_rate", "units", "peak", "width", "peak16", "width16", "measured", "tpu")


def flatten(units: Sequence[Unit], facts: Facts) -> Flat:
    """The kernels of all units as one array, by class."""
    works = [unit.work for unit in units]
    counts = [len(one.kernels) for one in works]
    rows = np.concatenate([one.kernels for one in works]) if works else np.zeros((0, len(w.KERNEL)))
    unit = np.repeat(np.arange(len(works)), counts)
    beside = {name: facts.chips[name] for name in _BESIDE}
    beside |= {
        name: facts.trainers[name] for name in ("kernels", "attention", "dropout", "year", "held_grads")
    }
    column = {name: rows[:, at] for name, at in w.COLUMN.items()}
    region = unit * w.REGIONS + column["region"].astype(int)
    place = region * PHASES + column["phase"].astype(int)
    classes = []
    for name, kinds in (("matmul", (w.MATMUL, w.GROUPED)), ("attention", (w.ATTENTION,)), ("move", _MOVES)):
        at = np.flatnonzero(np.isin(column["kind"], kinds))
        k = {key: np.ascontiguousarray(values[at]) for key, values in column.items()}
        k |= {f"_{key}": values[unit[at]] for key, values in beside.items()}
        classes.append((name, place[at], _prepared(k)))
    forward = column["flops"] * column["count"] * (column["phase"] == w.FORWARD)
    left = np.where(column["kind"] == w.ATTENTION, column["mark"], 1.0)
    size = (len(works), w.REGIONS)
    square, masked = (
        np.bincount(region, f, int(np.prod(size))).reshape(size) for f in (forward, forward * left)
    )
    return Flat(tuple(classes), square, masked, len(works))


def _prepared(k: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the formulas need of shapes and devices that no constant changes."""
    k["family"] = k["_family"].astype(int)
    k["plain"] = (k["mark"] > 0) | (k["_width"] < 2)
    k["width16"] = k["_width16"].astype(int)
    k["run_width"] = np.where(k["plain"], k["_width16"], k["_width"]).astype(int)
    k["run_peak"] = np.where(k["plain"], k["_peak16"], k["_peak"])
    m, n = np.maximum(k["m"], 1.0), np.maximum(k["n"], 1.0)
    k["padded"] = (np.ceil(m / TILE) * TILE / m) * (np.ceil(n / TILE) * TILE / n)
    large = np.maximum(_waves(m, n, 2 * TILE, k), 1.0)
    small = _waves(m, n, TILE, k) * SMALL_TILE
    k["waves"] = np.where(k["_tpu"] > 0, 0.0, np.minimum(large, small) - 1)
    # seconds from tile to tile, over those of its products; an array of 128 by 128 fills in 128 steps
    each = k["run_peak"] / k["_units"]
    depth = np.maximum(k["k"], 1.0)
    k["deep"] = np.where(each > ARRAY, 0.0, each / (2 * 2 * TILE * TILE) / depth)
    k["padded"] = k["padded"] * np.where(each > ARRAY, 1 + TILE / depth, 1.0)
    # gradients of weights are added to what earlier micro-batches left: read and written once more
    k["added"] = np.where(k["phase"] == w.WEIGHT, k["groups"] * m * n * 2 * k["_held_grads"], 0.0)
    k["operands"] = np.where(k["plain"], 0.0, k["groups"] * (m + n) * k["k"])
    return k


def _waves(m: np.ndarray, n: np.ndarray, rows: int, k: dict[str, np.ndarray]) -> np.ndarray:
    """Time of whole waves of tiles over that of the tiles alone."""
    tiles = np.ceil(m / rows) * np.ceil(n / TILE) * k["groups"]
    return np.asarray(np.ceil(tiles / k["_units"]) * k["_units"] / np.maximum(tiles, 1.0))


def price(flat: Flat, c: Constants) -> Prices:
    """Seconds, by unit, region and phase."""
    shape = (flat.units, w.REGIONS, PHASES)
    total: np.ndarray = np.zeros(shape)
    core: np.ndarray = total[:, :, :2]
    for name, place, columns in flat.classes:
        seconds = _PRICES[name](columns, c) * columns["count"]
        found = np.bincount(place, seconds, int(np.prod(shape))).reshape(shape)
        total = total + found
        if name == "attention":
            core = found[:, :, :2]
    return Prices(total, core, flat.masked, flat.square)


def _rate(k: dict[str, np.ndarray], c: Constants) -> np.ndarray:
    return k["_memory_rate"] * c["memory.rate"]


def roof(
    family: np.ndarray, width: np.ndarray, peak: np.ndarray, measured: np.ndarray, c: Constants
) -> np.ndarray:
    """FLOP/s that a large matrix product reaches; a measured peak is what one reached already."""
    narrow = c.row("narrow", BITS)[width]
    narrow = np.where((width == 2) & (family == BLACKWELL), c["narrow.blackwell8"], narrow)
    share = c.row("matmul", FAMILIES)[family] * narrow
    return peak * np.where(measured > 0, 0.95, share)


def _matmul(k: dict[str, np.ndarray], c: Constants) -> np.ndarray:
    fast = (
        roof(k["family"], k["run_width"], k["run_peak"], k["_measured"], c)
        * k["_power"] ** c["power.exponent"]
    )
    lost = k["padded"] * (1 + c["shape.wave"] * k["waves"]) * (1 + c["shape.depth"] * k["deep"])
    grouped = np.where(
        k["kind"] == w.GROUPED, c["shape.grouped"] / immature(k["_year"], k["_kernels"], c), 1.0
    )
    compute = k["flops"] * lost / (fast * grouped)
    rate = _rate(k, c)
    compute = compute + k["_tpu"] * k["flops"] / (c["shape.reuse"] * k["_memory_rate"])
    cast = k["operands"] * (c["memory.cast"] * CAST_BYTES) / rate
    return np.asarray(
        np.maximum(compute, k["bytes"] / rate)
        + (cast + k["added"] / rate)
        + np.where(k["plain"], 1, 3) * c["shape.gap"]
    )


def immature(year: np.ndarray, kernels: np.ndarray, c: Constants) -> np.ndarray:
    """How much slower a trainer of that date handles experts than one of 2026; XLA compiles its own."""
    late = np.where(kernels == KERNELS.index("xla"), 0.0, np.clip(2026.0 - year, -0.7, 2.0))
    return np.exp(c["moe.maturity"] * late)


def _attention(k: dict[str, np.ndarray], c: Constants) -> np.ndarray:
    family = k["family"]
    share = c.row("attention", FAMILIES)[family]
    old = (
        (k["_attention"] < ATTENTION.index("best"))
        & (family >= FAMILIES.index("hopper"))
        & (family <= FAMILIES.index("blackwell"))
    )
    share = share * np.where(old, c["kernel.flash2_hopper"], 1.0)
    share = share * np.where(k["_attention"] == ATTENTION.index("flash1"), c["kernel.flash1"], 1.0)
    share = share * np.where(k["dim"] < 96, c["kernel.head64"], 1.0)
    again = np.where(k["phase"] > 0, c["kernel.backward"], 1.0)
    rate = _rate(k, c)
    fused = (
        np.maximum(k["flops"] * k["mark"] * again / (k["_peak16"] * share), k["bytes"] / rate)
        + c["shape.gap"]
    )
    # scores in memory: 2 bytes each, `square` passes forward (fewer without dropout), as many back
    scores = k["m"] * k["n"] * k["k"]
    passes = (
        c["kernel.square"] * np.where(k["_attention"] == 0, 1.6, 1.0) * np.where(k["_dropout"] > 0, 1.0, 0.7)
    )
    products = k["flops"] / (roof(family, k["width16"], k["_peak16"], k["_measured"], c) * 0.6)
    products = products * np.where(k["dim"] % 8 != 0, c["shape.misaligned"], 1.0)
    loose = products + 2 * scores * passes / rate + 5 * c["shape.gap"]
    return np.asarray(np.where(k["_attention"] < ATTENTION.index("flash1"), loose, fused))


def _move(k: dict[str, np.ndarray], c: Constants) -> np.ndarray:
    passes = c.row("passes", KERNELS)[k["_kernels"].astype(int)]
    loss = np.where(k["_kernels"] >= KERNELS.index("compiled"), 1.0, c["memory.loss"])
    factor = np.where(
        k["kind"] == w.LOSS, loss, np.where(k["kind"] == w.PERMUTE, c["memory.permute"], passes)
    )
    back = np.where(k["phase"] > 0, 1.5, 1.0)
    return np.asarray(k["bytes"] * factor * back / _rate(k, c) + c["shape.gap"] * passes)


_PRICES = {"matmul": _matmul, "attention": _attention, "move": _move}
