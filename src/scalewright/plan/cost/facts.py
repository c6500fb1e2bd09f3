"""What the formulas read of devices, trainers and operator lists: a column for each number, a row a unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from scalewright.plan.chips import WIDTHS
from scalewright.plan.constants import constants
from scalewright.plan.cost.habits import TrainerFacts
from scalewright.plan.cost.units import Column, PerUnit, Unit, list_works, settings
from scalewright.plan.cost.work import tied_elements
from scalewright.plan.frameworks import OURS
from scalewright.spec.hardware.device_families import PRICED
from scalewright.spec.hardware.topology import FABRICS
from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import count
from scalewright.spec.volumes import latent_numbers

# Share of a 16-bit activation that is saved where it is kept in a run's precision; four bits have a scale of 8 for 16
NARROWED = {"fp8": 0.5, "mxfp8": 0.5, "fp4": 1 - (4 + 8 / 16) / 16}


@lru_cache(maxsize=64)
def _exchanges(model: ModelSpec) -> float:
    """Sums over tp in an average block's forward: a mixer's, and a dense MLP's that isn't beside one."""
    parts = [model.parts(layer) for layer in range(model.num_hidden_layers)]
    alone = [mlp == "dense" and (model.residual == "sequential" or not mixer) for mixer, mlp in parts]
    return (sum(mixer is not None for mixer, _ in parts) + sum(alone)) / len(parts)


class ChipFacts(PerUnit):
    """Numbers of a device and its links, as in plan/chips.py."""

    about = "chip"
    memory_rate = Column()
    multiprocessors = Column(lambda u: u.chip.units)
    capacity, domain, link_rate, link_delay = Column(), Column(), Column(), Column()
    staged, torus_axes, wraps_at, node = Column(), Column(), Column(), Column()
    fabric_rate, fabric_delay = Column(), Column()
    # a number of topology.FABRICS; InfiniBand's, which has no ratios, where nothing joins nodes
    fabric = Column(lambda u: FABRICS.index(u.chip.fabric_kind) if u.chip.fabric_kind in FABRICS else 0, int)
    pod = Column(lambda u: u.chip.pod or np.inf)
    oversubscription, host_rate, host_bytes, measured = Column(), Column(), Column(), Column()
    tpu = Column(lambda u: u.chip.kind == "tpu")
    gpu = Column(lambda u: u.chip.kind == "gpu")
    # the family whose constants price it, and traits that explain these
    priced = Column(lambda u: PRICED.index(u.chip.family.kernels.name), int)
    newer_attention = Column(lambda u: u.chip.family.kernels.newer_attention)
    bound_by_power = Column(lambda u: u.chip.family.kernels.bound_by_power)
    fast_exponentials = Column(lambda u: u.chip.family.fast_exponentials)
    power = Column(lambda u: _power(u))
    # FLOP/s of products, and their inputs' width (chips.WIDTHS); of what never runs in less than 16 bits
    peak = Column(lambda u: u.chip.peak(u.precision)[1])
    width = Column(lambda u: WIDTHS[u.chip.peak(u.precision)[0]], int)
    peak16 = Column(lambda u: u.chip.peak(_plain(u))[1])
    width16 = Column(lambda u: WIDTHS[u.chip.peak(_plain(u))[0]], int)


class WorkFacts(PerUnit):
    """Numbers of a rank's operators, as in work.py; a micro-batch's."""

    about = "work"
    kept = Column()  # [units, REGIONS, RegionKept]
    dense, expert = Column(), Column()  # [units, REGIONS]
    parts = Column()  # [units, PARTS]
    inputs, gates = Column(), Column()  # [units, PARTS + 1]
    blocks, stream, key_value, apart = Column(), Column(), Column(), Column()
    query, attended, kv_heads, query_heads = Column(), Column(), Column(), Column()
    logits, head_in_chunks = Column(), Column()
    # experts
    sparse, routed = Column(), Column()
    experts = Column(lambda u: u.model.moe.num_experts if u.model.moe else 0.0)
    local_experts = Column(lambda u: -(-u.model.moe.num_experts // u.sizes.ep) if u.model.moe else 0.0)
    top_k = Column(lambda u: u.model.moe.top_k if u.model.moe else 1.0)
    reached = Column(lambda u: _reached_groups(u))
    shared_experts = Column(lambda u: bool(u.model.moe and u.model.moe.shared_size))
    shared_gate = Column(lambda u: bool(u.model.moe and u.model.moe.shared_gate))
    # what its tensors are
    tied = Column(lambda u: tied_elements(u.model, u.sizes.tp, u.framework.name == OURS))
    # prediction modules, as this package runs them; other trainers' are region EXTRA and no more
    mtp = Column(lambda u: u.model.mtp_layers * (u.framework.name == OURS))
    exchanges = Column(lambda u: _exchanges(u.model))
    post_norm = Column(lambda u: u.model.norm_position in ("post", "both"))
    statistics = Column(lambda u: _statistics(u.model))
    query_latent = Column(lambda u: latent_numbers(u.model)[0])
    latent = Column(lambda u: latent_numbers(u.model)[1])
    tied_head = Column(lambda u: u.model.tie_word_embeddings)
    gated = Column(lambda u: u.model.gated)
    capped = Column(lambda u: u.model.logit_softcap is not None)
    beside_embedding = Column(lambda u: u.model.positions == "learned" or u.model.embedding_norm)
    narrowed = Column(lambda u: NARROWED.get(u.precision, 0.0))
    # bytes of all hosts' memory for copies of what a checkpoint holds: fp32 weights and states
    on_hosts = Column(lambda u: u.host_copies and u.host_copies * count(u.model).total * (4 + u.optimizer.each))


@dataclass(frozen=True)
class Facts:
    """Numbers of every unit; `sums`: what padded.py has summed up for some."""

    chips: ChipFacts
    trainers: TrainerFacts
    works: WorkFacts
    sums: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)


def unit_facts(units: Sequence[Unit]) -> Facts:
    """What the formulas read of devices, trainers and operator lists, gathered once a table."""
    list_works(units)
    different, index = settings(units)
    return Facts(ChipFacts(different).take(index), TrainerFacts(different).take(index), WorkFacts(units))


def _power(unit: Unit) -> float:
    """The device's power limit over its generation's usual one; what isn't known counts as usual."""
    usual = constants().get(f"power.{unit.chip.family.kernels.name}", 0.0)
    limit = unit.switches.power_w or constants().get(f"power.{unit.chip.name}", usual)
    return limit / usual if usual else 1.0


def _plain(unit: Unit) -> str:
    """The precision of what never runs in less than 16 bits."""
    return "fp32" if unit.precision in ("fp32", "tf32") else "bf16"


def _reached_groups(unit: Unit) -> float:
    """The share of the experts' groups among which a token's experts are chosen (DeepSeek-V2 §2.1.2)."""
    moe = unit.model.moe
    return moe.top_groups / moe.groups if moe and moe.groups > 1 else 1.0


def _statistics(model: ModelSpec) -> int:
    """Numbers a token that a norm over all heads sums: squares, and of a LayerNorm the mean, too."""
    if model.qk_norm != "full":
        return 0
    return 1 if model.norm_type.startswith("rmsnorm") else 2
