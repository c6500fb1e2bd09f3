"""The effect of a run's switches (CUDA graphs, fp8, dispatchers, modules), or of its trainer's defaults.

cuda_graphs=attn+router     launches that no graph holds    dispatcher=deepep   a token goes to a node once
recompute_modules=moe_act   parts that run again            fp8_parts=experts   products in low precision
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from scalewright.plan.cost.parts import PARTS
from scalewright.plan.frameworks import HOSTS, KERNELS, OURS
from scalewright.plan.switches import WORDS

if TYPE_CHECKING:
    from scalewright.plan.cost.units import Unit

NODE_WISE = ("deepep", "hybridep", "flex")  # dispatchers that send a token to a node once
# What a word of `recompute_modules` runs again, in parts of a block (work.PARTS)
MODULES = {
    "core_attn": ("core",), "layernorm": ("norms",), "moe_act": ("expert_act",), "act": ("dense_act",),
    "mla_up_proj": ("latent",), "shared_experts": ("shared",), "mlp": ("dense", "dense_act"),
    "moe": ("experts", "expert_act", "shared"),
}  # fmt: skip
# Assumed: shares of a block's launches: what mixes tokens with its norm, the MLP; of an expert layer's the
# router and what prepares the dispatch
MIXER, MLP, ROUTER = 0.55, 0.45, 0.4
RECIPES = WORDS["fp8_recipe"]
PERMUTES_FUSED = 2025.1  # as a year: Megatron Core 0.11 permutes tokens in one kernel


def column(units: Sequence[Unit], of: Callable[[Unit], float]) -> np.ndarray:
    """A number of every unit."""
    return np.array([float(of(unit)) for unit in units])


def switched(units: Sequence[Unit]) -> dict[str, np.ndarray]:
    """What a run's switches decide, or its trainer's habit where it states none."""
    numbers: dict[str, Callable[[Unit], float]] = {
        "kernels": lambda u: KERNELS.index(_kernels(u)),
        "host": lambda u: HOSTS.index(_host(u)),
        "overlap_grads": lambda u: _stated(u.switches.dp_overlap, u.framework.overlap_grads),
        "overlap_params": lambda u: _stated(u.switches.dp_overlap, u.framework.overlap_params),
        "overlap_tp": _overlaps_tp,
        "overlap_ep": lambda u: bool(u.switches.ep_overlap),
        "partitions": lambda u: bool(u.switches.partition_activations),
        "fp8_gather": lambda u: bool(u.switches.fp8_gather),
        "dedup": lambda u: _dispatcher(u) in NODE_WISE,
        "gathers_tokens": lambda u: _dispatcher(u) == "allgather",
        "fp8_inputs": lambda u: u.framework.fp8_kept in ("inputs", "inputs+gates"),
        "fp8_gates": lambda u: u.framework.fp8_kept == "inputs+gates",
        "capacity_factor": lambda u: u.switches.capacity or 1.0,
        "permutes_fused": lambda u: _stated(u.switches.permute_fusion, u.framework.year >= PERMUTES_FUSED),
        "low_linear": lambda u: _is_low(u, "linear"),
        "low_experts": lambda u: _is_low(u, "experts"),
        "low_attention": lambda u: "attention" in u.switches.fp8_parts,
        "recipe": lambda u: RECIPES.index(_recipe(u)),
        "one_by_one": lambda u: u.switches.grouped_gemm is False,
        "offload_layers": lambda u: u.switches.offload_layers or 0.0,
        "launches_mixer": _launched_mixer,
        "launches_mlp": lambda u: 0.0 if _captures(u, "mlp") else MLP,
        "launches_experts": _launched_experts,
        "counts_tokens": _counts_tokens,
        "fused_experts": lambda u: bool(u.switches.fused_experts),
    }
    reruns = np.array([[part in _reruns(u) for part in PARTS] for u in units], dtype=float)
    return {**{name: column(units, of) for name, of in numbers.items()}, "reruns": reruns}


def _kernels(unit: Unit) -> str:
    """The generation of a trainer's kernels: with `compile` that of torch.compile."""
    usual = unit.framework.kernels
    return "compiled" if unit.switches.compile and usual in ("eager", "fused") else usual


def _host(unit: Unit) -> str:
    """The generation of its host."""
    compiled = unit.switches.compile and unit.framework.host != "xla"
    return "compiled" if compiled else unit.framework.host


def _overlaps_tp(unit: Unit) -> bool:
    """Whether tensor-parallel traffic is split and runs beside the products."""
    switches = unit.switches
    if switches.tp_overlap is None and switches.async_tp is None:
        return unit.framework.overlap_tp
    return bool(switches.tp_overlap or switches.async_tp)


def _dispatcher(unit: Unit) -> str:
    """What sends tokens to experts; where neither run nor trainer states it, by date: DeepEP is of 2025."""
    stated = unit.switches.dispatcher or unit.framework.dispatcher
    return stated or ("deepep" if unit.framework.year >= 2025 else "alltoall")


def _stated(switch: bool | None, habit: bool) -> bool:
    return habit if switch is None else switch


def _is_low(unit: Unit, part: str) -> bool:
    """Whether products of a part run in the run's precision; of those that nobody lists all do."""
    return not unit.switches.fp8_parts or part in unit.switches.fp8_parts


def _recipe(unit: Unit) -> str:
    """How 8 bits are scaled: Blackwell multiplies blocks of 32 itself, others scale whole tensors."""
    usual = "mxfp8" if unit.precision == "mxfp8" else "tensorwise"
    return unit.switches.fp8_recipe or usual


def _captures(unit: Unit, part: str) -> bool:
    """Whether a CUDA graph holds a part's launches."""
    return bool(unit.switches.cuda_graphs & {"full", "layer", part})


def _launched_mixer(unit: Unit) -> float:
    """Launches of attention, or of a Mamba layer's mixer, that no graph holds, over a dense block's."""
    words = {"attention": "attn", "mamba": "mamba"}
    mixers = [unit.model.parts(layer)[0] for layer in range(unit.model.num_hidden_layers)]
    left = sum(not _captures(unit, words.get(mixer or "", "layer")) for mixer in mixers)
    return MIXER * left / len(mixers)


def _launched_experts(unit: Unit) -> float:
    """The share of an expert layer's launches beside its mixer's that no graph holds."""
    if _captures(unit, "layer"):
        return 0.0
    return 1 - ROUTER * _captures(unit, "router")


def _counts_tokens(unit: Unit) -> bool:
    """Whether the host waits for the tokens of every expert, to launch products of these sizes.

    Padding to a capacity makes the sizes known before, XLA has no other, and a graph of the whole iteration
    asks nothing.
    """
    dropped = unit.switches.moe == "drop" or unit.switches.capacity is not None
    padded = dropped and unit.framework.name != OURS  # which sends as many as there are
    return not padded and unit.framework.host != "xla" and "full" not in unit.switches.cuda_graphs


def _reruns(unit: Unit) -> set[str]:
    """Parts of a block that recomputation of modules runs again: those that are named, else the trainer's."""
    words = unit.switches.recompute_modules or unit.framework.modules
    return {part for word in words for part in MODULES[word]}
