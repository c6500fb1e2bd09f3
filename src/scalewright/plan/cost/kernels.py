"""Seconds of every kernel on its device: a roofline whose roof depends on the shape.

    matrix product   max( FLOPs / (peak · e · depth(k) · waves(m, n)),  bytes / (rate · e_m) ) + gap
                     depth(k) = k / (k + k0)          waves = tiles / (whole waves of tiles), partly won back
                     k0 = seconds from tile to tile · (peak / multiprocessors) / FLOPs of a tile and step of k
    attention        fused: FLOPs that mask and window leave / (peak · e · head size)
                     in memory: both products over the full square, and passes over the scores
    the rest         bytes · passes(generation of kernels) / (rate · e_m) + gap

e, e_m, k0, passes: plan/data/constants.yaml. Eight- and four-bit products also cast their operands.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.plan.constants import Constants
from scalewright.plan.cost.cpu_kernels import unit_seconds
from scalewright.plan.cost.kernel_table import PHASES, TILE, Arrays, Flat
from scalewright.plan.cost.parts import PARTS, REST
from scalewright.plan.cost.switch_effects import RECIPES
from scalewright.plan.cost.work import BLOCK, FORWARD, GROUPED, LOSS, PERMUTE, REGIONS
from scalewright.plan.frameworks import ATTENTION, KERNELS
from scalewright.spec.hardware.device_families import PRICED

BITS = ("bits32", "bits16", "bits8", "bits4")
EXPERT_ACT = PARTS.index("expert_act")
FLASH1, BEST = ATTENTION.index("flash1"), ATTENTION.index("best")
CAST_BYTES = 4.0  # an operand of 8 bits: 2 bytes read, 1 written as it is and 1 transposed
REACHED = 0.95  # of a measured peak, which a matrix product reached already
SMALL_HEAD = 96  # elements below which a head fills the tensor cores worse
UNFUSED, NO_DROPOUT = 1.6, 0.7  # passes over the scores: softmax not fused; no mask to make and apply
BATCHED = 0.6  # of a large product's roof: products of a head each
LOOSE_KERNELS = 5  # of an attention whose scores lie in memory
UNFUSED_PERMUTE = 2.0  # bytes of a permutation by single index operations, over one kernel's
# Bytes a 16-bit logit that the loss moves, forward and backward, by generation of kernels.
#   eager     cast to fp32 (2 + 4), log-softmax (4 + 4); its gradient (4 + 4 + 4), the pick's, scattered (4),
#             cast back (4 + 2)
#   fused     Megatron's loss: cast (2 + 4), maximum (4), difference (4 + 4), exponent (4 + 4), sum (4),
#             quotient (4 + 4); its gradient in place (4 + 4), cast back (4 + 2)
#   modern    one kernel: two reads (2 + 2), the gradient in place (2); scaled by the loss's (2 + 2)
#   compiled  cast in the first of two reads (2 + 4 + 4); the gradient in one pass, cast (4 + 2)
#   ours      cast, log-softmax (2 + 4, 4 + 4), exponent (4 + 4), the gradient (4 + 2); scaled (2 + 2)
#   xla       two reads (2 + 2); one more and the gradient (2 + 2)
LOSS_BYTES = {"eager": (14, 22), "fused": (38, 14), "modern": (6, 4), "compiled": (10, 6), "xla": (4, 4)}
OWN_LOSS_BYTES = np.array((28.0, 4.0))
LISTED_LOSS = 6.0  # bytes a logit that spec/block.py lists
_LOSS = np.array([LOSS_BYTES[kind] for kind in KERNELS], dtype=float)
MOVE_BACK = 1.5  # bytes of a memory-bound kernel's backward over its forward's


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
    for kernels in flat.classes:
        seconds = _PRICES[kernels.name](kernels.k, kernels.u, c) * kernels.k["count"]
        sums = np.bincount(kernels.place, seconds, int(np.prod(shape))).reshape(shape)
        total = total + sums
        parts += np.bincount(kernels.part, seconds, len(parts))
        if kernels.name != "matmul":
            light += sums[:, BLOCK, FORWARD]
    by_part = parts.reshape(flat.units, REST + 1)[:, :REST]
    for index, unit in flat.timed.items():
        assert unit.chip.timings is not None
        timed = unit_seconds(unit.model, unit.sizes, unit.precision, unit.chip.timings)
        total[index], by_part[index], light[index] = timed.seconds, timed.parts, timed.light
    return Prices(total, flat.masked, flat.square, by_part, light, flat.parts)


def roof(u: Arrays, width: np.ndarray, peak: np.ndarray, c: Constants) -> np.ndarray:
    """FLOP/s that a large matrix product reaches; a measured peak is what one reached already."""
    narrow = c.row("narrow", BITS)[width]
    narrow = np.where((width == 2) & (u["bound_by_power"] > 0), c["narrow.blackwell8"], narrow)
    share = c.row("matmul", PRICED)[u["priced"]] * narrow
    return np.asarray(peak * np.where(u["measured"] > 0, REACHED, share))


def immature(year: np.ndarray, kernels: np.ndarray, c: Constants) -> np.ndarray:
    """How much slower a trainer of that date handles experts than one of 2026; XLA compiles its own."""
    late = np.where(kernels == KERNELS.index("xla"), 0.0, np.clip(2026.0 - year, -0.7, 2.0))
    return np.exp(c["moe.maturity"] * late)


def _matmul(k: Arrays, u: Arrays, c: Constants) -> np.ndarray:
    """A matrix product: the slower of its FLOPs and its bytes (Williams et al. 2009), and its casts.

    A TPU streams its operands beside the products: shape.reuse FLOPs a byte.
    """
    fast = roof(u, k["width"], k["peak"], c) * u["power"] ** c["power.exponent"]
    fast = fast * np.where(k["width"] == 2, c.row("recipe", RECIPES)[u["recipe"]], 1.0)
    lost = k["padded"] * (1 + c["shape.wave"] * k["waves"]) * (1 + c["shape.depth"] * k["deep"])
    experts = c["shape.grouped"] * k["rows"] / (k["rows"] + c["shape.expert_rows"])
    grouped = np.where(k["kind"] == GROUPED, experts, 1.0)
    compute = k["flops"] * lost / (fast * grouped)
    compute = compute + u["tpu"] * k["flops"] / (c["shape.reuse"] * u["memory_rate"])
    rate = _rate(u, c)
    cast = k["operands"] * (c["memory.cast"] * CAST_BYTES) / rate
    cast = cast * np.where((k["kind"] == GROUPED) & (u["fused_experts"] > 0), 0.0, 1.0)
    gaps = np.where(k["plain"], 1, 3) * c["shape.gap"]
    return np.asarray(np.maximum(compute, k["bytes"] / rate) + (cast + k["added"] / rate) + gaps)


def _attention(k: Arrays, u: Arrays, c: Constants) -> np.ndarray:
    """Attention's core, fused (Dao 2023) or with its scores in memory, by the trainer's kernel."""
    return np.where(u["attention"] < FLASH1, _loose(k, u, c), _fused(k, u, c))


def _fused(k: Arrays, u: Arrays, c: Constants) -> np.ndarray:
    """FLOPs that mask and window leave, at a share of the peak that kernel, generation and head size set."""
    share = c.row("attention", PRICED)[u["priced"]]
    old = (u["attention"] < BEST) & (u["newer_attention"] > 0)
    share = share * np.where(old, c["kernel.flash2_hopper"], 1.0)
    share = share * np.where(u["attention"] == FLASH1, c["kernel.flash1"], 1.0)
    share = share * np.where(u["fast_exponentials"] > 0, c["kernel.exponentials"], 1.0)
    narrow = np.where(k["dim"] < SMALL_HEAD, c["kernel.head64"], 1.0)
    # an array of multipliers whose columns a head doesn't fill stands idle there
    share = share * np.where(u["tpu"] > 0, np.minimum(k["dim"] / TILE, 1.0), narrow)
    again = np.where(k["phase"] > 0, c["kernel.backward"], 1.0)
    low = (u["low_attention"] > 0) & (u["width"] >= 2)
    peak = np.where(low, u["peak"] * c.row("narrow", BITS)[u["width"].astype(int)], u["peak16"])
    compute = k["flops"] * k["mark"] * again / (peak * share)
    return np.asarray(np.maximum(compute, k["bytes"] / _rate(u, c)) + c["shape.gap"])


def _loose(k: Arrays, u: Arrays, c: Constants) -> np.ndarray:
    """Both products over the full square, and passes over scores of 2 bytes, forward as many as back."""
    scores = k["m"] * k["n"] * k["k"]
    passes = c["kernel.square"] * np.where(u["attention"] == 0, UNFUSED, 1.0)
    passes = passes * np.where(u["dropout"] > 0, 1.0, NO_DROPOUT)
    fast = roof(u, u["width16"], u["peak16"], c) * BATCHED
    products = k["flops"] / fast * np.where(k["dim"] % 8 != 0, c["shape.misaligned"], 1.0)
    return np.asarray(products + 2 * scores * passes / _rate(u, c) + LOOSE_KERNELS * c["shape.gap"])


def _move(k: Arrays, u: Arrays, c: Constants) -> np.ndarray:
    """Kernels bound by memory: bytes, as often as the generation of kernels passes over them."""
    passes = c.row("passes", KERNELS)[u["kernels"]]
    loose = np.where(u["permutes_fused"] > 0, 1.0, UNFUSED_PERMUTE)
    permute = c["memory.permute"] * loose * immature(u["year"], u["kernels"], c)
    phase = np.minimum(k["phase"].astype(int), 1)
    loss = np.where(u["own"] > 0, OWN_LOSS_BYTES[phase], _LOSS[u["kernels"], phase]) / LISTED_LOSS
    factor = np.select([k["kind"] == LOSS, k["kind"] == PERMUTE], [loss, permute], passes)
    back = np.where((k["phase"] > 0) & (k["kind"] != LOSS), MOVE_BACK, 1.0)
    inside = (k["part"] == EXPERT_ACT) & (u["fused_experts"] > 0)  # of the products' kernel
    return np.asarray(
        np.where(inside, 0.0, k["bytes"] * factor * back / _rate(u, c) + c["shape.gap"] * passes)
    )


def _rate(u: Arrays, c: Constants) -> np.ndarray:
    """Bytes/s that kernels reach in a device's memory."""
    return np.asarray(u["memory_rate"] * c["memory.rate"])


_PRICES = {"matmul": _matmul, "attention": _attention, "move": _move}
