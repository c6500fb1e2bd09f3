"""Every tensor of a model: its canonical name, full shape, role and initialization.

    embed.weight                      [V, D]        layers.3.attention.q.weight   [H*K, D]
    layers.3.attention_norm.weight    [D]           layers.3.attention.o.weight   [D, H*K]
    layers.3.mlp.gate.weight          [F, D]        layers.3.mlp.down.weight      [D, F]
    norm.weight                       [D]           head.weight                   [V, D]

Linear weights are [out, in]. Nothing is fused: q, k, v, gate and up are tensors of their own. Names contain
the global layer number, so they are the same on every layout. The network (`model/`), the checkpoint and the
placement use these names.

A prediction module (multi-token prediction, DeepSeek-V3) shares embedding and head with the model:

    mtp.0.embed_norm.weight, mtp.0.hidden_norm.weight, mtp.0.norm.weight  [D]
    mtp.0.join.weight  [D, 2 D]: columns of the embedding, then of the hidden state     mtp.0.block.mlp...

    V vocabulary  D hidden  F intermediate  H query heads  G kv heads  K head dim  E experts

Mamba-2 and DeltaNet (`Role` column: their heads, and groups of heads, are cut like attention's):

    layers.0.mamba.z, x  [H*P, D]   b, c  [groups*N, D]   dt [H, D]   conv_x, _b, _c  [channels, width]
    layers.0.deltanet.q, k  [H*K, D]   v, z  [H'*K', D]   b, a [H', D]   conv_q, _k, _v  [channels, width]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal

from scalewright.spec.model import MLA, DeltaNet, Mamba, Mixer, Mlp, ModelSpec, MoE

Role = Literal[
    "embedding",  # [V, D]; rows are split over tp
    "head",  # [V, D] or [V]; rows are split over tp
    "column",  # [out, in] or [out]; rows are split over tp
    "kv",  # as column, in at most kv_heads parts: with more tp ranks, some hold copies
    "row",  # [out, in]; columns are split over tp, and the outputs are summed
    "norm",  # whole on every tp rank; with sequence parallelism the gradients are still to be summed
    "head_norm",  # whole on every tp rank, which applies it to its own heads: gradients are always summed
    "plain",  # whole on every tp rank (positions, row biases, low-rank projections)
    "router",  # whole; gradients are summed over tp like a norm's
    "expert_column",  # [E, F, D] or [E, F]; experts over ep, rows over etp
    "expert_row",  # [E, D, F]; experts over ep, columns over etp
    "expert_plain",  # [E, D]; experts over ep
]
Init = Literal["normal", "residual", "ones", "zeros"]


@dataclass(frozen=True)
class TensorSpec:
    """One whole tensor, independent of any layout."""

    name: str
    shape: tuple[int, ...]
    role: Role
    layer: int  # -1 before the first block, num_hidden_layers after the last
    init: Init = "normal"
    dtype: str = "float32"
    # its name in the last stage, where that uses it too: a tied head, or the lookups of prediction modules
    tied_to: str | None = None

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)


@lru_cache(maxsize=64)
def tensors(model: ModelSpec, mtp: bool = False) -> tuple[TensorSpec, ...]:
    """Every tensor of the model, in the order of the forward pass.

    `mtp` adds the modules of multi-token prediction (DeepSeek-V3 §2.2), which a run trains; published totals
    leave them out. They share embedding and head with the main model.
    """
    blocks = (tensor for layer in range(model.num_hidden_layers) for tensor in block_tensors(model, layer))
    return (*_before(model, mtp), *blocks, *_after(model), *(_predictions(model) if mtp else ()))


def outer_tensors(model: ModelSpec, mtp: bool = False) -> tuple[TensorSpec, ...]:
    """The tensors outside the main model's blocks: embedding, final norm, head; `mtp`: its modules, too."""
    return (*_before(model, mtp), *_after(model), *(_predictions(model) if mtp else ()))


def block_tensors(model: ModelSpec, layer: int) -> tuple[TensorSpec, ...]:
    """The tensors of one block."""
    return tuple(_block(model, f"layers.{layer}", layer, *model.parts(layer)))


def _before(m: ModelSpec, mtp: bool = False) -> Iterator[TensorSpec]:
    predicts = mtp and m.mtp_layers > 0  # modules behind the last block look tokens up, too
    tied = "head.weight" if m.tie_word_embeddings else "embed.weight" if predicts else None
    yield TensorSpec("embed.weight", (m.vocab_size, m.hidden_size), "embedding", -1, tied_to=tied)
    if m.positions == "learned":
        yield TensorSpec("positions.weight", (m.learned_positions, m.hidden_size), "plain", -1)
    if m.embedding_norm:
        yield from _norm(m, "embed_norm", m.hidden_size, -1)


def _after(m: ModelSpec) -> Iterator[TensorSpec]:
    last = m.num_hidden_layers
    if m.final_norm:
        yield from _norm(m, "norm", m.hidden_size, last)
    if not m.tie_word_embeddings:
        yield TensorSpec("head.weight", (m.vocab_size, m.hidden_size), "head", last)
    if m.head_bias:
        yield TensorSpec("head.bias", (m.vocab_size,), "head", last, "zeros")


def _block(m: ModelSpec, fqn: str, layer: int, mixer: Mixer | None, mlp: Mlp | None) -> Iterator[TensorSpec]:
    pre, post = m.norm_position in ("pre", "both"), m.norm_position in ("post", "both")
    if mixer:
        if pre:
            yield from _norm(m, f"{fqn}.{mixer}_norm", m.hidden_size, layer)
        yield from _mixer(m, f"{fqn}.{mixer}", layer, mixer)
        if post:
            yield from _norm(m, f"{fqn}.{mixer}_post_norm", m.hidden_size, layer)
    if mlp is None:
        return
    if pre and not (mixer and m.residual == "parallel_shared"):
        yield from _norm(m, f"{fqn}.mlp_norm", m.hidden_size, layer)
    if m.moe and mlp == "experts":
        yield from _experts(m, m.moe, f"{fqn}.mlp", layer)
    else:
        yield from _mlp(m, f"{fqn}.mlp", m.intermediate_size, layer)
    if post:
        yield from _norm(m, f"{fqn}.mlp_post_norm", m.hidden_size, layer)


def _mixer(m: ModelSpec, fqn: str, layer: int, mixer: Mixer) -> Iterator[TensorSpec]:
    if mixer == "mamba" and m.mamba:
        return _mamba(m, m.mamba, fqn, layer)
    if mixer == "deltanet" and m.deltanet:
        return _deltanet(m, m.deltanet, fqn, layer)
    return _mla(m, m.mla, fqn, layer) if m.mla else _attention(m, fqn, layer)


def _norm(m: ModelSpec, name: str, size: int, layer: int, role: Role = "norm") -> Iterator[TensorSpec]:
    weight, bias = m.norm_shapes
    init: Init = "zeros" if m.norm_type.endswith("plus_one") else "ones"
    if weight:
        yield TensorSpec(f"{name}.weight", (size,), role, layer, init)
    if bias:
        yield TensorSpec(f"{name}.bias", (size,), role, layer, "zeros")


def _linear(
    name: str, out: int, into: int, role: Role, layer: int, bias: bool, init: Init = "normal"
) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (out, into), role, layer, init)
    if bias:  # a row-parallel bias is added once, after the sum: every rank holds it whole
        yield TensorSpec(f"{name}.bias", (out,), "plain" if role == "row" else role, layer, "zeros")


def _attention(m: ModelSpec, fqn: str, layer: int) -> Iterator[TensorSpec]:
    d = m.hidden_size
    kv_heads, k, values_are_keys = m.attention_heads(layer)
    query, kv = m.num_attention_heads * k, kv_heads * k
    if m.attention_sinks:
        yield TensorSpec(f"{fqn}.sinks", (m.num_attention_heads,), "column", layer, "zeros")
    yield from _linear(f"{fqn}.q", query, d, "column", layer, m.qkv_bias)
    if m.attention_gate:
        yield from _linear(f"{fqn}.out_gate", query, d, "column", layer, m.qkv_bias)
    yield from _linear(f"{fqn}.k", kv, d, "kv", layer, m.qkv_bias)
    if not values_are_keys:
        yield from _linear(f"{fqn}.v", kv, d, "kv", layer, m.qkv_bias)
    if m.qk_norm in ("head", "qkv"):
        yield from _norm(m, f"{fqn}.q_norm", k, layer, "head_norm")
        yield from _norm(m, f"{fqn}.k_norm", k, layer, "head_norm")
    elif m.qk_norm == "full":
        yield from _norm(m, f"{fqn}.q_norm", query, layer, "column")
        yield from _norm(m, f"{fqn}.k_norm", kv, layer, "kv")
    yield from _linear(f"{fqn}.o", d, query, "row", layer, m.o_bias, "residual")


def _mamba(m: ModelSpec, mamba: Mamba, fqn: str, layer: int) -> Iterator[TensorSpec]:
    """Dao & Gu 2024 §7.1: all of the scan's inputs are projections of the layer's; D and A are per head."""
    d, inner, heads = m.hidden_size, mamba.inner, mamba.num_heads
    shared = mamba.groups * mamba.state_size
    for name, out in (("z", inner), ("x", inner), ("b", shared), ("c", shared), ("dt", heads)):
        yield from _linear(f"{fqn}.{name}", out, d, "column", layer, False)
    for name, out in (("conv_x", inner), ("conv_b", shared), ("conv_c", shared)):
        yield from _linear(f"{fqn}.{name}", out, mamba.conv_kernel, "column", layer, mamba.conv_bias)
    for name in ("a_log", "d", "dt_bias"):
        yield TensorSpec(f"{fqn}.{name}", (heads,), "column", layer, "ones")
    yield TensorSpec(f"{fqn}.norm.weight", (inner,), "column", layer, "ones")
    yield from _linear(f"{fqn}.o", d, inner, "row", layer, False, "residual")


def _deltanet(m: ModelSpec, net: DeltaNet, fqn: str, layer: int) -> Iterator[TensorSpec]:
    """Qwen3-Next's: a decay `a` and a learning rate `b` for each value head; one norm for all heads."""
    d, heads = m.hidden_size, net.num_value_heads
    keys, values = net.num_key_heads * net.key_head_dim, heads * net.value_head_dim
    for name, out in (("q", keys), ("k", keys), ("v", values), ("z", values), ("b", heads), ("a", heads)):
        yield from _linear(f"{fqn}.{name}", out, d, "column", layer, False)
    for name, out in (("conv_q", keys), ("conv_k", keys), ("conv_v", values)):
        yield from _linear(f"{fqn}.{name}", out, net.conv_kernel, "column", layer, False)
    for name in ("a_log", "dt_bias"):
        yield TensorSpec(f"{fqn}.{name}", (heads,), "column", layer, "ones")
    yield TensorSpec(f"{fqn}.norm.weight", (net.value_head_dim,), "head_norm", layer, "ones")
    yield from _linear(f"{fqn}.o", d, values, "row", layer, False, "residual")


def _mla(m: ModelSpec, mla: MLA, fqn: str, layer: int) -> Iterator[TensorSpec]:
    d, heads = m.hidden_size, m.num_attention_heads
    query = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    if mla.q_lora_rank:
        yield from _linear(f"{fqn}.q_down", mla.q_lora_rank, d, "plain", layer, m.qkv_bias)
        yield from _norm(m, f"{fqn}.q_down_norm", mla.q_lora_rank, layer)
        yield from _linear(f"{fqn}.q_up", query, mla.q_lora_rank, "column", layer, False)
    else:
        yield from _linear(f"{fqn}.q", query, d, "column", layer, False)
    yield from _linear(f"{fqn}.kv_down", mla.kv_lora_rank + mla.qk_rope_head_dim, d, "plain", layer, m.qkv_bias)
    yield from _norm(m, f"{fqn}.kv_down_norm", mla.kv_lora_rank, layer)
    up = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    yield from _linear(f"{fqn}.kv_up", up, mla.kv_lora_rank, "column", layer, False)
    yield from _linear(f"{fqn}.o", d, heads * mla.v_head_dim, "row", layer, m.o_bias, "residual")


def _mlp(m: ModelSpec, fqn: str, size: int, layer: int) -> Iterator[TensorSpec]:
    d = m.hidden_size
    if m.gated:
        yield from _linear(f"{fqn}.gate", size, d, "column", layer, m.mlp_bias)
    yield from _linear(f"{fqn}.up", size, d, "column", layer, m.mlp_bias)
    if m.mlp_type == "xielu":  # its slopes on both sides of 0; ranks that share a layer sum their gradients
        yield TensorSpec(f"{fqn}.activation.alpha", (2,), "router", layer)
    yield from _linear(f"{fqn}.down", d, size, "row", layer, m.mlp_bias, "residual")


def _experts(m: ModelSpec, moe: MoE, fqn: str, layer: int) -> Iterator[TensorSpec]:
    d, e, f = m.hidden_size, moe.num_experts, moe.moe_intermediate_size
    d_in = moe.latent_size or d
    yield TensorSpec(f"{fqn}.router.weight", (e, d), "router", layer)
    if moe.router_bias:
        yield TensorSpec(f"{fqn}.router.bias", (e,), "router", layer, "zeros")
    for name in ("gate", "up") if m.gated else ("up",):
        yield TensorSpec(f"{fqn}.experts.{name}.weight", (e, f, d_in), "expert_column", layer)
        if m.mlp_bias:
            yield TensorSpec(f"{fqn}.experts.{name}.bias", (e, f), "expert_column", layer, "zeros")
    yield TensorSpec(f"{fqn}.experts.down.weight", (e, d_in, f), "expert_row", layer, "residual")
    if m.mlp_bias:
        yield TensorSpec(f"{fqn}.experts.down.bias", (e, d_in), "expert_plain", layer, "zeros")
    if moe.latent_size:
        yield from _linear(f"{fqn}.latent_down", moe.latent_size, d, "plain", layer, m.mlp_bias)
        yield from _linear(f"{fqn}.latent_up", d, moe.latent_size, "plain", layer, m.mlp_bias)
    if moe.shared_size:
        yield from _mlp(m, f"{fqn}.shared", moe.shared_size, layer)
    if moe.shared_gate:
        yield TensorSpec(f"{fqn}.shared_gate.weight", (1, d), "plain", layer)
    if moe.branch_norms:
        yield TensorSpec(f"{fqn}.router.scale", (d,), "router", layer, "ones")
        yield TensorSpec(f"{fqn}.router.expert_scale", (e,), "router", layer, "ones")
        for name in ("experts_norm", "experts_post_norm", "shared_post_norm"):
            yield from _norm(m, f"{fqn}.{name}", d, layer)


def _predictions(m: ModelSpec) -> Iterator[TensorSpec]:
    for index in range(m.mtp_layers):
        yield from _mtp(m, index)


def _mtp(m: ModelSpec, index: int) -> Iterator[TensorSpec]:
    """A prediction module; its layer number goes on from that of the last block, as in Hugging Face files."""
    d, fqn, layer = m.hidden_size, f"mtp.{index}", m.num_hidden_layers + index
    yield from _norm(m, f"{fqn}.embed_norm", d, layer)
    yield from _norm(m, f"{fqn}.hidden_norm", d, layer)
    yield from _linear(f"{fqn}.join", d, 2 * d, "plain", layer, False)
    yield from _block(m, f"{fqn}.block", layer, "attention", "experts" if m.moe else "dense")
    yield from _norm(m, f"{fqn}.norm", d, layer)


@dataclass(frozen=True)
class Count:
    """Parameter counts: stored, and active for one token."""

    total: int
    active: int  # with embedding and head
    embedding: int  # rows of the input table
    head: int  # the output matrix when it is a tensor of its own, else 0
    mtp: int  # multi-token-prediction layers, in neither total nor active

    @property
    def active_without_input(self) -> int:
        """Active without the input embedding; a tied matrix stays, since the head multiplies by it."""
        return self.active - (self.embedding if self.head else 0)

    @property
    def active_without_any_embedding(self) -> int:
        """Active without embedding and head."""
        return self.active - self.embedding - self.head


@lru_cache(maxsize=4096)
def count(model: ModelSpec) -> Count:
    """Exact parameter counts of a model; one layer of each kind is counted for all of that kind."""
    before, after = list(_before(model)), list(_after(model))
    total, active = _sizes(model, [*before, *after])
    kinds = Counter(model.kind(layer) for layer in range(model.num_hidden_layers))
    first = {model.kind(layer): layer for layer in reversed(range(model.num_hidden_layers))}
    for kind, layers in kinds.items():
        stored, used = _sizes(model, block_tensors(model, first[kind]))
        total, active = total + layers * stored, active + layers * used
    size = {tensor.name: tensor.size for tensor in (*before, *after)}
    extra = model.mtp_layers * _sizes(model, _mtp(model, 0))[0] if model.mtp_layers else 0
    return Count(total, active, size["embed.weight"], size.get("head.weight", 0), extra)


def _sizes(model: ModelSpec, specs: Iterable[TensorSpec]) -> tuple[int, int]:
    """Elements of these tensors: all, and those active for one token."""
    total = active = 0
    for tensor in specs:
        total += tensor.size
        expert = model.moe is not None and tensor.role.startswith("expert")
        active += tensor.size // model.moe.num_experts * model.moe.top_k if expert and model.moe else tensor.size
    return total, active
