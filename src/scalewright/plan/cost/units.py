"""The keys that decide the price of an operator list, and the numbers that the formulas read of it.

    unit = (model, sizes, device, trainer, precision, attention, switches)
    facts: a number a unit, of its device, its trainer and its operators; arrays over the units of a table

A search of a million layouts has some hundred units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from scalewright.plan.chips import WIDTHS, Chip
from scalewright.plan.constants import constants
from scalewright.plan.cost.matrix_facts import matrix_facts
from scalewright.plan.cost.switch_effects import column, switched
from scalewright.plan.cost.work import Work, tied_elements, work
from scalewright.plan.frameworks import ATTENTION, OURS, Framework
from scalewright.plan.request import Request
from scalewright.plan.switches import Switches
from scalewright.spec.compress import Compress, word
from scalewright.spec.diloco import DilocoSpec
from scalewright.spec.hardware.device_families import PRICED
from scalewright.spec.memory import FP32
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import ADAMW, Optimizer
from scalewright.spec.primitives import Sizes
from scalewright.spec.volumes import latent_numbers

COMPRESSED = ("none", "bf16", "fp16", "powersgd")  # how gradients are sent, by number


@dataclass(frozen=True)
class Unit:
    """What decides the price of an operator list."""

    model: ModelSpec
    sizes: Sizes
    chip: Chip
    framework: Framework
    precision: str
    attention: str
    optimizer: Optimizer
    compress: Compress
    diloco: DilocoSpec | None
    switches: Switches

    @property
    def work(self) -> Work:
        """The operators of these sizes, from the cache."""
        return work(self.model, self.sizes)


def unit_of(request: Request) -> Unit:
    """The unit that a request's operators belong to."""
    return Unit(**{field.name: getattr(request, field.name) for field in fields(Unit)})


@dataclass(frozen=True)
class Facts:
    """Numbers of every unit, as arrays over units."""

    chips: dict[str, np.ndarray]
    trainers: dict[str, np.ndarray]
    works: dict[str, np.ndarray]


def unit_facts(units: Sequence[Unit]) -> Facts:
    """What the formulas read of devices, trainers and operator lists, gathered once a table."""
    return Facts(_chip_facts(units), _trainer_facts(units), _work_facts(units))


def _columns(parts: Sequence[object], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Attributes of one part of every unit, as arrays."""
    return {name: np.array([float(getattr(part, name)) for part in parts]) for name in names}


_CHIP = (
    "memory_rate", "units",
    "capacity", "domain", "link_rate", "link_delay", "staged", "node", "fabric_rate",
    "fabric_delay", "host_rate", "measured", "torus_axes", "wraps_at",
)  # fmt: skip
_TRAINER = (
    "overlap_zero1", "fsdp_copies", "pipe_engine", "overlap_p2p", "grads", "logits", "year", "known",
    "dropout", "buffers_gib", "eager_kept", "shared", "usable", "memory_spread", "measured",
)  # fmt: skip
_WORK = (
    "stream", "sparse", "routed", "key_value", "apart", "query", "attended", "kv_heads", "query_heads",
    "blocks", "logits", "head_in_chunks",
)  # fmt: skip


def _chip_facts(units: Sequence[Unit]) -> dict[str, np.ndarray]:
    facts = _columns([u.chip for u in units], _CHIP)
    # the family whose constants price it, and traits that explain these
    facts |= _columns([u.chip.family.kernels for u in units], ("newer_attention", "bound_by_power"))
    facts |= _columns([u.chip.family for u in units], ("fast_exponentials",))
    facts["priced"] = column(units, lambda u: PRICED.index(u.chip.family.kernels.name))
    # what never runs in less than 16 bits runs in
    plain = ["fp32" if u.precision in ("fp32", "tf32") else "bf16" for u in units]
    for name, wanted in (("", [u.precision for u in units]), ("16", plain)):
        peaks = [u.chip.peak(precision) for u, precision in zip(units, wanted, strict=True)]
        facts[f"peak{name}"] = np.array([rate for _, rate in peaks])
        facts[f"width{name}"] = np.array([float(WIDTHS[precision]) for precision, _ in peaks])
    facts["power"] = column(units, _power)
    facts["tpu"] = column(units, lambda u: u.chip.kind == "tpu")
    facts["gpu"] = column(units, lambda u: u.chip.kind == "gpu")
    return facts


def _power(unit: Unit) -> float:
    """The device's power limit over its generation's usual one; what isn't known counts as usual."""
    usual = constants().get(f"power.{unit.chip.family.kernels.name}", 0.0)
    limit = unit.switches.power_w or constants().get(f"power.{unit.chip.name}", usual)
    return limit / usual if usual else 1.0


def _trainer_facts(units: Sequence[Unit]) -> dict[str, np.ndarray]:
    facts = _columns([u.framework for u in units], _TRAINER)
    own = [u.framework.name == OURS for u in units]
    kinds = [word(u.compress) for u in units]
    facts |= switched(units) | {
        "attention": column(units, lambda u: ATTENTION.index(u.attention)),
        "by_block": column(units, lambda u: u.framework.buckets == "block"),
        "whole_p2p": column(units, lambda u: u.framework.p2p == "whole"),
        "own": np.array(own, dtype=float),
        "compress": np.array([float(COMPRESSED.index(kind)) for kind in kinds]),
        # this package's own: 16-bit copies beside the fp32 masters
        "copies": np.where(own, column(units, lambda u: 2.0 * (WIDTHS[u.precision] > 0)), 0.0),
    }
    for index, name in enumerate(("held_weights", "held_grads", "held_optimizer")):
        facts[name] = np.array([u.framework.held[index] for u in units])
    facts |= _island_facts(units)
    facts |= matrix_facts([u.model for u in units], [u.optimizer for u in units])
    return facts | _optimizer_facts(units, np.array(own), facts["held_optimizer"])


def _optimizer_facts(units: Sequence[Unit], own: np.ndarray, held: np.ndarray) -> dict[str, np.ndarray]:
    """Of this package's own trainer the table's (spec/optimizers.py); others' recipes are AdamW's.

    `adamw_bytes`: what AdamW holds a parameter. `update`, `update_on_host`: bytes that an update moves, over
    those of AdamW, for which what it really takes is fitted (plan/data/constants.yaml: optimizer.bytes).
    """
    records = [u.optimizer for u in units]
    flags = [x.flag if u.chip.kind == "gpu" else 0 for u, x in zip(units, records, strict=True)]
    outer = [u.diloco.update_bytes / u.diloco.inner_steps if u.diloco else 0.0 for u in units]
    moved = [x.update + flag + more for x, flag, more in zip(records, flags, outer, strict=True)]
    on_host = [x.update + more for x, more in zip(records, outer, strict=True)]
    return {
        "adamw_bytes": held,
        "held_optimizer": np.where(own, [x.each for x in records], held),
        "by_matrix": np.array([float(x.outer_states is not None) for x in records]),
        "product_bytes": column(units, lambda u: FP32 if u.precision in ("fp32", "tf32") else FP32 / 2),
        "scratch": np.where(own, [float(x.scratch) for x in records], 0.0),  # of a parameter
        "at_once": np.array([float(x.at_once or np.inf) for x in records]),  # parameters that take it
        "update": np.where(own, np.array(moved) / ADAMW.update, 1.0),
        "update_on_host": np.where(own, np.array(on_host) / ADAMW.update, 1.0),
    }


def _island_facts(units: Sequence[Unit]) -> dict[str, np.ndarray]:
    """How islands meet (spec/diloco.py); `inner_steps` 0: there are none."""
    usual = DilocoSpec()
    specs = [unit.diloco or usual for unit in units]
    names = ("fragments", "overlap", "wire_bytes", "narrow", "under_way")
    facts = _columns(specs, names)
    there = column(units, lambda u: u.diloco is not None)
    return facts | {
        "inner_steps": there * [x.inner_steps for x in specs],
        "outer_bytes": there * [x.outer_bytes for x in specs],
    }


def _work_facts(units: Sequence[Unit]) -> dict[str, np.ndarray]:
    works = [u.work for u in units]
    facts = _columns(works, _WORK)
    facts["kept"] = np.array([work.kept for work in works])  # [units, REGIONS, KEPT]
    facts["dense"] = np.array([work.dense for work in works])  # [units, REGIONS]
    facts["expert"] = np.array([work.expert for work in works])
    facts["parts"] = np.array([work.parts for work in works])  # [units, PARTS]
    facts["inputs"] = np.array([work.inputs for work in works])  # [units, PARTS + 1]
    facts["gates"] = np.array([work.gates for work in works])  # likewise
    facts["reached"] = column(units, _reached_groups)
    facts["local_experts"] = column(units, _local_experts)
    facts["experts"] = column(units, lambda u: u.model.moe.num_experts if u.model.moe else 0.0)
    facts["shared_experts"] = column(units, lambda u: bool(u.model.moe and u.model.moe.shared_size))
    facts["shared_gate"] = column(units, lambda u: bool(u.model.moe and u.model.moe.shared_gate))
    own = [u.framework.name == OURS for u in units]
    tied = [tied_elements(u.model, u.sizes.tp, ours) for u, ours in zip(units, own, strict=True)]
    facts["tied"] = np.array(tied)
    # prediction modules, as this package runs them; other trainers' are region EXTRA and no more
    facts["mtp"] = np.array([float(u.model.mtp_layers) for u in units]) * own
    facts["top_k"] = column(units, lambda u: u.model.moe.top_k if u.model.moe else 1.0)
    facts["exchanges"] = column(units, lambda u: _exchanges(u.model))
    facts["post_norm"] = column(units, lambda u: u.model.norm_position in ("post", "both"))
    facts["statistics"] = column(units, lambda u: _statistics(u.model))
    facts["query_latent"] = column(units, lambda u: latent_numbers(u.model)[0])
    facts["latent"] = column(units, lambda u: latent_numbers(u.model)[1])
    return facts


def _reached_groups(unit: Unit) -> float:
    """The share of the experts' groups among which a token's experts are chosen (DeepSeek-V2 §2.1.2)."""
    moe = unit.model.moe
    return moe.top_groups / moe.groups if moe and moe.groups > 1 else 1.0


def _exchanges(model: ModelSpec) -> float:
    """Sums over tp in an average block's forward: a mixer's, and a dense MLP's that isn't beside one."""
    parts = [model.parts(layer) for layer in range(model.num_hidden_layers)]
    alone = [mlp == "dense" and (model.residual == "sequential" or not mixer) for mixer, mlp in parts]
    return (sum(mixer is not None for mixer, _ in parts) + sum(alone)) / len(parts)


def _local_experts(unit: Unit) -> float:
    moe = unit.model.moe
    return -(-moe.num_experts // unit.sizes.ep) if moe else 0.0


def _statistics(model: ModelSpec) -> int:
    """Numbers a token that a norm over all heads sums: squares, and of a LayerNorm the mean, too."""
    if model.qk_norm != "full":
        return 0
    return 1 if model.norm_type.startswith("rmsnorm") else 2
