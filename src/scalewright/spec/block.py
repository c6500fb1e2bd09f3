"""The operators of a model's parts, with the shapes that one rank sees under a layout.

    rows   R = micro_batch * seq_len / cp           tokens inside attention and MLP
    stream N = R / tp with sequence parallelism     tokens where norms and residuals work
    column linear  [R, in] x [out/tp, in]           row linear  [R, in/tp] x [out, in/tp]

What an operator keeps for the backward is written at the operator that first needs it, once: a block of
GPT-2 sums to 32 s b h + 2 a s^2 b bytes in 16 bits, which is Korthikanti et al. 2022 eq. 1 less dropout.

    R rows  N stream rows  D hidden  F intermediate  H query heads  G kv heads  K head dim  E experts
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from scalewright.spec.layout import Layout
from scalewright.spec.model import MLA, ModelSpec, MoE
from scalewright.spec.tensors import TensorSpec, block_tensors, outer_tensors

Kind = Literal[
    "embedding", "norm", "linear", "rope", "attention", "activation", "residual",
    "router", "dispatch", "grouped_linear", "combine", "head", "loss",
]  # fmt: skip
Attention = Literal["fused", "unfused"]
# Whose kernels: one for each norm and gated activation, or PyTorch's own on a GPU or on a CPU.
Kernels = Literal["fused", "cuda", "cpu"]


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a micro-batch's forward on one rank: FLOPs, and bytes."""

    name: str  # its tensors' common name, as `layers.3.attention.q`
    kind: Kind
    layer: int
    weights: tuple[TensorSpec, ...] = ()  # whole tensors; this rank holds a part
    shape: tuple[int, int, int] | None = None  # a matmul's local (rows, out, in)
    groups: int = 1  # weights of that shape that share the rows (experts)
    flops: float = 0.0  # forward; attention over the full square
    flops_causal: float = 0.0  # forward; what causal mask and sliding window leave
    flops_input: float = 0.0  # backward, for the inputs' gradients (full square)
    flops_weight: float = 0.0  # backward, for the weights' gradients
    read: float = 0.0  # bytes read in the forward
    written: float = 0.0  # bytes written in the forward
    saved: float = 0.0  # bytes kept for the backward, recompute none
    saved_core: float = 0.0  # of `saved`, what is inside the attention core (Megatron's selective drops it)
    saved_selective: float = 0.0  # bytes kept when only a block's input and its matmuls' outputs are
    saved_full: float = 0.0  # bytes kept when a block keeps its input alone
    cache: float = 0.0  # KV-cache bytes per token

    @property
    def masked(self) -> float:
        """The share of the forward's FLOPs that mask and window leave."""
        return self.flops_causal / self.flops if self.flops else 1.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """What one rank sees of a micro-batch: rows, heads, bytes per element."""

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
    documents: bool = False  # several a row, which mustn't see each other: attention takes a mask

    @property
    def rows(self) -> int:
        return self.batch * self.seq_len // self.cp

    @property
    def stream(self) -> int:
        return _ceil(self.rows, self.tp) if self.sp else self.rows


def sizes(
    layout: Layout,
    seq_len: int,
    attention: Attention = "fused",
    kernels: Kernels = "fused",
    documents: bool = False,
) -> Sizes:
    """The sizes that a layout gives a micro-batch of sequences of `seq_len`."""
    width = 4 if layout.precision in ("fp32", "tf32") else 2
    sp = layout.sp
    return Sizes(
        layout.micro_batch, seq_len, layout.tp, sp, layout.cp, layout.ep, layout.etp, width, attention,
        kernels, documents,
    )  # fmt: skip


def before(m: ModelSpec, s: Sizes) -> Iterator[Operator]:
    """Embedding and what is done to it before the first block."""
    out = float(s.stream * m.hidden_size * s.width)
    yield Operator("embed", "embedding", -1, _weights(m, "embed"), read=out, written=out)
    if m.positions == "learned":
        yield Operator("positions", "embedding", -1, _weights(m, "positions"), read=2 * out, written=out)
    if m.embedding_norm:
        yield _norm(m, s, "embed_norm", -1, s.stream, m.hidden_size, keeps_out=False)


def after(m: ModelSpec, s: Sizes) -> Iterator[Operator]:
    """Final norm, head and loss."""
    last, vocab = m.num_hidden_layers, _ceil(m.vocab_size, s.tp)
    if m.final_norm:
        norm = _norm(m, s, "norm", last, s.stream, m.hidden_size, whole=True)
        gathered = (s.rows - s.stream) * m.hidden_size * float(s.width) if s.kernels != "fused" else 0.0
        kept = norm.saved + gathered  # with sp the head keeps all tokens of its input
        yield replace(norm, saved=kept, saved_selective=kept, saved_full=kept)
    names = ["embed"] if m.tie_word_embeddings else []
    weights = tuple(w for name in [*names, "head"] for w in _weights(m, name))
    yield _matmul(m, s, "head", last, s.rows, vocab, m.hidden_size, kind="head", weights=weights)
    logits = float(s.rows * vocab)
    capped = logits * s.width if m.logit_softcap else 0.0  # tanh keeps its output
    kept = 4 * logits + capped  # probabilities in fp32
    yield Operator(
        "loss", "loss", last, read=logits * s.width, written=4 * logits,
        saved=kept, saved_selective=kept, saved_full=kept,
    )  # fmt: skip


def block(m: ModelSpec, s: Sizes, layer: int) -> Iterator[Operator]:
    """Every operator of one block, in the order of the forward."""
    at, d = f"layers.{layer}", m.hidden_size
    pre, post = m.norm_position in ("pre", "both"), m.norm_position in ("post", "both")
    stream = float(s.stream * d * s.width)
    if pre:
        yield _norm(m, s, f"{at}.attention_norm", layer, s.stream, d, block_input=stream)
    plain_input = (
        0.0 if pre else stream
    )  # without a norm before, attention and MLP keep the stream themselves
    yield from (_mla(m, m.mla, s, at, layer) if m.mla else _attention(m, s, at, layer, plain_input))
    if post:
        yield _norm(m, s, f"{at}.attention_post_norm", layer, s.stream, d, keeps_out=False)
    if m.residual == "sequential":
        yield Operator(f"{at}.attention_residual", "residual", layer, read=2 * stream, written=stream)
    if pre and m.residual != "parallel_shared":
        # beside attention, this norm reads the block's input, which is kept already
        yield _norm(m, s, f"{at}.mlp_norm", layer, s.stream, d, keeps_in=m.residual == "sequential")
    if m.moe and m.is_moe(layer):
        yield from _experts(m, m.moe, s, at, layer, plain_input)
    else:
        yield from _mlp(m, s, f"{at}.mlp", layer, m.intermediate_size, plain_input)
    if post:
        yield _norm(m, s, f"{at}.mlp_post_norm", layer, s.stream, d, keeps_out=False)
    inputs = 2 if m.residual == "sequential" else 3
    yield Operator(f"{at}.mlp_residual", "residual", layer, read=inputs * stream, written=stream)


def multi_token(m: ModelSpec, s: Sizes, index: int) -> Iterator[Operator]:
    """A multi-token-prediction layer (DeepSeek-V3 §2.2): two norms, a join, a block, head and loss."""
    d, at, layer = m.hidden_size, f"mtp.{index}", m.num_hidden_layers
    yield Operator(f"{at}.embed", "embedding", layer, read=float(s.stream * d * s.width),
                   written=float(s.stream * d * s.width))  # fmt: skip
    yield _norm(m, s, f"{at}.embed_norm", layer, s.stream, d)
    yield _norm(m, s, f"{at}.hidden_norm", layer, s.stream, d)
    yield _matmul(m, s, f"{at}.join", layer, s.stream, d, 2 * d)
    for operator in block(m, s, m.num_hidden_layers - 1):  # its shapes are the last block's
        yield replace(operator, name=f"{at}.block." + operator.name.split(".", 2)[2], layer=layer, weights=())
    for operator in after(m, s):
        yield replace(operator, name=f"{at}.{operator.name}", weights=())


def attention_pairs(seq_len: int, window: int | None) -> int:
    """Pairs of query and key that a causal mask leaves: sum over i = 1..T of min(i, window)."""
    reach = min(window or seq_len, seq_len)
    return reach * seq_len - reach * (reach - 1) // 2


# -- attention ------------------------------------------------------------------------------------


def _attention(m: ModelSpec, s: Sizes, at: str, layer: int, block_input: float) -> Iterator[Operator]:
    d, k, at = m.hidden_size, m.dim_per_head, f"{at}.attention"
    heads, kv = _ceil(m.num_attention_heads, s.tp), _ceil(m.kv_heads, s.tp)
    query, key = heads * k, kv * k
    yield _matmul(m, s, f"{at}.q", layer, s.rows, query, d, keeps_out=True, block_input=block_input)
    yield _matmul(m, s, f"{at}.k", layer, s.rows, key, d, keeps_out=True)
    yield _matmul(m, s, f"{at}.v", layer, s.rows, key, d, keeps_out=True)
    if m.qk_norm:
        across = m.qk_norm == "full" and s.tp > 1  # all heads' statistics, of which each rank has some
        yield _norm(m, s, f"{at}.q_norm", layer, s.rows, query, keeps_in=False, across=across)
        yield _norm(m, s, f"{at}.k_norm", layer, s.rows, key, keeps_in=False, across=across)
    if m.has_rope(layer):
        moved = float(s.rows * (query + key) * s.width)
        yield Operator(f"{at}.rope", "rope", layer, read=moved, written=moved)
    yield _core(m, s, at, layer, heads, kv, k, k, cache=float(2 * key * s.width))
    yield _matmul(m, s, f"{at}.o", layer, s.rows, d, query)


def _mla(m: ModelSpec, mla: MLA, s: Sizes, at: str, layer: int) -> Iterator[Operator]:
    """Latent attention: both down projections are whole on every tp rank, the up projections are split."""
    d, at, heads = m.hidden_size, f"{at}.attention", _ceil(m.num_attention_heads, s.tp)
    latent, turned = mla.kv_lora_rank, mla.qk_rope_head_dim
    qk = mla.qk_nope_head_dim + turned
    if mla.q_lora_rank:
        rank = mla.q_lora_rank
        yield _matmul(m, s, f"{at}.q_down", layer, s.stream, rank, d, keeps_out=True)
        yield _norm(m, s, f"{at}.q_down_norm", layer, s.stream, rank, keeps_in=False)
        yield _matmul(m, s, f"{at}.q_up", layer, s.rows, heads * qk, rank, keeps_out=True)
    else:
        yield _matmul(m, s, f"{at}.q", layer, s.rows, heads * qk, d, keeps_out=True)
    yield _matmul(m, s, f"{at}.kv_down", layer, s.stream, latent + turned, d, keeps_out=True)
    yield _norm(m, s, f"{at}.kv_down_norm", layer, s.stream, latent, keeps_in=False)
    up = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    yield _matmul(m, s, f"{at}.kv_up", layer, s.rows, up, latent, keeps_out=True)
    moved = float(s.rows * 2 * heads * turned * s.width)  # every head gets its copy of the turned key
    yield Operator(f"{at}.rope", "rope", layer, read=moved, written=moved, saved=moved / 2)
    cache = float((latent + turned) * s.width)  # the same on every tp rank
    yield _core(m, s, at, layer, heads, heads, qk, mla.v_head_dim, cache=cache)
    yield _matmul(m, s, f"{at}.o", layer, s.rows, d, heads * mla.v_head_dim)


def _core(
    m: ModelSpec, s: Sizes, at: str, layer: int, heads: int, kv: int, qk: int, v: int, cache: float
) -> Operator:
    """Scores, softmax and their product with the values: 2 R T H (qk + v) FLOPs over the full square.

    Context parallelism cuts the square, and what the mask leaves of it, into equal parts.
    """
    pairs = s.batch * s.seq_len * s.seq_len / s.cp
    flops = 2.0 * pairs * heads * (qk + v)
    left = attention_pairs(s.seq_len, m.window(layer)) / s.seq_len**2
    out = float(s.rows * heads * v * s.width)
    inputs = float(s.rows * (heads * qk + kv * (qk + v)) * s.width)
    repeated = _repeated_heads(m, s, layer, heads - kv) * float(s.rows * (qk + v) * s.width)
    if s.attention != "fused":
        core = square = pairs * heads * s.width
    elif m.attention_softcap and s.kernels != "fused":  # tanh and softmax in fp32, the latter cast, too
        core, square = pairs * heads * (8.0 + (s.width if s.width < 4 else 0)), 0.0
    else:  # the softmax's logarithms, in fp32, are all that is kept of the square
        core, square = float(s.rows * heads * 4), 0.0
    return Operator(
        f"{at}.core", "attention", layer, _weights(m, at),
        shape=(s.rows, s.seq_len, heads), flops=flops, flops_causal=flops * left, flops_input=2 * flops,
        read=inputs + 2 * square, written=out + 2 * square,
        saved=out + core + repeated, saved_core=core, cache=cache,
    )  # fmt: skip


def _repeated_heads(m: ModelSpec, s: Sizes, layer: int, missing: int) -> int:
    """Key and value heads that are kept beyond the model's: copies for query heads that share one.

    PyTorch's scores in memory need one for each; so do CUDA's fused kernels with a mask, or in fp32.
    """
    if s.kernels == "fused":
        return 0
    loose = m.attention_softcap is not None
    return missing if loose or (s.kernels == "cuda" and (s.width == 4 or _is_masked(m, s, layer))) else 0


def _is_masked(m: ModelSpec, s: Sizes, layer: int) -> bool:
    """Whether a layer's attention takes a mask, and isn't plainly causal."""
    window = m.window(layer)
    return s.documents or m.positions == "alibi" or (window is not None and s.seq_len > window)


def mask_bytes(m: ModelSpec, s: Sizes) -> float:
    """Bytes of the masks that one forward of a stage makes, which its blocks share (model/context.py)."""
    rows = s.batch if s.documents else 1
    square = float(s.seq_len) ** 2
    alibi, window = m.positions == "alibi", m.sliding_window
    windowed = window is not None and any(m.window_pattern) and s.seq_len > window
    width = 1 if m.attention_softcap and not alibi else s.width
    heads = _ceil(m.num_attention_heads, s.tp) if alibi else 1
    plain = s.documents or alibi or m.attention_softcap is not None
    return (plain + windowed) * rows * heads * square * width


# -- MLP and experts ------------------------------------------------------------------------------


def _mlp(m: ModelSpec, s: Sizes, at: str, layer: int, size: int, keeps: float = 0.0) -> Iterator[Operator]:
    d, local = m.hidden_size, _ceil(size, s.tp)
    if m.gated:
        yield _matmul(m, s, f"{at}.gate", layer, s.rows, local, d, keeps_out=True)
    yield _matmul(m, s, f"{at}.up", layer, s.rows, local, d, keeps_out=True, keeps=keeps)
    yield _activation(m, s, at, layer, s.rows * local)
    yield _matmul(m, s, f"{at}.down", layer, s.rows, d, local)


def _activation(m: ModelSpec, s: Sizes, at: str, layer: int, elements: int) -> Operator:
    out = float(elements * s.width)
    read = 2 * out if m.gated else out
    saved = 2 * out if m.gated and s.kernels != "fused" else out  # act(gate) apart from its product with up
    return Operator(f"{at}.activation", "activation", layer, read=read, written=out, saved=saved)


def _experts(m: ModelSpec, moe: MoE, s: Sizes, at: str, layer: int, keeps: float) -> Iterator[Operator]:
    """Router, dispatch, grouped matmuls, combine; tokens are taken as evenly spread over experts."""
    at, d, f = f"{at}.mlp", m.hidden_size, _ceil(moe.moe_intermediate_size, s.etp)
    tokens = _ceil(s.rows, s.tp)  # each tp rank routes its share of the rows
    routed, local = tokens * moe.top_k * s.etp, _ceil(moe.num_experts, s.ep)
    scores = float(tokens * moe.num_experts * 4)  # in fp32
    yield _matmul(
        m, s, f"{at}.router", layer, tokens, moe.num_experts, d, kind="router", keeps=scores + keeps
    )
    moved = float(routed * d * s.width)
    yield Operator(f"{at}.dispatch", "dispatch", layer, read=moved, written=moved, saved=moved)
    for name in ("gate", "up") if m.gated else ("up",):
        yield _matmul(
            m, s, f"{at}.experts.{name}", layer, routed, f, d,
            kind="grouped_linear", keeps_out=True, groups=local,
        )  # fmt: skip
    yield _activation(m, s, f"{at}.experts", layer, routed * f)
    yield _matmul(
        m, s, f"{at}.experts.down", layer, routed, d, f,
        kind="grouped_linear", keeps_out=True, groups=local,
    )  # fmt: skip
    yield Operator(f"{at}.combine", "combine", layer, read=moved, written=float(tokens * d * s.width))
    if moe.shared_size:
        yield from _mlp(m, s, f"{at}.shared", layer, moe.shared_size)
    if moe.shared_gate:
        yield _matmul(m, s, f"{at}.shared_gate", layer, tokens, 1, d, kind="router", keeps_out=True)


# -- the two that everything is made of -----------------------------------------------------------


def _matmul(
    m: ModelSpec, s: Sizes, name: str, layer: int, rows: int, out: int, into: int,
    *, kind: Kind = "linear", weights: tuple[TensorSpec, ...] | None = None, groups: int = 1,
    keeps_out: bool = False, block_input: float = 0.0, keeps: float = 0.0,
) -> Operator:  # fmt: skip
    """y = x W^T with x [rows, in] and W [out, in]: 2 rows out in FLOPs, and as many for each gradient.

    `keeps_out`: what follows needs its output in the backward. `block_input`, `keeps`: bytes of its input,
    or beside it, that nothing before has kept. Selective recomputation keeps every matmul's output.
    """
    flops = 2.0 * rows * out * into
    written = float(rows * out * s.width)
    return Operator(
        name, kind, layer, _weights(m, name) if weights is None else weights, (rows, out, into), groups,
        flops, flops, flops, flops,
        read=float((rows + groups * out) * into * s.width), written=written,
        saved=(written if keeps_out else 0.0) + block_input + keeps,
        saved_selective=(0.0 if kind == "head" else written) + block_input, saved_full=block_input,
    )  # fmt: skip


def _norm(
    m: ModelSpec, s: Sizes, name: str, layer: int, rows: int, size: int,
    *, keeps_in: bool = True, keeps_out: bool = True, block_input: float = 0.0, whole: bool = False,
    across: bool = False,
) -> Operator:  # fmt: skip
    """A norm keeps its input; its output is kept too where a matmul takes it. `whole`: it is in no block."""
    moved = float(rows * size * s.width)
    saved = (block_input or (moved if keeps_in else 0.0)) + (moved if keeps_out else 0.0)
    rms = m.norm_type.startswith("rmsnorm")
    apart = s.kernels != "fused" and (across or (rms and s.kernels == "cpu"))  # in single operators, in fp32
    if apart or (s.kernels != "fused" and m.norm_type == "rmsnorm_plus_one"):
        saved += rows * size * (4 - s.width)  # its input is kept in fp32
    if apart:
        saved += rows * size * 4.0  # x / rms(x) beside its product with the weight
    outside = saved if whole or layer < 0 else block_input
    return Operator(
        name, "norm", layer, _weights(m, name), read=moved, written=moved,
        saved=saved, saved_selective=outside, saved_full=outside,
    )  # fmt: skip


def _weights(m: ModelSpec, owner: str) -> tuple[TensorSpec, ...]:
    layer = int(owner.split(".")[1]) if owner.startswith("layers.") else None
    return _by_owner(m, layer).get(owner, ())


@lru_cache(maxsize=4096)
def _by_owner(m: ModelSpec, layer: int | None) -> dict[str, tuple[TensorSpec, ...]]:
    """Tensors of a block (None: outside blocks) by the module that owns them.

    `layers.3.attention.q.weight` is under `layers.3.attention.q`.
    """
    found: dict[str, list[TensorSpec]] = {}
    for tensor in outer_tensors(m) if layer is None else block_tensors(m, layer):
        found.setdefault(tensor.name.rpartition(".")[0], []).append(tensor)
    return {owner: tuple(group) for owner, group in found.items()}


def _ceil(number: int, parts: int) -> int:
    return -(-number // parts)
