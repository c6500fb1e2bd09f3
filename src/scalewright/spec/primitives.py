"""The operator record, a rank's sizes, and what blocks (block.py) are built of: products, norms, Mamba-2 and DeltaNet.

    column linear  [R, in] x [out/tp, in]           row linear  [R, in/tp] x [out, in/tp]
    Mamba-2     z, x, B, C, dt = projections;  x, B, C = conv;  y = scan;  o(norm(y * silu(z)))
    DeltaNet    q, k, v, z, b, a = projections;  q, k, v = conv;  y = scan;  o(norm(y) * silu(z))

Both scans go through the sequence in chunks of Q tokens: inside a chunk they are matrix products, between
chunks a state of [N, P] (keys by values) per head is passed on. Tensor parallelism cuts heads.

    R rows  H heads  P channels of a head  N state  G groups  Q tokens of a chunk  K, V key, value dim
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from scalewright.spec.layout import Layout
from scalewright.spec.model import DeltaNet, Mamba, ModelSpec
from scalewright.spec.tensors import TensorSpec, block_tensors, outer_tensors

OperatorKind = Literal[
    "embedding", "norm", "linear", "rope", "attention", "activation", "residual", "router", "dispatch",
    "grouped_linear", "combine", "head", "loss", "scan",
]  # fmt: skip
Attention = Literal["fused", "unfused"]
Number = Any  # an int, a float, or an array of them
# fused: one kernel for each norm and gated activation; cuda, cpu: PyTorch's own kernels on that device.
Kernels = Literal["fused", "cuda", "cpu"]


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a micro-batch's forward on one rank: FLOPs, and bytes."""

    name: str  # its tensors' common name, as `layers.3.attention.q`
    kind: OperatorKind
    layer: int
    weights: tuple[TensorSpec, ...] = ()  # whole tensors; this rank holds a part
    shape: tuple[int, int, int] | None = None  # a matmul's local (rows, out, in)
    groups: int = 1  # weights of that shape that share the rows (experts)
    flops: float = 0.0  # forward; attention over the full square
    flops_causal: float = 0.0  # forward; attention under causal mask and sliding window
    flops_input: float = 0.0  # backward, for the inputs' gradients (full square)
    flops_weight: float = 0.0  # backward, for the weights' gradients
    read: float = 0.0  # bytes read in the forward
    written: float = 0.0  # bytes written in the forward
    saved: float = 0.0  # bytes kept for the backward, recompute none
    saved_core: float = 0.0  # the part of `saved` inside the attention core (Megatron's selective drops it)
    saved_selective: float = 0.0  # bytes kept when a block keeps its input and its matmuls' outputs
    saved_full: float = 0.0  # bytes kept when a block keeps its input alone
    summed: float = 0.0  # bytes that the sum of its weight's gradient moves, if the forward makes gradients

    @property
    def masked(self) -> float:
        """The share of the forward's FLOPs that remains under mask and window."""
        return self.flops_causal / self.flops if self.flops else 1.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a micro-batch on one rank: rows, heads, bytes per element.

    Numbers may be arrays of as many layouts, which agree in `sp`, in `cuts` and in whether the head is in chunks.
    """

    batch: Number
    seq_len: int
    tp: Number
    sp: bool
    cp: Number
    ep: Number
    etp: Number
    width: int  # bytes of an activation or weight element in compute
    attention: Attention
    kernels: Kernels = "fused"
    documents: bool = False  # several documents per row, which attention keeps apart

    @property
    def cuts(self) -> bool:
        """Whether tensor parallelism cuts anything."""
        return bool(np.all(self.tp > 1))

    @property
    def rows(self) -> Number:
        """R: tokens inside attention and MLP."""
        return self.batch * self.seq_len // self.cp

    @property
    def stream(self) -> Number:
        """N: tokens where norms and residuals work; R / tp with sequence parallelism."""
        return ceil_div(self.rows, self.tp) if self.sp else self.rows


def sizes(
    layout: Layout, seq_len: int, attention: Attention = "fused", kernels: Kernels = "fused", documents: bool = False
) -> Sizes:
    """The sizes that a layout gives a micro-batch of sequences of `seq_len`."""
    width = 4 if layout.precision in ("fp32", "tf32") else 2
    axes = (layout.tp, layout.sp, layout.cp, layout.ep, layout.etp)
    return Sizes(layout.micro_batch, seq_len, *axes, width, attention, kernels, documents)


def matmul(
    m: ModelSpec, s: Sizes, name: str, layer: int, rows: int, out: int, into: int,
    *, kind: OperatorKind = "linear", weights: tuple[TensorSpec, ...] | None = None, groups: int = 1,
    keeps_out: bool = False, block_input: float = 0.0, keeps: float = 0.0,
) -> Operator:  # fmt: skip
    """y = x W^T with x [rows, in] and W [out, in]: 2 rows out in FLOPs, and as many for each gradient.

    `keeps_out`: a later operator's backward needs its output. `block_input`, `keeps`: bytes of its input,
    or beside it, that no earlier operator keeps. Selective recomputation keeps every matmul's output.
    """
    flops = 2.0 * rows * out * into
    written = 1.0 * rows * out * s.width
    return Operator(
        name, kind, layer, weights_of(m, name) if weights is None else weights, (rows, out, into), groups,
        flops, flops, flops, flops,
        read=1.0 * ((rows + groups * out) * into * s.width), written=written,
        saved=(written if keeps_out else 0.0) + block_input + keeps,
        saved_selective=(0.0 if kind == "head" else written) + block_input, saved_full=block_input,
    )  # fmt: skip


def norm(
    m: ModelSpec, s: Sizes, name: str, layer: int, rows: int, size: int,
    *, keeps_in: bool = True, keeps_out: bool = True, block_input: Number | None = None, whole: bool = False,
    across: bool = False, weight: bool = True,
) -> Operator:  # fmt: skip
    """A norm keeps its input; its output is kept too where a matmul takes it. `whole`: outside the blocks."""
    moved = 1.0 * rows * size * s.width
    kept = moved * keeps_in if block_input is None else block_input
    saved = kept + moved * keeps_out
    rms = m.norm_type.startswith("rmsnorm")
    composed = s.kernels != "fused" and (across or (rms and s.kernels == "cpu"))  # of single operators, in fp32
    if composed or (s.kernels != "fused" and m.norm_type == "rmsnorm_plus_one"):
        saved += rows * size * (4 - s.width)  # its input is kept in fp32
    if composed and weight:
        saved += rows * size * 4.0  # x / rms(x) beside its product with the weight
    outside = saved if whole or layer < 0 else 0.0 if block_input is None else block_input
    return Operator(
        name, "norm", layer, weights_of(m, name), read=moved, written=moved,
        saved=saved, saved_selective=outside, saved_full=outside,
    )  # fmt: skip


def weights_of(m: ModelSpec, owner: str) -> tuple[TensorSpec, ...]:
    """The tensors of a module: `layers.3.attention.q.weight` of `layers.3.attention.q`."""
    layer = int(owner.split(".")[1]) if owner.startswith("layers.") else None
    return _by_owner(m, layer).get(owner, ())


@lru_cache(maxsize=4096)
def _by_owner(m: ModelSpec, layer: int | None) -> dict[str, tuple[TensorSpec, ...]]:
    """Tensors of a block (None: outside blocks) by the module that owns them."""
    groups: dict[str, list[TensorSpec]] = {}
    for tensor in outer_tensors(m) if layer is None else block_tensors(m, layer):
        groups.setdefault(tensor.name.rpartition(".")[0], []).append(tensor)
    return {owner: tuple(group) for owner, group in groups.items()}


def activation(m: ModelSpec, s: Sizes, fqn: str, layer: int, elements: int) -> Operator:
    out = 1.0 * elements * s.width
    read = 2 * out if m.gated else out
    # act(gate) and its product with up; clamped: the sigmoid's input and what up became, too
    kept = {"swiglu_clamped": 4}.get(m.mlp_type, 2 if m.gated else 1) if s.kernels != "fused" else 1
    weights = weights_of(m, f"{fqn}.activation")
    return Operator(f"{fqn}.activation", "activation", layer, weights, read=read, written=out, saved=kept * out)


def ceil_div(number: int, parts: int) -> int:
    """The larger part where `number` is cut into `parts`."""
    return -(-number // parts)


FP32 = 4.0
STATE_PASSES = 4  # a chunk's state is written, summed up (read, written), and read: one kernel each


def mamba_operators(m: ModelSpec, mamba: Mamba, s: Sizes, fqn: str, layer: int) -> Iterator[Operator]:
    """A Mamba-2 mixer (Dao & Gu 2024 §7.1)."""
    d, heads, groups = m.hidden_size, ceil_div(mamba.num_heads, s.tp), ceil_div(mamba.groups, s.tp)
    inner, shared = heads * mamba.head_dim, groups * mamba.state_size
    for name, size in (("z", inner), ("x", inner), ("b", shared), ("c", shared), ("dt", heads)):
        yield matmul(m, s, f"{fqn}.{name}", layer, s.rows, size, d, keeps_out=True)
    yield _conv(m, s, fqn, layer, inner + 2 * shared, ("conv_x", "conv_b", "conv_c"))
    flops, moved = _mamba_scan(mamba, s, heads, groups)
    out = 1.0 * s.rows * inner * s.width
    yield _scan(m, s, fqn, layer, flops, 1.0 * (s.rows * (inner + 2 * shared + heads) * s.width), moved, out, out)
    yield _gated_norm(m, s, fqn, layer, inner)
    yield matmul(m, s, f"{fqn}.o", layer, s.rows, d, inner)


def deltanet_operators(m: ModelSpec, net: DeltaNet, s: Sizes, fqn: str, layer: int) -> Iterator[Operator]:
    """A Gated DeltaNet mixer (Yang et al. 2025 §3), with several value heads a key head as in Qwen3-Next."""
    d = m.hidden_size
    key_heads, heads = ceil_div(net.num_key_heads, s.tp), ceil_div(net.num_value_heads, s.tp)
    keys, values = key_heads * net.key_head_dim, heads * net.value_head_dim
    for name, size in (("q", keys), ("k", keys), ("v", values), ("z", values), ("b", heads), ("a", heads)):
        yield matmul(m, s, f"{fqn}.{name}", layer, s.rows, size, d, keeps_out=True)
    yield _conv(m, s, fqn, layer, 2 * keys + values, ("conv_q", "conv_k", "conv_v"))
    flops, moved = _delta_scan(net, s, heads)
    read = 1.0 * (s.rows * (2 * keys + values + 2 * heads) * s.width)
    out = 1.0 * s.rows * values * s.width
    inverse = 1.0 * s.rows * heads * net.chunk_size * s.width  # (I + tril(b K K^T))^-1 of every chunk
    # the scan keeps its inputs, the output of the convolution, for its backward
    yield _scan(m, s, fqn, layer, flops, read, moved, out, read + out + inverse)
    yield _gated_norm(m, s, fqn, layer, values)
    yield matmul(m, s, f"{fqn}.o", layer, s.rows, d, values)


def _conv(m: ModelSpec, s: Sizes, fqn: str, layer: int, channels: int, names: Sequence[str]) -> Operator:
    """A depthwise convolution over tokens, and SiLU: an activation, bound by memory.

    It keeps nothing: the projections keep its input; its output is recomputed (mamba_ssm) or the scan's.
    """
    moved = 1.0 * s.rows * channels * s.width
    weights = tuple(w for name in names for w in weights_of(m, f"{fqn}.{name}"))
    return Operator(f"{fqn}.conv", "activation", layer, weights, read=moved, written=moved)


def _gated_norm(m: ModelSpec, s: Sizes, fqn: str, layer: int, channels: int) -> Operator:
    """A norm of the gated output of the scan; output and gate are kept already."""
    plain = norm(m, s, f"{fqn}.norm", layer, s.rows, channels, keeps_in=False)
    return replace(plain, read=2 * plain.read)


def _scan(
    m: ModelSpec, s: Sizes, fqn: str, layer: int, flops: float, read: float, moved: float, out: float, saved: float
) -> Operator:
    """A scan in chunks; its backward has two products for each of the forward's. `moved`: bytes of states."""
    return Operator(
        f"{fqn}.scan", "scan", layer, weights_of(m, fqn),
        flops=flops, flops_causal=flops, flops_input=2 * flops,
        read=read + moved / 2, written=out + moved / 2, saved=saved,
    )  # fmt: skip


def _mamba_scan(mamba: Mamba, s: Sizes, heads: int, groups: int) -> tuple[float, float]:
    """FLOPs and bytes of states of Dao & Gu 2024 §6.2: four products of every chunk.

    C B^T (a group): 2 Q N   its product with x: 2 Q P   states B^T x: 2 N P   C times the states: 2 N P
    a token, each for every head; the masked half of a chunk is computed too.
    """
    q, n, p = mamba.chunk_size, mamba.state_size, mamba.head_dim
    flops = s.rows * (groups * 2.0 * q * n + heads * (2.0 * q * p + 4.0 * n * p))
    scores = groups * q * 2 * FP32  # C B^T is written, and read for all heads of its group
    return flops, s.rows * (STATE_PASSES * heads * n * p * FP32 / q + scores)


def _delta_scan(net: DeltaNet, s: Sizes, heads: int) -> tuple[float, float]:
    """FLOPs and bytes of states of Yang et al. 2024 §3.2 (the chunks' UT transform), a token and head.

    K K^T, W = T K, Q K^T: 2 C K each   T by substitution: C² / 3   U = T V, scores times values: 2 C V each
    W S, Q S, K^T of the corrected values: 2 K V each
    """
    c, k, v = net.chunk_size, net.key_head_dim, net.value_head_dim
    flops = s.rows * heads * (6.0 * c * k + 4.0 * c * v + 6.0 * k * v + c * c / 3.0)
    rewritten = 2 * (k + v) * s.width  # W and U, written and read
    return flops, s.rows * heads * (2 * k * v * s.width / c + rewritten)
