"""The operator record, a rank's sizes, and the operators that blocks are built of: products and norms.

    rows   R = micro_batch * seq_len / cp           tokens inside attention and MLP
    stream N = R / tp with sequence parallelism     tokens where norms and residuals work
    column linear  [R, in] x [out/tp, in]           row linear  [R, in/tp] x [out, in/tp]

The parts built of them: `block.py` (attention, MLP, experts), `mixers.py` (Mamba-2, DeltaNet).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import TensorSpec, block_tensors, outer_tensors

OperatorKind = Literal[
    "embedding", "norm", "linear", "rope", "attention", "activation", "residual",
    "router", "dispatch", "grouped_linear", "combine", "head", "loss", "scan",
]  # fmt: skip
Attention = Literal["fused", "unfused"]
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
    """Sizes of a micro-batch on one rank: rows, heads, bytes per element."""

    batch: int
    seq_len: int
    tp: int
    sp: bool
    cp: int
    ep: int
    etp: int
    width: int  # bytes of an activation or weight element in compute
    attention: Attention
    kernels: Kernels = "fused"
    documents: bool = False  # several documents per row, which attention keeps apart

    @property
    def rows(self) -> int:
        return self.batch * self.seq_len // self.cp

    @property
    def stream(self) -> int:
        return ceil_div(self.rows, self.tp) if self.sp else self.rows


def sizes(
    layout: Layout, seq_len: int, attention: Attention = "fused", kernels: Kernels = "fused", documents: bool = False
) -> Sizes:
    """The sizes that a layout gives a micro-batch of sequences of `seq_len`."""
    width = 4 if layout.precision in ("fp32", "tf32") else 2
    sp = layout.sp
    return Sizes(
        layout.micro_batch, seq_len, layout.tp, sp, layout.cp, layout.ep, layout.etp, width, attention,
        kernels, documents,
    )  # fmt: skip


# -- products, norms, activations ------------------------------------------------------------------


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
    written = float(rows * out * s.width)
    return Operator(
        name, kind, layer, weights_of(m, name) if weights is None else weights, (rows, out, into), groups,
        flops, flops, flops, flops,
        read=float((rows + groups * out) * into * s.width), written=written,
        saved=(written if keeps_out else 0.0) + block_input + keeps,
        saved_selective=(0.0 if kind == "head" else written) + block_input, saved_full=block_input,
    )  # fmt: skip


def norm(
    m: ModelSpec, s: Sizes, name: str, layer: int, rows: int, size: int,
    *, keeps_in: bool = True, keeps_out: bool = True, block_input: float = 0.0, whole: bool = False,
    across: bool = False, weight: bool = True,
) -> Operator:  # fmt: skip
    """A norm keeps its input; its output is kept too where a matmul takes it. `whole`: outside the blocks."""
    moved = float(rows * size * s.width)
    saved = (block_input or (moved if keeps_in else 0.0)) + (moved if keeps_out else 0.0)
    rms = m.norm_type.startswith("rmsnorm")
    composed = s.kernels != "fused" and (across or (rms and s.kernels == "cpu"))  # of single operators, in fp32
    if composed or (s.kernels != "fused" and m.norm_type == "rmsnorm_plus_one"):
        saved += rows * size * (4 - s.width)  # its input is kept in fp32
    if composed and weight:
        saved += rows * size * 4.0  # x / rms(x) beside its product with the weight
    outside = saved if whole or layer < 0 else block_input
    return Operator(
        name, "norm", layer, weights_of(m, name), read=moved, written=moved,
        saved=saved, saved_selective=outside, saved_full=outside,
    )  # fmt: skip


def weights_of(m: ModelSpec, owner: str) -> tuple[TensorSpec, ...]:
    layer = int(owner.split(".")[1]) if owner.startswith("layers.") else None
    return _by_owner(m, layer).get(owner, ())


@lru_cache(maxsize=4096)
def _by_owner(m: ModelSpec, layer: int | None) -> dict[str, tuple[TensorSpec, ...]]:
    """Tensors of a block (None: outside blocks) by the module that owns them.

    `layers.3.attention.q.weight` is under `layers.3.attention.q`.
    """
    groups: dict[str, list[TensorSpec]] = {}
    for tensor in outer_tensors(m) if layer is None else block_tensors(m, layer):
        groups.setdefault(tensor.name.rpartition(".")[0], []).append(tensor)
    return {owner: tuple(group) for owner, group in groups.items()}


def activation(m: ModelSpec, s: Sizes, fqn: str, layer: int, elements: int) -> Operator:
    out = float(elements * s.width)
    read = 2 * out if m.gated else out
    # act(gate) and its product with up; clamped: the sigmoid's input and what up became, too
    kept = {"swiglu_clamped": 4}.get(m.mlp_type, 2 if m.gated else 1) if s.kernels != "fused" else 1
    return Operator(f"{fqn}.activation", "activation", layer, read=read, written=out, saved=kept * out)


def ceil_div(number: int, parts: int) -> int:
    """The larger part where `number` is cut into `parts`."""
    return -(-number // parts)
