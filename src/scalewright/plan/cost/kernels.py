"""Seconds of every kernel on its device: a roofline whose roof depends on the shape.

    matrix product   max( FLOPs / (peak · e · depth(k) · waves(m, n)),  bytes / (rate · e_m) ) + gap
                     depth(k) = k / (k + k0)          waves = tiles / (whole waves of tiles), partly won back
                     k0 = seconds from tile to tile · (peak / multiprocessors) / FLOPs of a tile and step of k
    attention        fused: FLOPs that mask and window leave / (peak · e · head size)
                     in memory: both products over the full square, and passes over the scores
    the rest         bytes · passes(generation of kernels) / (rate · e_m) + gap

e, e_m, k0, passes: plan/data/constants.yaml. Eight- and four-bit products also cast their operands.

Kernels of all units are flat arrays, by class (products, attention, moves), with what no constant changes worked out: a
fit of constants makes them once. A matrix product runs in tiles of 128 by 128, or 256 by 128, as CUTLASS and cuBLAS
mostly choose them:

    padded   edges of tiles that stick out       waves   the last wave of tiles leaves units idle
    deep     seconds from tile to tile against those of a tile's products: more where a unit is faster
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalewright.plan.constants import Constants
from scalewright.plan.cost import work
from scalewright.plan.cost.cpu_kernels import unit_seconds
from scalewright.plan.cost.facts import ChipFacts, Facts
from scalewright.plan.cost.habits import RECIPES, TrainerFacts
from scalewright.plan.cost.units import Unit
from scalewright.plan.cost.work import BLOCK, FORWARD, GROUPED, PARTS, REGIONS, REST, WEIGHT, Kernel
from scalewright.plan.frameworks import ATTENTION, KERNELS
from scalewright.spec.hardware.device_families import PRICED

PHASES = 3
TILE = 128  # rows and columns of a threadblock's tile; and of the MXU
ARRAY = 50e12  # FLOP/s of a unit beyond which it is one systolic array, not a multiprocessor
SMALL_TILE = 1.1  # what a tile of 128 by 128 loses against one of 256 by 128: operands are read more often
BITS = ("bits32", "bits16", "bits8", "bits4")
EXPERT_ACT = PARTS.index("expert_act")
FLASH1, BEST = ATTENTION.index("flash1"), ATTENTION.index("best")
CAST_BYTES = 4.0  # an operand of 8 bits: 2 bytes read, 1 written as it is and 1 transposed
SMALL_HEAD = 96  # elements below which a head fills the tensor cores worse
LOOSE_KERNELS = 5  # of an attention whose scores lie in memory
LISTED_LOSS = 6.0  # bytes a logit that spec/block.py lists


@dataclass(frozen=True)
class Kernels:
    """Kernels of one class, with the numbers of their units: a row a kernel."""

    place: np.ndarray  # in the sums [units, REGIONS, PHASES]
    part: np.ndarray  # in the sums [units, PARTS + 1], of forwards
    k: Kernel
    chip: ChipFacts
    trainer: TrainerFacts


@dataclass(frozen=True)
class Tiles:
    """What tiles make of matrix products' shapes, and what goes with them."""

    rows: np.ndarray  # of a group
    plain: np.ndarray  # runs in 16 bits or more whatever the run's precision
    peak: np.ndarray
    width: np.ndarray
    waves: np.ndarray
    deep: np.ndarray
    padded: np.ndarray
    added: np.ndarray  # bytes of what a gradient is added to
    operands: np.ndarray  # numbers that are cast


@dataclass(frozen=True)
class Flat:
    """The kernels of all units, and their FLOPs."""

    products: Kernels
    tiles: Tiles
    attention: Kernels
    moves: Kernels
    square: np.ndarray  # FLOPs of a forward [units, REGIONS], attention over the full square
    masked: np.ndarray  # the same as mask and window leave them
    parts: np.ndarray  # of these, what parts of a block have [units, PARTS]
    units: int
    timed: dict[int, Unit]  # units of machines whose kernels a probe timed


@dataclass(frozen=True)
class Prices:
    """Seconds on the device: [units, REGIONS, PHASES], and of a block's parts."""

    seconds: np.ndarray
    flops: np.ndarray  # [units, REGIONS] of a forward, attention as the mask leaves it
    square: np.ndarray  # the same, attention over the full square
    parts: np.ndarray  # seconds of a forward of a block's parts [units, PARTS]
    light: np.ndarray  # seconds of a block's forward without matrix products [units]
    part_flops: np.ndarray  # of `flops`, what these have [units, PARTS]


def price(flat: Flat, c: Constants) -> Prices:
    """Seconds, by unit, region and phase; those of timed units by their curves."""
    shape = (flat.units, REGIONS, PHASES)
    total: np.ndarray = np.zeros(shape)
    parts, light = np.zeros(flat.units * (REST + 1)), np.zeros(flat.units)
    classes = (flat.products, flat.attention, flat.moves)
    core, fused = flat.attention, flat.attention.trainer.attention >= FLASH1  # (Dao 2023); else scores are in memory
    attention = np.where(fused, _fused(core, c), _loose(core, c))
    prices = (_matmul(flat.products, flat.tiles, c), attention, _move(flat.moves, c))
    for kernels, each in zip(classes, prices, strict=True):
        seconds = each * kernels.k.share
        sums = np.bincount(kernels.place, seconds, int(np.prod(shape))).reshape(shape)
        total = total + sums
        parts += np.bincount(kernels.part, seconds, len(parts))
        if kernels is not flat.products:
            light += sums[:, BLOCK, FORWARD]
    by_part = parts.reshape(flat.units, REST + 1)[:, :REST]
    for index, unit in flat.timed.items():
        assert unit.chip.timings is not None
        timed = unit_seconds(unit.model, unit.sizes, unit.precision, unit.chip.timings)
        total[index], by_part[index], light[index] = timed.seconds, timed.parts, timed.light
    return Prices(total, flat.masked, flat.square, by_part, light, flat.parts)


def roof(chip: ChipFacts, width: np.ndarray, peak: np.ndarray, c: Constants) -> np.ndarray:
    """FLOP/s that a large matrix product reaches; a measured peak is what one reached already."""
    narrow = c.row("narrow", BITS)[width]
    narrow = np.where((width == 2) & (chip.bound_by_power > 0), c["narrow.blackwell8"], narrow)
    share = c.row("matmul", PRICED)[chip.priced] * narrow
    return np.asarray(peak * np.where(chip.measured > 0, c["shape.measured"], share))


def unfused(trainer: TrainerFacts, of: str, c: Constants) -> np.ndarray:
    """How many times the launches (`of` host) or bytes (memory) of fused kernels a release takes to route tokens."""
    permutes = np.where(trainer.permutes_fused > 0, 1.0, c[f"{of}.loose_permute"])
    return np.asarray(permutes * np.where(trainer.routes_fused > 0, 1.0, c[f"{of}.loose_router"]))


def _matmul(kernels: Kernels, tiles: Tiles, c: Constants) -> np.ndarray:
    """A matrix product: the slower of its FLOPs and its bytes (Williams et al. 2009), and its casts.

    A TPU streams its operands beside the products: shape.reuse FLOPs a byte.
    """
    k, chip, trainer = kernels.k, kernels.chip, kernels.trainer
    fast = roof(chip, tiles.width, tiles.peak, c) * chip.power ** c["power.exponent"]
    fast = fast * np.where(tiles.width == 2, c.row("recipe", RECIPES)[trainer.recipe], 1.0)
    lost = tiles.padded * (1 + c["shape.wave"] * tiles.waves) * (1 + c["shape.depth"] * tiles.deep)
    experts = c["shape.grouped"] * tiles.rows / (tiles.rows + c["shape.expert_rows"])
    grouped = np.where(k.kind == GROUPED, experts, 1.0)
    compute = k.flops * lost / (fast * grouped) + chip.tpu * k.flops / (c["shape.reuse"] * chip.memory_rate)
    rate = _rate(chip, c)
    cast = tiles.operands * (c.row("cast", KERNELS)[trainer.kernels] * CAST_BYTES) / rate
    cast = cast * np.where((k.kind == GROUPED) & (trainer.fused_experts > 0), 0.0, 1.0)
    gaps = np.where(tiles.plain, 1, 3) * c["shape.gap"]
    return np.asarray(np.maximum(compute, k.bytes / rate) + (cast + tiles.added / rate) + gaps)


def _fused(kernels: Kernels, c: Constants) -> np.ndarray:
    """FLOPs that mask and window leave, at a share of the peak that kernel, generation and head size set."""
    k, chip, trainer = kernels.k, kernels.chip, kernels.trainer
    share = c.row("attention", PRICED)[chip.priced]
    share = share * np.where((trainer.attention < BEST) & (chip.newer_attention > 0), c["kernel.flash2_hopper"], 1.0)
    share = share * np.where(trainer.attention == FLASH1, c["kernel.flash1"], 1.0)
    share = share * np.where(chip.fast_exponentials > 0, c["kernel.exponentials"], 1.0)
    attended = k.n * k.mark  # keys of a query: with few, a tile's start, end and masked edge weigh more
    share = share * attended / (attended + c["kernel.edge"])
    narrow = np.where(k.dim < SMALL_HEAD, c["kernel.head64"], 1.0)
    # an array of multipliers whose columns a head doesn't fill stands idle there
    share = share * np.where(chip.tpu > 0, np.minimum(k.dim / TILE, 1.0), narrow)
    again = np.where(k.phase > 0, c["kernel.backward"], 1.0)
    low = (trainer.low_attention > 0) & (chip.width >= 2)
    peak = np.where(low, chip.peak * c.row("narrow", BITS)[chip.width], chip.peak16)
    compute = k.flops * k.mark * again / (peak * share)
    return np.asarray(np.maximum(compute, k.bytes / _rate(chip, c)) + c["shape.gap"])


def _loose(kernels: Kernels, c: Constants) -> np.ndarray:
    """Both products over the full square, and passes over scores of 2 bytes, forward as many as back."""
    k, chip, trainer = kernels.k, kernels.chip, kernels.trainer
    scores = k.m * k.n * k.k
    passes = c["kernel.square"] * np.where(trainer.attention == 0, c["kernel.unfused"], 1.0)
    passes = passes * np.where(trainer.dropout > 0, 1.0, c["kernel.no_dropout"])
    fast = roof(chip, chip.width16, chip.peak16, c) * c["kernel.batched"]
    products = k.flops / fast * np.where(k.dim % 8 != 0, c["shape.misaligned"], 1.0)
    return np.asarray(products + 2 * scores * passes / _rate(chip, c) + LOOSE_KERNELS * c["shape.gap"])


def _move(kernels: Kernels, c: Constants) -> np.ndarray:
    """Kernels bound by memory: bytes, as often as the generation of kernels passes over them."""
    k, chip, trainer = kernels.k, kernels.chip, kernels.trainer
    passes = c.row("passes", KERNELS)[trainer.kernels]
    permute = c["memory.permute"] * unfused(trainer, "memory", c)
    forward, backward = trainer.loss_bytes.T / LISTED_LOSS
    loss = np.where(k.phase > 0, backward, forward)
    factor = np.select([k.kind == work.LOSS, k.kind == work.PERMUTE], [loss, permute], passes)
    whole = np.isin(k.kind, (work.LOSS, work.BIAS))  # whose bytes are counted, forward and back
    factor = np.where(k.kind == work.BIAS, 1.0, factor)
    back = np.where((k.phase > 0) & ~whole, c["memory.backward"], 1.0)
    # of the products' kernel; XLA, and this package's own trainer, add biases as they write them
    inside = (k.part == EXPERT_ACT) & (trainer.fused_experts > 0)
    inside |= (k.kind == work.BIAS) & ((trainer.kernels == KERNELS.index("xla")) | (trainer.own > 0))
    return np.asarray(np.where(inside, 0.0, k.bytes * factor * back / _rate(chip, c) + c["shape.gap"] * passes))


def _rate(chip: ChipFacts, c: Constants) -> np.ndarray:
    return np.asarray(chip.memory_rate * c["memory.rate"])


def flatten(units: Sequence[Unit], facts: Facts) -> Flat:
    """The kernels of all units as one array, by class."""
    listed = [unit.work.kernels for unit in units]
    rows = np.concatenate(listed or [np.zeros((0, len(Kernel._fields)))])
    unit = np.repeat(np.arange(len(units)), [len(kernels) for kernels in listed])
    every = Kernel(*np.ascontiguousarray(rows.T))
    region = unit * REGIONS + every.region.astype(int)
    place = region * PHASES + np.where(every.early > 0, FORWARD, every.phase).astype(int)
    # parts of a block, in the forward; all else is summed up in the column behind them
    in_block = (every.region == BLOCK) & (every.phase == FORWARD)
    part = unit * (REST + 1) + np.where(in_block, every.part, REST).astype(int)

    def of(*kinds: int) -> Kernels:
        at = np.flatnonzero(np.isin(every.kind, kinds))
        k = Kernel(*(column[at] for column in every))
        return Kernels(place[at], part[at], k, facts.chips.take(unit[at]), facts.trainers.take(unit[at]))

    products, tiles = _tiled(of(work.MATMUL, GROUPED))
    forward = every.flops * every.share * (every.phase == FORWARD)
    masked = forward * np.where(every.kind == work.ATTENTION, every.mark, 1.0)
    shape = (len(units), REGIONS)
    parts = np.bincount(part, masked, len(units) * (REST + 1)).reshape(len(units), REST + 1)
    square, masked = (np.bincount(region, flops, len(units) * REGIONS).reshape(shape) for flops in (forward, masked))
    timed = {index: unit for index, unit in enumerate(units) if unit.chip.timings is not None}
    attention, moves = of(work.ATTENTION), of(work.MOVE, work.LOSS, work.PERMUTE, work.BIAS)
    return Flat(products, tiles, attention, moves, square, masked, parts[:, :REST], len(units), timed)


def _tiled(kernels: Kernels) -> tuple[Kernels, Tiles]:
    """Matrix products, those of experts padded to their capacity, and their tiles."""
    k, chip, trainer = kernels.k, kernels.chip, kernels.trainer
    more = np.where(k.kind == GROUPED, trainer.capacity_factor, 1.0)
    backward = np.asarray(k.phase == WEIGHT)  # whose depth the rows are
    k = k._replace(m=np.where(backward, k.m, k.m * more), k=np.where(backward, k.k * more, k.k))
    k = k._replace(flops=k.flops * more, bytes=k.bytes * more)
    low = np.where(k.kind == GROUPED, trainer.low_experts, trainer.low_linear) > 0
    plain = (k.mark > 0) | (chip.width < 2) | ~low
    peak = np.where(plain, chip.peak16, chip.peak)
    m, n, depth = (np.maximum(size, 1.0) for size in (k.m, k.n, k.k))
    together = np.where(trainer.one_by_one > 0, 1.0, k.groups)
    large = np.maximum(_waves(m, n, 2 * TILE, together, chip), 1.0)
    small = _waves(m, n, TILE, together, chip) * SMALL_TILE
    each = peak / chip.multiprocessors
    padded = (np.ceil(m / TILE) * TILE / m) * (np.ceil(n / TILE) * TILE / n)
    tiles = Tiles(
        rows=np.asarray(np.where(backward, k.k, k.m)),
        plain=plain,
        peak=peak,
        width=np.where(plain, chip.width16, chip.width),
        waves=np.where(chip.tpu > 0, 0.0, np.minimum(large, small) - 1),
        # seconds from tile to tile, over those of its products; an array of 128 by 128 fills in 128 steps
        deep=np.where(each > ARRAY, 0.0, each / (2 * 2 * TILE * TILE) / depth),
        padded=padded * np.where(each > ARRAY, 1 + TILE / depth, 1.0),
        # gradients of weights are added to what earlier micro-batches left: read and written once more
        added=np.where(backward, k.groups * m * n * 2 * trainer.held_grads, 0.0),
        operands=np.where(plain, 0.0, k.groups * (m + n) * k.k),
    )
    return replace(kernels, k=k), tiles


def _waves(m: np.ndarray, n: np.ndarray, rows: int, groups: np.ndarray, chip: ChipFacts) -> np.ndarray:
    """Time of whole waves of tiles over that of the tiles alone."""
    tiles, units = np.ceil(m / rows) * np.ceil(n / TILE) * groups, chip.multiprocessors
    return np.asarray(np.ceil(tiles / units) * units / np.maximum(tiles, 1.0))
