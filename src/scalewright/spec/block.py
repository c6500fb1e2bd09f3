"""The operators of a model's parts, with the shapes that one rank sees under a layout.

    rows   R = micro_batch * seq_len / cp           tokens inside attention and MLP
    stream N = R / tp with sequence parallelism     tokens where norms and residuals work
    column linear  [R, in] x [out/tp, in]           row linear  [R, in/tp] x [out, in/tp]

Bytes kept for the backward are counted once, at the operator that first needs them: a block of
GPT-2 sums to 32 s b h + 2 a s^2 b bytes in 16 bits, which is Korthikanti et al. 2022 eq. 1 less dropout.

    R rows  N stream rows  D hidden  F intermediate  H query heads  G kv heads  K head dim  E experts
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from scalewright.spec.loss_chunks import LossSizes
from scalewright.spec.model import MLA, Mixer, Mlp, ModelSpec, MoE
from scalewright.spec.primitives import (
    Operator,
    Sizes,
    activation,
    ceil_div,
    deltanet_operators,
    mamba_operators,
    matmul,
    norm,
    weights_of,
)


def before(m: ModelSpec, s: Sizes) -> Iterator[Operator]:
    """Embedding, learned positions and embedding norm: the operators before the first block."""
    out = 1.0 * s.stream * m.hidden_size * s.width
    yield Operator("embed", "embedding", -1, weights_of(m, "embed"), read=out, written=out)
    if m.positions == "learned":
        yield Operator("positions", "embedding", -1, weights_of(m, "positions"), read=2 * out, written=out)
    if m.embedding_norm:
        yield norm(m, s, "embed_norm", -1, s.stream, m.hidden_size, keeps_out=False)


def after(m: ModelSpec, s: Sizes) -> Iterator[Operator]:
    """Final norm, head and loss."""
    last, ours = m.num_hidden_layers, s.kernels != "fused"
    sizes, in_chunks = loss_sizes(m, s), head_in_chunks(m, s)
    vocab = sizes.columns
    if m.final_norm:
        last_norm = norm(m, s, "norm", last, s.stream, m.hidden_size, keeps_out=not in_chunks, whole=True)
        gathered = (s.rows - s.stream) * m.hidden_size * s.width if ours and not in_chunks else 0.0
        kept = last_norm.saved + gathered  # with sp the head keeps all tokens of its input
        yield replace(last_norm, saved=kept, saved_selective=kept, saved_full=kept)
    names = ["embed"] if m.tie_word_embeddings else []
    weights = tuple(w for name in [*names, "head"] for w in weights_of(m, name))
    head = matmul(m, s, "head", last, s.rows, vocab, m.hidden_size, kind="head", weights=weights)
    yield replace(head, summed=1.0 * sizes.traffic) if in_chunks else head
    logits = 1.0 * s.rows * vocab
    # ours keep what spec/loss_chunks.py has, others probabilities in fp32, and a cap's tanh its output
    kept = 1.0 * sizes.kept if ours else logits * (4.0 + s.width * (m.logit_softcap is not None))
    yield Operator(
        "loss", "loss", last, read=logits * s.width, written=4 * logits,
        saved=kept, saved_selective=kept, saved_full=kept,
    )  # fmt: skip


def loss_sizes(m: ModelSpec, s: Sizes) -> LossSizes:
    """The sizes of head and loss on one rank."""
    return LossSizes(s.rows, ceil_div(m.vocab_size, s.tp), m.hidden_size, s.width)


def head_in_chunks(m: ModelSpec, s: Sizes) -> bool:
    """Whether the forward makes the head's gradients, beside the loss: in our own trainer, at some sizes."""
    return s.kernels != "fused" and bool(np.all(loss_sizes(m, s).head_in_chunks))


def block(m: ModelSpec, s: Sizes, layer: int) -> Iterator[Operator]:
    """Every operator of one block, in the order of the forward."""
    yield from _block(m, s, layer, *m.parts(layer))


def multi_token(m: ModelSpec, s: Sizes, index: int) -> Iterator[Operator]:
    """A module of multi-token prediction (DeepSeek-V3 §2.2): two norms, a join, a block, head and loss.

    Its block is as the model's last. The hidden state that it takes is kept by the head already, but for sp,
    where that keeps all tokens of it, and for a head in chunks, which keeps a gradient in its place.
    """
    d, fqn, last = m.hidden_size, f"mtp.{index}", m.num_hidden_layers - 1
    layer, apart = last + 1 + index, (s.sp and s.cuts) or head_in_chunks(m, s)
    stream = 1.0 * s.stream * d * s.width
    yield Operator(f"{fqn}.embed", "embedding", layer, read=stream, written=stream)
    yield norm(m, s, f"{fqn}.embed_norm", layer, s.stream, d, whole=True)
    yield norm(m, s, f"{fqn}.hidden_norm", layer, s.stream, d, keeps_in=apart, whole=True)
    yield matmul(m, s, f"{fqn}.join", layer, s.stream, d, 2 * d)
    for operator in _block(m, s, last, "attention", "experts" if m.moe else "dense"):
        name = operator.name.split(".", 2)[2]
        yield replace(operator, name=f"{fqn}.block.{name}", layer=layer, weights=())
    for operator in after(m, s):
        yield replace(operator, name=f"{fqn}.{operator.name}", layer=layer, weights=())


def _block(m: ModelSpec, s: Sizes, layer: int, mixer: Mixer | None, mlp: Mlp | None) -> Iterator[Operator]:
    fqn, d = f"layers.{layer}", m.hidden_size
    pre, post = m.norm_position in ("pre", "both"), m.norm_position in ("post", "both")
    parallel = m.residual != "sequential" and mixer is not None and mlp is not None
    stream = 1.0 * s.stream * d * s.width
    plain_input = 0.0 if pre else stream  # without a norm before, mixer and MLP keep the stream themselves
    if mixer:
        if pre:
            yield norm(m, s, f"{fqn}.{mixer}_norm", layer, s.stream, d, block_input=stream)
        yield from _mixer(m, s, fqn, layer, mixer, plain_input)
        if post:
            yield norm(m, s, f"{fqn}.{mixer}_post_norm", layer, s.stream, d, keeps_out=False)
        if not parallel:
            yield Operator(f"{fqn}.{mixer}_residual", "residual", layer, read=2 * stream, written=stream)
    if mlp is None:
        return
    if pre and not (parallel and m.residual == "parallel_shared"):
        # beside attention, this norm reads the block's input, which is kept already
        unkept = None if mixer else stream
        yield norm(m, s, f"{fqn}.mlp_norm", layer, s.stream, d, keeps_in=not parallel, block_input=unkept)
    if m.moe and mlp == "experts":
        yield from _experts(m, m.moe, s, fqn, layer, plain_input)
    else:
        yield from _mlp(m, s, f"{fqn}.mlp", layer, m.intermediate_size, plain_input)
    if post:
        yield norm(m, s, f"{fqn}.mlp_post_norm", layer, s.stream, d, keeps_out=False)
    inputs = 3 if parallel else 2
    yield Operator(f"{fqn}.mlp_residual", "residual", layer, read=inputs * stream, written=stream)


def _mixer(m: ModelSpec, s: Sizes, fqn: str, layer: int, mixer: Mixer, block_input: float) -> Iterator[Operator]:
    if mixer == "mamba" and m.mamba:
        return mamba_operators(m, m.mamba, s, f"{fqn}.mamba", layer)
    if mixer == "deltanet" and m.deltanet:
        return deltanet_operators(m, m.deltanet, s, f"{fqn}.deltanet", layer)
    return _mla(m, m.mla, s, fqn, layer) if m.mla else _attention(m, s, fqn, layer, block_input)


def attention_pairs(seq_len: int, window: int | None, chunks: bool = False) -> int:
    """Pairs of query and key under a causal mask: sum over i = 1..T of min(i, window).

    `chunks`: windows lie side by side; a query attends to its own window, up to itself.
    """
    reach = min(window or seq_len, seq_len)
    if chunks:
        whole, rest = divmod(seq_len, reach)
        return whole * reach * (reach + 1) // 2 + rest * (rest + 1) // 2
    return reach * seq_len - reach * (reach - 1) // 2


def _attention(m: ModelSpec, s: Sizes, fqn: str, layer: int, block_input: float) -> Iterator[Operator]:
    d, fqn = m.hidden_size, f"{fqn}.attention"
    kv_heads, k, values_are_keys = m.attention_heads(layer)
    heads, kv = ceil_div(m.num_attention_heads, s.tp), ceil_div(kv_heads, s.tp)
    query, key = heads * k, kv * k
    yield matmul(m, s, f"{fqn}.q", layer, s.rows, query, d, keeps_out=True, block_input=block_input)
    if m.attention_gate:
        yield matmul(m, s, f"{fqn}.out_gate", layer, s.rows, query, d, keeps_out=True)
    yield matmul(m, s, f"{fqn}.k", layer, s.rows, key, d, keeps_out=True)
    if not values_are_keys:
        yield matmul(m, s, f"{fqn}.v", layer, s.rows, key, d, keeps_out=True)
    if m.qk_norm and (m.qk_norm != "l2" or m.has_rope(layer)):
        across, weight = m.qk_norm == "full" and s.cuts, m.qk_norm != "l2"  # across: each rank has a part
        for name in "qkv" if m.qk_norm == "qkv" else "qk":
            size = query if name == "q" else key
            yield norm(m, s, f"{fqn}.{name}_norm", layer, s.rows, size, keeps_in=False, across=across, weight=weight)
    if m.has_rope(layer):
        moved = 1.0 * (s.rows * (query + key) * s.width)
        yield Operator(f"{fqn}.rope", "rope", layer, read=moved, written=moved)
    elif m.attention_temperature is not None:
        moved = 1.0 * s.rows * query * s.width
        yield Operator(f"{fqn}.temperature", "rope", layer, read=moved, written=moved)
    yield _core(m, s, fqn, layer, heads, kv, k, k)
    if m.attention_gate:  # its input, attention's output, is kept already
        out = 1.0 * s.rows * query * s.width
        yield Operator(f"{fqn}.gating", "activation", layer, read=2 * out, written=out, saved=out)
    yield matmul(m, s, f"{fqn}.o", layer, s.rows, d, query)


def _mla(m: ModelSpec, mla: MLA, s: Sizes, fqn: str, layer: int) -> Iterator[Operator]:
    """Latent attention: both down projections are whole on every tp rank, the up projections are split.

    A key is a part of kv_up's output beside a copy of the rotated one: with fused kernels the copy alone is kept more.
    PyTorch keeps joined keys; of plain rows on a CPU values too are copies, as wide as keys, of what then goes.
    """
    d, fqn, heads = m.hidden_size, f"{fqn}.attention", ceil_div(m.num_attention_heads, s.tp)
    latent, rope = mla.kv_lora_rank, mla.qk_rope_head_dim
    qk = mla.qk_nope_head_dim + rope
    widened = 0 if _is_ruled(m, s, layer) else qk - mla.qk_nope_head_dim - mla.v_head_dim
    beside_up = {"fused": rope, "cuda": qk, "cpu": qk + widened}
    # our tensor parallelism gathers the normed latent and the key together
    joined = 0.0 if s.kernels == "fused" else 1.0 * ((s.rows * (latent + rope) - s.stream * latent) * s.width)
    if mla.q_lora_rank:
        rank = mla.q_lora_rank
        yield matmul(m, s, f"{fqn}.q_down", layer, s.stream, rank, d, keeps_out=True)
        yield norm(m, s, f"{fqn}.q_down_norm", layer, s.stream, rank, keeps_in=False)
        yield matmul(m, s, f"{fqn}.q_up", layer, s.rows, heads * qk, rank, keeps_out=True)
    else:
        yield matmul(m, s, f"{fqn}.q", layer, s.rows, heads * qk, d, keeps_out=True)
    yield matmul(m, s, f"{fqn}.kv_down", layer, s.stream, latent + rope, d, keeps_out=True)
    yield norm(m, s, f"{fqn}.kv_down_norm", layer, s.stream, latent, keeps_in=False)
    up = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    yield matmul(m, s, f"{fqn}.kv_up", layer, s.rows, up, latent, keeps_out=True, keeps=joined)
    moved = 1.0 * s.rows * 2 * heads * rope * s.width  # every head has a copy of the rotated key
    kept = 1.0 * s.rows * heads * beside_up[s.kernels] * s.width
    yield Operator(f"{fqn}.rope", "rope", layer, read=moved, written=moved, saved=kept)
    yield _core(m, s, fqn, layer, heads, heads, qk, mla.v_head_dim)
    yield matmul(m, s, f"{fqn}.o", layer, s.rows, d, heads * mla.v_head_dim)


def _core(m: ModelSpec, s: Sizes, fqn: str, layer: int, heads: int, kv: int, qk: int, v: int) -> Operator:
    """Scores, softmax and their product with the values: 2 R T H (qk + v) FLOPs over the full square.

    Context parallelism cuts the square, and its unmasked pairs, into equal parts. Of the square nothing is
    kept by a fused kernel, nor by ours (model/rows.py), which makes the scores of a tile at a time.
    """
    pairs = s.batch * s.seq_len * s.seq_len / s.cp
    flops = 2.0 * pairs * heads * (qk + v)
    unmasked = attention_pairs(s.seq_len, m.window(layer), m.window_chunks) / s.seq_len**2
    out = 1.0 * s.rows * heads * v * s.width
    inputs = 1.0 * (s.rows * (heads * qk + kv * (qk + v)) * s.width)
    # of plain rows the CPU's kernel keeps an output as wide as keys, of which `o` keeps a copy
    plain = s.kernels == "cpu" and v < qk and not _is_ruled(m, s, layer)
    widened = 1.0 * s.rows * heads * qk * s.width if plain else 0.0
    # CUDA's fused kernels need a key and a value for each query head in fp32; ours (model/rows.py) don't
    copied = s.kernels == "cuda" and s.width == 4 and not _is_ruled(m, s, layer)
    repeated = (heads - kv if copied else 0) * 1.0 * (s.rows * (qk + v) * s.width)
    if s.attention != "fused":
        core = square = pairs * heads * s.width
    else:  # of the square only the softmax's logsumexp is kept, in fp32
        core, square = 1.0 * s.rows * heads * 4, 0.0
    return Operator(
        f"{fqn}.core", "attention", layer, weights_of(m, fqn),
        shape=(s.rows, s.seq_len, heads), flops=flops, flops_causal=flops * unmasked, flops_input=2 * flops,
        read=inputs + 2 * square, written=out + 2 * square,
        saved=out + widened + core + repeated, saved_core=core,
    )  # fmt: skip


def _is_ruled(m: ModelSpec, s: Sizes, layer: int) -> bool:
    """Whether a layer's attention is more than causal, or capped: our operator does it (model/rows.py)."""
    window = m.window(layer)
    hides = s.documents or (window is not None and s.seq_len > window)
    capped = m.attention_softcap is not None or m.attention_sinks
    return hides or capped or m.positions == "alibi"


def _mlp(m: ModelSpec, s: Sizes, fqn: str, layer: int, size: int, keeps: float = 0.0) -> Iterator[Operator]:
    d, local = m.hidden_size, ceil_div(size, s.tp)
    if m.gated:
        yield matmul(m, s, f"{fqn}.gate", layer, s.rows, local, d, keeps_out=True)
    yield matmul(m, s, f"{fqn}.up", layer, s.rows, local, d, keeps_out=True, keeps=keeps)
    yield activation(m, s, fqn, layer, s.rows * local)
    yield matmul(m, s, f"{fqn}.down", layer, s.rows, d, local)


def _experts(m: ModelSpec, moe: MoE, s: Sizes, fqn: str, layer: int, keeps: float) -> Iterator[Operator]:
    """Router, dispatch, grouped matmuls, combine; tokens are assumed to be spread evenly over experts."""
    fqn, d, f = f"{fqn}.mlp", m.hidden_size, ceil_div(moe.moe_intermediate_size, s.etp)
    d_in = moe.latent_size or d  # of an expert's input
    tokens = ceil_div(s.rows, s.tp)  # each tp rank routes its share of the rows
    routed, local = tokens * moe.top_k * s.etp, ceil_div(moe.num_experts, s.ep)
    keeps = keeps + 4.0 * tokens * moe.num_experts  # scores in fp32
    if moe.branch_norms:
        yield norm(m, s, f"{fqn}.experts_norm", layer, tokens, d, keeps_in=False)
    yield matmul(m, s, f"{fqn}.router", layer, tokens, moe.num_experts, d, kind="router", keeps=keeps)
    if moe.latent_size:
        yield matmul(m, s, f"{fqn}.latent_down", layer, tokens, d_in, d)
    moved = 1.0 * routed * d_in * s.width
    weighed = 1.0 * tokens * moe.top_k * d_in * s.width if moe.weigh_input else 0.0  # rows before it
    yield Operator(f"{fqn}.dispatch", "dispatch", layer, read=moved, written=moved, saved=moved + weighed)
    grouped = partial(matmul, m, s, kind="grouped_linear", groups=local)
    for name in ("gate", "up") if m.gated else ("up",):
        yield grouped(f"{fqn}.experts.{name}", layer, routed, f, d_in, keeps_out=True)
    yield activation(m, s, f"{fqn}.experts", layer, routed * f)
    yield grouped(f"{fqn}.experts.down", layer, routed, d_in, f, keeps_out=not moe.weigh_input)
    yield Operator(f"{fqn}.combine", "combine", layer, read=moved, written=1.0 * tokens * d_in * s.width)
    if moe.latent_size:
        yield matmul(m, s, f"{fqn}.latent_up", layer, tokens, d, d_in, keeps=1.0 * tokens * d_in * s.width)
    if moe.shared_size:
        yield from _mlp(m, s, f"{fqn}.shared", layer, moe.shared_size)
    if moe.shared_gate:
        yield matmul(m, s, f"{fqn}.shared_gate", layer, tokens, 1, d, kind="router", keeps_out=True)
    if moe.branch_norms:
        for name in ("experts_post_norm", "shared_post_norm"):
            yield norm(m, s, f"{fqn}.{name}", layer, tokens, d, keeps_out=False)
