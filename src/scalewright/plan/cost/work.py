"""The operators of one rank and one micro-batch as flat arrays, with the kernels of their backward.

    spec/block.py --> Operator, Operator, ... --> one row a kernel: class, phase, region, m n k, FLOPs, bytes

Matrix products come three times (forward, and a gradient each for input and weight, with their own shapes), all others
twice. A region is a part that pipeline stages hold whole: before the blocks, an average block, after them, and the
multi-token-prediction layers. Projections of the same input (q k v; gate and up) are one product, as every trainer
worth timing writes them.

Parts of a block that trainers recompute by themselves, or keep in 8 bits:

core         attention's scores and softmax      dense, dense_act     an MLP, its activation
norms        before attention and MLP            experts, expert_act  router to combine, the activation
latent       MLA's up projections                shared               the shared experts
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import NamedTuple

import numpy as np

from scalewright.spec import block
from scalewright.spec.memory import FP32
from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import layer_kinds
from scalewright.spec.primitives import Operator, Sizes
from scalewright.spec.tensors import block_tensors, outer_tensors
from scalewright.spec.volumes import Number

# Parts of a block that trainers recompute by themselves; the rest of it is in none
PARTS = ("core", "norms", "latent", "dense", "dense_act", "shared", "experts", "expert_act")
REST = len(PARTS)
NORMS = ("attention_norm", "mamba_norm", "deltanet_norm", "mlp_norm")
BEFORE, BLOCK, AFTER, EXTRA = range(4)  # regions
REGIONS = 4
FORWARD, INPUT, WEIGHT = range(3)  # phases
MATMUL, GROUPED, ATTENTION, MOVE, LOSS, PERMUTE, BIAS = range(7)  # classes of kernels
# Projections of one input, which trainers write as one matrix product: those of equal number.
_FUSED = {
    f"{owner}.{name}": number
    for number, owner, names in (
        (1, "attention", "q k v out_gate"),
        (2, "mlp", "gate up"),
        (3, "experts", "gate up"),
        (4, "shared", "gate up"),
        (5, "mamba", "z x b c dt"),
        (6, "deltanet", "q k v z"),
        (7, "deltanet", "b a"),
    )
    for name in names.split()
}


class Kernel(NamedTuple):
    """One kernel of a rank's micro-batch, or columns of many."""

    kind: Number
    phase: Number
    region: Number
    share: Number  # of the region
    flops: Number
    bytes: Number
    part: Number  # of a block
    m: Number = 0.0
    n: Number = 0.0
    k: Number = 0.0
    groups: Number = 1.0
    mark: Number = 0.0  # a product that never runs below 16 bits; of attention the FLOPs that its mask leaves
    dim: Number = 0.0  # of a head
    early: Number = 0.0  # a gradient that the forward makes


# Bytes moved for each number of the experts' output where biases are added to it one expert after the other: the bias
# times the token's weight in fp32, the sum, the experts' parts joined, and rounded; then its gradient, those of bias
# and weight (Megatron Core 0.14, moe/experts.py: TEGroupedMLP._apply_bias)
BIASED = ((FORWARD, 4 + 10 + 8 + 6), (INPUT, 6 + 6 + 4 + 24))
BY_OPERATOR = ("attention", "linear", "router")
PRODUCTS = ("linear", "grouped_linear", "head", "router")


class RegionKept(NamedTuple):
    """What a region keeps of a micro-batch for the backward, in bytes, or columns of many."""

    none: Number  # by recomputation
    core: Number
    selective: Number
    full: Number
    by_operator: Number  # torchtitan's policy (`_by_operator`)
    eager: Number  # what eager kernels keep beside
    square: Number  # pairs of query and key
    dots: Number  # outputs of products
    products: Number  # these, and norms'
    widest: Number  # the widest activation
    weight: Number  # elements of the largest product's weight
    outputs: Number  # of experts, which only a trainer keeps that weights them last


@dataclass(frozen=True)
class Work:
    """One rank's work on one micro-batch; all numbers are this rank's."""

    kernels: np.ndarray  # [kernels, len(Kernel._fields)]
    kept: np.ndarray  # [REGIONS, len(RegionKept._fields)] bytes
    dense: np.ndarray  # [REGIONS] parameters that data parallelism shares
    expert: np.ndarray  # [REGIONS] parameters of the experts
    parts: np.ndarray  # [PARTS] bytes that recomputing a part of an average block frees
    inputs: np.ndarray  # [PARTS + 1] bytes kept of what products of an average block read
    gates: np.ndarray  # [PARTS + 1] bytes kept of what its gated activations read
    stream: float  # bytes of the residual stream as tp ranks exchange it
    sparse: float  # share of the blocks that route to experts
    routed: float  # bytes that a rank sends in one dispatch, before its own part is left out
    key_value: float  # bytes of keys and values of one average block
    apart: float  # of these, bytes of values that aren't as wide as keys
    query: float  # bytes of its queries
    attended: float  # bytes of its core's output
    kv_heads: float  # of a rank, in its first attention layer
    query_heads: float
    blocks: float  # of the model
    logits: float  # numbers of one micro-batch's logits on this rank
    head_in_chunks: float  # 1 where the forward makes the head's gradients (spec/loss_chunks.py)


SEVERAL = 4  # sizes from which arrays of them are faster than each by itself


def work(model: ModelSpec, sizes: Sizes) -> Work:
    """The work of a model cut to these sizes."""
    return works(model, [sizes])[0]


def works(model: ModelSpec, asked: Sequence[Sizes]) -> list[Work]:
    """The work of a model cut to each of these sizes; those with the same operators are listed once, as columns."""
    known, alike = _known(model), defaultdict(list)
    for sizes in dict.fromkeys(asked):
        if sizes not in known:
            same = replace(sizes, batch=0, tp=0, cp=0, ep=0, etp=0)
            alike[same, sizes.cuts, block.head_in_chunks(model, sizes)].append(sizes)
    for group in alike.values():
        for part in [group] if len(group) >= SEVERAL else [[sizes] for sizes in group]:
            known.update(zip(part, _listed(model, part), strict=True))
    return [known[sizes] for sizes in asked]


@lru_cache(maxsize=4096)
def _known(model: ModelSpec) -> dict[Sizes, Work]:
    """What was listed of a model so far."""
    return {}


def regions(model: ModelSpec, sizes: Sizes) -> list[tuple[int, float, Sequence[Operator]]]:
    """The operators of every region, with their share: of an average block, those of each kind of layer."""
    layers = model.num_hidden_layers
    blocks = [(BLOCK, alike / layers, tuple(block.block(model, sizes, first))) for first, alike in layer_kinds(model)]
    extra = [(EXTRA, 1.0, tuple(block.multi_token(model, sizes, i))) for i in range(model.mtp_layers)]
    before, after = tuple(block.before(model, sizes)), tuple(block.after(model, sizes))
    return [(BEFORE, 1.0, before), *blocks, (AFTER, 1.0, after), *extra]


def _listed(model: ModelSpec, group: Sequence[Sizes]) -> list[Work]:
    """The works of sizes that have the same operators."""
    layers, many = model.num_hidden_layers, len(group)
    sizes = group[0]
    if many > 1:
        every = np.array([(one.batch, one.tp, one.cp, one.ep, one.etp) for one in group], dtype=float)
        batch, tp, cp, ep, etp = every.T
        sizes = replace(sizes, batch=batch, tp=tp, cp=cp, ep=ep, etp=etp)
    rows: list[Kernel] = []
    kept = np.zeros((many, REGIONS, len(RegionKept._fields)))
    parts, inputs, gates = (np.zeros((many, REST + 1)) for _ in range(3))
    # a norm with 1 + w works in fp32, and so does the gradient that it waits with
    widened = FP32 / sizes.width if model.norm_type == "rmsnorm_plus_one" else 1.0
    for region, share, operators in regions(model, sizes):
        for operator in _merged(operators):
            rows += _kernels(operator, region, share)
            if model.mlp_bias and operator.name.endswith("experts.down"):
                out, part = operator.written / sizes.width, float(part_of(operator))
                rows += [Kernel(BIAS, phase, region, share, 0.0, out * moved, part) for phase, moved in BIASED]
        kept[:, region] += share * _columns(_kept(operators, widened), many)
        if region == BLOCK:
            for operator in operators:
                part = part_of(operator)
                parts[:, part] += share * freed(operator)
                inputs[:, part] += share * input_of_product(operator)
                gates[:, part] += share * gate(operator)
    dense, expert = _parameters(model, sizes, many)
    stream = sizes.rows * model.hidden_size * sizes.width
    moe = model.moe
    sparse = sum(model.is_moe(layer) for layer in range(layers)) / layers if moe else 0.0
    width = (moe.latent_size if moe else None) or model.hidden_size  # of a token, as experts see it
    routed = stream / sizes.tp * moe.top_k * (width / model.hidden_size) if moe else 0.0
    heads = [(alike / layers, _heads(model, sizes, first)) for first, alike in layer_kinds(model)]
    number = sizes.rows * sizes.width
    key_value = sum(share * number * kv * (k + v) for share, (_, kv, k, v) in heads)
    apart = sum(share * number * kv * v for share, (_, kv, k, v) in heads if v != k)
    query = sum(share * number * q * k for share, (q, _, k, _) in heads)
    attended = sum(share * number * q * v for share, (q, _, _, v) in heads)
    query_heads, kv_heads = (reduce(np.maximum, [some[i] for _, some in heads]) for i in (0, 1))
    logits = sizes.rows * -(-model.vocab_size // sizes.tp)
    numbers = (stream, sparse, routed, key_value, apart, query, attended, kv_heads, query_heads, layers, logits)
    kernels = np.array([rows]) if many == 1 else np.stack([_columns(row, many) for row in rows], axis=1)
    each = _columns((*numbers, block.head_in_chunks(model, sizes)), many).tolist()
    arrays = (kernels, kept, dense, expert, parts[:, :REST], inputs, gates)
    return [Work(*held, *scalars) for *held, scalars in zip(*arrays, each, strict=True)]


def _columns(numbers: Sequence[Number], many: int) -> np.ndarray:
    """Numbers, or arrays of so many, side by side [many, numbers]."""
    columns = np.empty((many, len(numbers)))
    for index, number in enumerate(numbers):
        columns[:, index] = number
    return columns


def _merged(operators: Iterable[Operator]) -> list[Operator]:
    """The operators, with projections of one input as one matrix product."""
    done: list[Operator] = []
    last = 0
    for operator in operators:
        same = _FUSED.get(".".join(operator.name.rsplit(".", 2)[-2:]), 0)
        if same and same == last and done[-1].shape and operator.shape:
            done[-1] = _joined(done[-1], operator)
        else:
            done.append(operator)
        last = same
    return done


def _joined(head: Operator, more: Operator) -> Operator:
    """Two products of one input as one, which reads that input once."""
    rows, out, into = head.shape or (0, 0, 0)
    columns = more.shape[1] if more.shape else 0
    return replace(
        head,
        weights=(),
        shape=(rows, out + columns, into),
        flops=head.flops + more.flops,
        flops_causal=head.flops_causal + more.flops_causal,
        flops_input=head.flops_input + more.flops_input,
        flops_weight=head.flops_weight + more.flops_weight,
        read=head.read + more.read - rows * into * 2.0,
        written=head.written + more.written,
    )


def _kernels(o: Operator, region: int, share: float) -> list[Kernel]:
    moved, part = o.read + o.written, float(part_of(o))
    if o.kind in PRODUCTS:
        return _products(o, region, share, moved, part)
    # A scan waits for memory, not for its products: on an A100 it takes as long at 2k tokens as
    # FlashAttention-2, which has five times the FLOPs (Dao & Gu 2024, fig. 10)
    kind, shape = {"attention": ATTENTION, "loss": LOSS, "dispatch": PERMUTE, "combine": PERMUTE}.get(o.kind, MOVE), {}
    if kind == ATTENTION:
        rows, keys, heads = o.shape or (0, 0, 1)
        width = o.flops / (2.0 * rows * keys * heads)  # q·k and its product with v, of one head
        left = o.flops_causal / o.flops
        shape = {"m": rows, "n": keys, "k": heads, "mark": left, "dim": width / 2}
    return [
        Kernel(kind, phase, region, share, flops, moved, part, **shape)
        for phase, flops in ((FORWARD, o.flops), (INPUT, o.flops_input))
    ]


def _heads(model: ModelSpec, sizes: Sizes, layer: int) -> tuple[Number, Number, int, int]:
    """A rank's query heads and key-value heads, the size of a key and of a value; zeros without attention."""
    if model.parts(layer)[0] != "attention":
        return 0, 0, 0, 0
    kv_heads, key, _ = model.attention_heads(layer)
    value = model.dim_per_value if model.mla else key
    return -(-model.num_attention_heads // sizes.tp), -(-kv_heads // sizes.tp), key, value


def _products(o: Operator, region: int, share: float, moved: float, part: float) -> list[Kernel]:
    """A matrix product thrice: forward, and the gradients of its input and of its weight.

    Where the forward makes the gradients, they are early, and the weight's is summed up over chunks of rows.
    """
    kind = GROUPED if o.kind == "grouped_linear" else MATMUL
    rows, n, k = o.shape or (0, 0, 0)
    m = rows / o.groups  # of each group
    plain = float(o.kind in ("head", "router"))  # never below 16 bits
    early = float(np.any(o.summed))
    sizes = ((FORWARD, m, n, k), (INPUT, m, k, n), (WEIGHT, n, k, m))
    kernels = [
        Kernel(kind, phase, region, share, o.flops, moved, part, a, b, c, o.groups, plain, early=early)
        for phase, a, b, c in sizes
    ]
    if early:
        kernels.append(Kernel(MOVE, FORWARD, region, share, 0.0, o.summed, part, early=early))
    return kernels


def _kept(operators: Sequence[Operator], widened: Number) -> RegionKept:
    """Bytes that a region keeps for the backward; `widened`: gradients of its norms."""
    none = sum(o.saved for o in operators)
    core = sum(o.saved - o.saved_core for o in operators)
    selective = sum(o.saved_selective for o in operators)
    full = sum(o.saved_full for o in operators)
    norms = sum(o.written for o in operators if o.kind == "norm")
    gates = sum(o.written for o in operators if o.kind == "activation")
    shapes = [o.shape for o in operators if o.kind == "attention" and o.shape]
    pairs = sum(1.0 * rows * keys * heads for rows, keys, heads in shapes)
    products = [o for o in operators if o.kind in PRODUCTS]
    dots = sum(o.written for o in products)
    outputs = dots + widened * norms  # whose gradients wait for a weight part
    weight = reduce(np.maximum, [1.0 * o.groups * o.shape[1] * o.shape[2] for o in products if o.shape], 0.0)
    widest = reduce(np.maximum, [o.written for o in operators if o.kind == "activation"], 0.0)
    last = sum(o.saved for o in operators if o.name.endswith("experts.down"))
    listed = full + _by_operator(operators)
    return RegionKept(none, core, selective, full, listed, norms + gates, pairs, dots, outputs, widest, weight, last)


def _by_operator(operators: Iterable[Operator]) -> float:
    """Bytes that torchtitan's selective checkpointing keeps beside a block's input.

    Outputs of attention, and of every second `mm`; grouped products aren't among what it lists
    (torchtitan/distributed/activation_checkpoint.py and models/llama3/infra/parallelize.py, v0.2: `_op_sac_save_list`).
    """
    return sum(o.written / (1.0 if o.kind == "attention" else 2.0) for o in operators if o.kind in BY_OPERATOR)


@lru_cache(maxsize=4096)
def _totals(model: ModelSpec) -> Mapping[tuple[int, str], float]:
    """Elements of the model's tensors by region and role; blocks as an average block."""
    outer = outer_tensors(model, mtp=True)
    placed = [(x, EXTRA if x.name.startswith("mtp.") else BEFORE if x.layer < 0 else AFTER, 1.0) for x in outer]
    for layer, alike in layer_kinds(model):
        placed += [(x, BLOCK, alike / model.num_hidden_layers) for x in block_tensors(model, layer)]
    totals: defaultdict[tuple[int, str], float] = defaultdict(float)
    for tensor, region, share in placed:
        totals[region, "tied" if tensor.tied_to and region == BEFORE else tensor.role] += tensor.size * share
    return totals


def _parameters(model: ModelSpec, s: Sizes, many: int) -> tuple[np.ndarray, np.ndarray]:
    """This rank's elements of every region: dense, and of experts."""
    dense, expert = np.zeros((many, REGIONS)), np.zeros((many, REGIONS))
    ranks = {"expert_column": s.ep * s.etp, "expert_row": s.ep * s.etp, "expert_plain": s.ep}
    ranks |= {
        "kv": np.minimum(s.tp, model.kv_heads),
        **dict.fromkeys(("embedding", "head", "column", "row", "tied"), s.tp),
    }
    for (region, role), size in _totals(model).items():
        (expert if role.startswith("expert_") else dense)[:, region] += size / ranks.get(role, 1)
    return dense, expert


def tied_elements(model: ModelSpec, tp: int, predicts: bool) -> float:
    """Elements of the embedding where a last stage of its own holds a copy: as a tied head, or (`predicts`)
    for the lookups of prediction modules."""
    used = model.tie_word_embeddings or (predicts and model.mtp_layers > 0)
    return model.vocab_size * model.hidden_size / tp if used else 0.0


# -- parts of a block ------------------------------------------------------------------------------


def part_of(o: Operator) -> int:
    """The part of a block that an operator belongs to; REST where it is in none."""
    owner = o.name.split(".", 2)[-1]
    if o.kind == "attention":
        return PARTS.index("core")
    if owner in NORMS:
        return PARTS.index("norms")
    if owner in ("attention.q_up", "attention.kv_up") or (o.kind == "rope" and np.any(o.saved)):
        return PARTS.index("latent")
    if owner.startswith("mlp.shared"):
        return PARTS.index("shared")
    if owner.startswith("mlp.experts") or o.kind in ("router", "dispatch", "combine"):
        return PARTS.index("expert_act" if o.kind == "activation" else "experts")
    if owner.startswith("mlp."):
        return PARTS.index("dense_act" if o.kind == "activation" else "dense")
    return REST


def freed(o: Operator) -> Number:
    """Bytes that are not kept where an operator's part is recomputed: a norm's input stays all the same."""
    if o.kind == "attention":
        return o.saved_core
    return np.minimum(o.saved, o.written) if o.kind == "norm" else o.saved


def input_of_product(o: Operator) -> Number:
    """Bytes that an operator keeps because a product reads them."""
    if o.kind in ("dispatch", "activation"):
        return o.saved
    return np.minimum(o.saved, o.written) if o.kind == "norm" else 0.0


def gate(o: Operator) -> Number:
    """Bytes that a product keeps because a gated activation reads them."""
    return o.written * (o.saved >= o.written) if o.name.endswith((".gate", ".up")) else 0.0
