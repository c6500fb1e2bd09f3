"""What a trainer does, with a run's switches: overlap, launches, precision, states, optimizer.

cuda_graphs=attn+router     launches that no graph holds    dispatcher=deepep   a token goes to a node once
recompute_modules=moe_act   parts that run again            fp8_parts=experts   products in low precision

A column for each habit: that of the run's switch, or of the trainer where the run states none.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from scalewright.plan.chips import WIDTHS
from scalewright.plan.cost.table import RECOMPUTE
from scalewright.plan.cost.units import Column, PerUnit, Unit
from scalewright.plan.cost.work import PARTS
from scalewright.plan.frameworks import ATTENTION, HOSTS, KERNELS, OURS
from scalewright.plan.switches import WORDS
from scalewright.spec.compress import word
from scalewright.spec.diloco import DilocoSpec
from scalewright.spec.memory import FP32
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import ADAMW, is_matrix, product_flops
from scalewright.spec.tensors import block_tensors

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
RECIPES, USUAL_RECIPE = WORDS["fp8_recipe"], {"mxfp8": "mxfp8"}
COMPRESSED = ("none", "bf16", "fp16", "powersgd")  # how gradients are sent, by number
# Bytes a 16-bit logit that the loss moves, forward and backward, by generation of kernels.
#   eager     cast to fp32 (2 + 4), log-softmax (4 + 4); its gradient (4 + 4 + 4), the pick's, scattered (4),
#             cast back (4 + 2)
#   fused     Megatron's loss: cast (2 + 4), maximum (4), difference (4 + 4), exponent (4 + 4), sum (4),
#             quotient (4 + 4); its gradient in place (4 + 4), cast back (4 + 2)
#   modern    one kernel: two reads (2 + 2), the gradient in place (2); scaled by the loss's (2 + 2)
#   compiled  cast in the first of two reads (2 + 4 + 4); the gradient in one pass, cast (4 + 2)
#   ours      cast, log-softmax (2 + 4, 4 + 4), exponent (4 + 4), the gradient (4 + 2); scaled (2 + 2)
#   xla       two reads (2 + 2); one more and the gradient (2 + 2)
LOSS_BYTES = {
    "eager": (14, 22), "fused": (38, 14), "modern": (6, 4), "compiled": (10, 6), "xla": (4, 4), "ours": (28, 4),
}  # fmt: skip
COMPILED_LOSS = 12.0  # bytes kept for a logit: 16 bits, its probability and its gradient in fp32, and a cast
PLAIN_ISLANDS = DilocoSpec()
UNFUSED = ("eager", "fused")  # generations of kernels that keep what one fused kernel would not


class TrainerFacts(PerUnit):
    """Numbers of a trainer: of plan/data/frameworks.yaml, and of a run's switches; 1 or 0 for yes or no."""

    about = "framework"
    own = Column(lambda u: _own(u))
    known, measured, dropout = Column(), Column(), Column()
    kernels = Column(lambda u: KERNELS.index(_kernels_of(u)), int)
    host = Column(lambda u: HOSTS.index(_host_of(u)), int)
    attention = Column(lambda u: ATTENTION.index(u.attention), int)
    loss_bytes = Column(lambda u: LOSS_BYTES["ours" if _own(u) else _kernels_of(u)])  # [units, 2]
    # what runs beside the computation
    tightest = Column(lambda u: RECOMPUTE.index(u.framework.tightest), int)
    overlap_grads = Column(lambda u: _stated_or(u.switches.dp_overlap, u.framework.overlap_grads))
    overlap_params = Column(lambda u: _stated_or(u.switches.dp_overlap, u.framework.overlap_params))
    overlap_zero1, overlap_p2p = Column(), Column()
    overlap_tp = Column(lambda u: _overlaps_tp(u))
    overlap_ep = Column(lambda u: bool(u.switches.ep_overlap))
    # what is sent
    grads = Column(lambda u: 2.0 if u.switches.bf16_grads else u.framework.grads)  # bytes of a gradient
    compress = Column(lambda u: COMPRESSED.index(word(u.compress)), int)
    by_block = Column(lambda u: u.framework.buckets == "block")
    whole_p2p = Column(lambda u: u.framework.p2p == "whole")
    pipe_engine, fsdp_copies = Column(), Column()
    by_weight = Column(lambda u: u.framework.gathers == "weight")
    weight_bytes = Column(lambda u: _weight_bytes(u))  # of a parameter, as it is gathered for compute
    # experts
    dedup = Column(lambda u: _dispatcher_of(u) in NODE_WISE)
    gathers_tokens = Column(lambda u: _dispatcher_of(u) == "allgather")
    capacity_factor = Column(lambda u: u.switches.capacity or 1.0)
    permutes_fused = Column(lambda u: _stated_or(u.switches.permute_fusion, u.framework.permute_fusion))
    routes_fused = Column(lambda u: u.framework.router_fusion)
    one_by_one = Column(lambda u: u.switches.grouped_gemm is False)
    fused_experts = Column(lambda u: bool(u.switches.fused_experts))
    # low precision
    low_linear = Column(lambda u: _is_low(u, "linear"))
    low_experts = Column(lambda u: _is_low(u, "experts"))
    low_attention = Column(lambda u: "attention" in u.switches.fp8_parts)
    # how 8 bits are scaled: Blackwell multiplies blocks of 32 itself, others scale whole tensors
    recipe = Column(lambda u: RECIPES.index(u.switches.fp8_recipe or USUAL_RECIPE.get(u.precision, "tensorwise")), int)
    fp8_inputs = Column(lambda u: u.framework.fp8_kept in ("inputs", "inputs+gates"))
    fp8_gates = Column(lambda u: u.framework.fp8_kept == "inputs+gates")
    # launches that no CUDA graph holds, over a dense block's
    launches_mixer = Column(lambda u: _launched_mixer(u))
    launches_mlp = Column(lambda u: 0.0 if _captures(u, "mlp") else MLP)
    # of an expert layer's, beside its mixer's
    launches_experts = Column(lambda u: 0.0 if _captures(u, "layer") else 1 - ROUTER * _captures(u, "router"))
    # activations
    reruns = Column(lambda u: [part in _reruns_of(u) for part in PARTS])  # [units, PARTS]
    # of norms' and activations' outputs; what this package's own keeps is in spec/block.py
    eager_kept = Column(lambda u: 0.0 if _own(u) or _kernels_of(u) not in UNFUSED else u.framework.eager_kept)
    gathered_kept = Column(lambda u: u.framework.gathered == "kept" and not u.switches.async_tp)
    gathered_late = Column(lambda u: u.framework.gathered == "late")
    logits = Column(lambda u: _logit_bytes(u))
    partitions = Column(lambda u: bool(u.switches.partition_activations))
    offload_layers = Column(lambda u: u.switches.offload_layers or 0.0)
    # other memory
    context_gib, buffers_gib, shared = Column(), Column(), Column()
    usable, memory_spread = Column(), Column()
    cast_grads, grads_follow = Column(), Column()  # made in an update; to the host with optimizer states
    # bytes of a parameter; `copies`: this package's own 16-bit ones beside the fp32 masters
    held_weights = Column(lambda u: _held(u)[0])
    held_grads = Column(lambda u: 2.0 if u.switches.bf16_grads else _held(u)[1])
    adamw_bytes = Column(lambda u: _held(u)[2])
    held_optimizer = Column(lambda u: u.optimizer.each if _own(u) else _held(u)[2])
    copies = Column(lambda u: 2.0 * (WIDTHS[u.precision] > 0) * _own(u))
    # the optimizer (spec/optimizers.py): of this package's own trainer the run's, of others AdamW
    by_matrix = Column(lambda u: u.optimizer.outer_states is not None)
    scratch = Column(lambda u: u.optimizer.scratch * _own(u))  # bytes of a parameter
    at_once = Column(lambda u: u.optimizer.at_once or np.inf)  # parameters that take it
    # bytes that an update moves, over AdamW's, for which what it really takes is fitted (optimizer.bytes)
    update = Column(lambda u: _update(u) / ADAMW.update if _own(u) else 1.0)
    update_on_host = Column(lambda u: _update_on_host(u) / ADAMW.update if _own(u) else 1.0)
    # FLOPs of an update of an average block, dense and experts, and of its largest matrix (Muon); else 0
    products = Column(lambda u: _products(u))  # [units, 3]
    product_bytes = Column(lambda u: FP32 if u.precision in ("fp32", "tf32") else FP32 / 2)
    # how islands meet (spec/diloco.py); `inner_steps` 0: there are none
    inner_steps = Column(lambda u: u.diloco.inner_steps if u.diloco else 0)
    outer_bytes = Column(lambda u: u.diloco.outer_bytes if u.diloco else 0)
    fragments = Column(lambda u: (u.diloco or PLAIN_ISLANDS).fragments)
    outer_overlap = Column(lambda u: (u.diloco or PLAIN_ISLANDS).overlap)
    outer_under_way = Column(lambda u: (u.diloco or PLAIN_ISLANDS).under_way)
    wire_bytes = Column(lambda u: (u.diloco or PLAIN_ISLANDS).wire_bytes)
    narrow_wire = Column(lambda u: (u.diloco or PLAIN_ISLANDS).narrow)


def _own(unit: Unit) -> bool:
    return unit.framework.name == OURS


def _held(unit: Unit) -> tuple[float, ...]:
    return unit.switches.held or unit.framework.held


def _kernels_of(unit: Unit) -> str:
    """The generation of a trainer's kernels: with `compile` that of torch.compile."""
    usual = unit.framework.kernels
    return "compiled" if unit.switches.compile and usual in UNFUSED else usual


def _host_of(unit: Unit) -> str:
    return "compiled" if unit.switches.compile and unit.framework.host != "xla" else unit.framework.host


def _logit_bytes(unit: Unit) -> float:
    """Bytes kept for every logit: fewer in a compiled loss, unless tensor parallelism cuts it; a chunk's."""
    compiled = _kernels_of(unit) == "compiled" and unit.sizes.tp == 1
    usual = min(unit.framework.logits, COMPILED_LOSS) if compiled else unit.framework.logits
    return usual / (unit.switches.loss_chunks or 1.0)


def _overlaps_tp(unit: Unit) -> bool:
    """Whether tensor-parallel traffic is split and runs beside the products."""
    stated = {unit.switches.tp_overlap, unit.switches.async_tp} - {None}
    return True in stated if stated else unit.framework.overlap_tp


def _dispatcher_of(unit: Unit) -> str:
    """What sends tokens to experts: what the run states, or its trainer's release has."""
    return unit.switches.dispatcher or unit.framework.dispatcher


def _stated_or(switch: bool | None, habit: bool) -> bool:
    """The run's switch, or the habit of its trainer where the run states none."""
    return habit if switch is None else switch


def _is_low(unit: Unit, part: str) -> bool:
    """Whether products of a part run in the run's precision; of those that nobody lists all do."""
    return not unit.switches.fp8_parts or part in unit.switches.fp8_parts


def _captures(unit: Unit, part: str) -> bool:
    """Whether a CUDA graph holds a part's launches."""
    return bool(unit.switches.cuda_graphs & {"full", "layer", part})


def _launched_mixer(unit: Unit) -> float:
    """Launches of attention, or of a Mamba layer's mixer, that no graph holds, over a dense block's."""
    if not unit.switches.cuda_graphs:
        return MIXER
    words = {"attention": "attn", "mamba": "mamba"}
    mixers = [unit.model.parts(layer)[0] for layer in range(unit.model.num_hidden_layers)]
    left = sum(not _captures(unit, words.get(mixer or "", "layer")) for mixer in mixers)
    return MIXER * left / len(mixers)


def _reruns_of(unit: Unit) -> set[str]:
    """Parts of a block that recomputation of modules runs again: those that are named, else the trainer's."""
    words = unit.switches.recompute_modules or unit.framework.modules
    return {part for word in words for part in MODULES[word]}


def _weight_bytes(unit: Unit) -> float:
    """2, or 1 in fp8; of this package's own trainer 4 where it computes in fp32."""
    if _own(unit) and WIDTHS[unit.precision] == 0:
        return FP32
    return 1.0 if unit.switches.fp8_gather else 2.0


def _update(unit: Unit) -> float:
    """Bytes of a parameter that an update on the device moves, outer steps' share and flags with it."""
    return _update_on_host(unit) + (unit.optimizer.flag if unit.chip.kind == "gpu" else 0)


def _update_on_host(unit: Unit) -> float:
    outer = unit.diloco.update_bytes / unit.diloco.inner_steps if unit.diloco else 0.0
    return unit.optimizer.update + outer


def _products(unit: Unit) -> tuple[float, float, float]:
    """FLOPs of an update by whole matrices (optimizer.py)."""
    return _block_products(unit.model) if unit.optimizer.outer_states else (0.0, 0.0, 0.0)


@lru_cache(maxsize=64)
def _block_products(model: ModelSpec) -> tuple[float, float, float]:
    layers = range(model.num_hidden_layers)
    matrices = [tensor for layer in layers for tensor in block_tensors(model, layer) if is_matrix(tensor)]
    expert = sum(product_flops(t.shape) for t in matrices if t.role.startswith("expert"))
    total = sum(product_flops(t.shape) for t in matrices)
    largest = max((product_flops(t.shape[-2:]) for t in matrices), default=0.0)
    return (total - expert) / len(layers), expert / len(layers), largest
