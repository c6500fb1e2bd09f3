"""A decoder as one flat description, which counting, running and converting all read.

    tokens -> embed (+ positions, + norm) -> [ block ] x num_hidden_layers -> norm -> head -> logits

    block, residual "sequential"          "parallel"                     "parallel_shared"
      x += attn(norm1(x))                   x += attn(norm1(x))            x += attn(norm1(x))
      x += mlp(norm2(x))                         + mlp(norm2(x))                + mlp(norm1(x))

    norm_position  pre: f(norm(x))    post: norm(f(x))    both: norm(f(norm(x)))
    layer_pattern  the parts of a layer: a token mixer (attention, mamba, deltanet), an MLP, or both

Keys have the names of Hugging Face's config.json where it has them. The families' own files are read
by `spec/huggingface.py`; every tensor and its exact size follow from here, in `spec/operators.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from scalewright.spec.base import Spec, from_keys
from scalewright.spec.errors import UserError

# swiglu_clamped: gpt-oss; model/mlp.py has its formula and constants. xielu: Apertus, with two learned numbers a layer
MlpType = Literal["swiglu", "swiglu_clamped", "geglu", "geglu_tanh", "gelu", "gelu_tanh", "relu", "relu2", "xielu"]
NormType = Literal[
    "rmsnorm", "rmsnorm_plus_one", "layernorm", "layernorm_plus_one", "layernorm_nobias", "nonparametric"
]
Mixer = Literal["attention", "mamba", "deltanet"]
Mlp = Literal["dense", "experts"]
LayerKind = Literal["attention+mlp", "attention", "mlp", "mamba", "mamba+mlp", "deltanet", "deltanet+mlp"]
# Kind of layer: (its token mixer, whether an MLP or experts follow).
LAYER_PARTS: dict[LayerKind, tuple[Mixer | None, bool]] = {
    "attention+mlp": ("attention", True),
    "attention": ("attention", False),
    "mlp": (None, True),
    "mamba": ("mamba", False),
    "mamba+mlp": ("mamba", True),
    "deltanet": ("deltanet", False),
    "deltanet+mlp": ("deltanet", True),
}
# Bounds far above any model: a file with larger numbers would take hours or all memory to count.
Size = Annotated[int, Field(ge=1, le=1 << 40)]
Layers = Annotated[int, Field(ge=1, le=10_000)]
Heads = Annotated[int, Field(ge=1, le=1_000_000)]
GATED: frozenset[str] = frozenset({"swiglu", "swiglu_clamped", "geglu", "geglu_tanh"})


class RopeScaling(Spec):
    """Scaling of rotary frequencies beyond the context that a model was trained on."""

    kind: Literal["linear", "dynamic", "yarn", "llama3", "longrope"]
    factor: float = Field(1.0, gt=0)
    original_context: int | None = Field(None, ge=1)
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn, longrope; null = the kind's own formula
    mscale: float | None = None  # yarn (DeepSeek)
    mscale_all_dim: float | None = None  # yarn (DeepSeek)
    truncate: bool = True  # yarn: round the correction range to whole dimensions
    short_factor: tuple[float, ...] | None = None  # longrope
    long_factor: tuple[float, ...] | None = None  # longrope

    @property
    def stretch(self) -> float:
        """What YaRN multiplies cos and sin by (§3.4: 0.1 ln(factor) + 1), which scales attention's logits."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        log = math.log(max(self.factor, 1.0))
        if self.mscale and self.mscale_all_dim:
            return (0.1 * self.mscale * log + 1.0) / (0.1 * self.mscale_all_dim * log + 1.0)
        return 0.1 * log + 1.0


class Rope(Spec):
    """Rotary positions (Su et al. 2021): `fraction` of each head's dimensions turns with the position."""

    theta: float = Field(10000.0, gt=0)
    fraction: float = Field(1.0, gt=0, le=1)
    interleaved: bool = False  # DeepSeek: pairs are neighbours (2 i, 2 i + 1), in place of (i, i + R/2)
    scaling: RopeScaling | None = None
    local_theta: float | None = None  # Gemma 3: sliding-window layers turn at this rate, and without scaling


class AttentionTemperature(Spec):
    """Llama 4: queries of layers without RoPE grow with the position (Nakanishi 2025, arXiv 2501.19399).

    q(p) is multiplied by 1 + attn_scale ln(1 + floor((p + 1) / floor_scale)).
    """

    floor_scale: Size = 8192  # positions from one step to the next
    attn_scale: float = Field(0.1, ge=0)


class MoE(Spec):
    """A mixture of experts in place of the MLP, in every `every`-th layer from `first_k_dense` on."""

    num_experts: Heads
    top_k: Heads
    moe_intermediate_size: Size
    num_shared_experts: int = Field(0, ge=0, le=1_000_000)
    shared_intermediate_size: int | None = None  # null: num_shared_experts * moe_intermediate_size
    shared_gate: bool = False  # Qwen2-MoE: a learned gate on the shared expert
    first_k_dense: int = Field(0, ge=0)
    every: int = Field(1, ge=1)  # layers i with (i + 1) % every == 0 are sparse
    dense_layers: tuple[int, ...] = ()
    router_bias: bool = False  # a bias, or DeepSeek-V3's correction bias: num_experts numbers
    score: Literal["softmax", "sigmoid"] = "softmax"
    normalize_top_k: bool = True
    routed_scale: float = 1.0
    weigh_input: bool = False  # Llama 4: a token's weight multiplies what an expert takes, not what it gives
    groups: int = 1  # experts are first chosen by group (DeepSeek)
    top_groups: int = 1
    latent_size: int | None = Field(None, ge=1)  # Nemotron 3 Super: width of the experts' input
    branch_norms: bool = False  # Gemma 4: norms of routed and of shared experts, scales of the router

    @property
    def shared_size(self) -> int:
        """Hidden units of the shared experts together; 0 when there are none."""
        if self.num_shared_experts == 0:
            return 0
        return self.shared_intermediate_size or self.num_shared_experts * self.moe_intermediate_size


class MLA(Spec):
    """Multi-head latent attention (DeepSeek-V2 §2.1): keys and values through one small latent vector."""

    q_lora_rank: int | None = None  # null: queries are not compressed
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size


class Mamba(Spec):
    """A Mamba-2 mixer (Dao & Gu 2024, §7): a state of N x P numbers per head, updated by a scan."""

    num_heads: Heads
    head_dim: Size  # P
    state_size: Size  # N
    groups: Heads = 1  # groups of heads that share B and C
    conv_kernel: Size = 4
    conv_bias: bool = True
    chunk_size: Size = 256  # tokens that the scan takes at once, as matrix products

    @property
    def inner(self) -> int:
        """Channels of x, of its gate z and of the output."""
        return self.num_heads * self.head_dim


class DeltaNet(Spec):
    """Gated DeltaNet (Yang et al. 2025): linear attention with a decaying state and the delta rule."""

    num_key_heads: Heads  # and query heads
    num_value_heads: Heads
    key_head_dim: Size
    value_head_dim: Size
    conv_kernel: Size = 4
    chunk_size: Size = 64


class GlobalAttention(Spec):
    """The heads of layers without a window, where they differ from the model's (Gemma 4)."""

    num_key_value_heads: Heads
    head_dim: Size
    values_are_keys: bool = False  # one projection for both


class ModelSpec(Spec):
    """A decoder-only language model; dims, parts and the numbers that its forward needs."""

    version: Literal[1] = 1
    name: str = "model"
    family: str = "llama"  # of its config.json and tensor names on Hugging Face

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Heads
    num_key_value_heads: Heads | None = None  # null: as many as query heads
    head_dim: Size | None = None  # null: hidden_size / num_attention_heads
    context: Size = 2048  # positions that the model was made for

    mlp_type: MlpType = "swiglu"
    norm_type: NormType = "rmsnorm"
    norm_eps: float = Field(1e-5, gt=0)
    norm_position: Literal["pre", "post", "both"] = "pre"
    residual: Literal["sequential", "parallel", "parallel_shared"] = "sequential"
    final_norm: bool = True
    embedding_norm: bool = False  # BLOOM
    # head: one norm per head of q and k (Qwen3, Gemma 3); qkv: of v too, without a weight (Gemma 4);
    # full: over all heads (OLMo-2); l2: a head's L2 norm, on layers with RoPE (Llama 4)
    qk_norm: Literal["head", "qkv", "full", "l2"] | None = None

    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    tie_word_embeddings: bool = False
    embedding_scale: float | None = None  # Gemma multiplies embeddings by sqrt(hidden_size)

    positions: Literal["rope", "alibi", "learned", "none"] = "rope"
    learned_positions: int = Field(0, ge=0, le=1 << 40)  # rows of the position table
    rope: Rope = Rope()
    rope_every_not: int | None = None  # SmolLM3, Llama 4: every n-th layer has no positions
    attention_temperature: AttentionTemperature | None = None

    sliding_window: int | None = Field(None, ge=1)
    window_pattern: tuple[bool, ...] = (False,)  # repeated over the layers: True = sliding window
    window_chunks: bool = False  # Llama 4: windows cut a document, a token attends only within its own
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    query_scale: float | None = None  # null: head_dim ** -0.5
    clip_qkv: float | None = None
    attention_sinks: bool = False  # gpt-oss: one learned logit per head joins the softmax, without a value
    attention_gate: bool = False  # Qwen3-Next: a projection whose sigmoid multiplies attention's output
    global_attention: GlobalAttention | None = None

    layer_pattern: tuple[LayerKind, ...] = ("attention+mlp",)  # repeated over the layers
    moe: MoE | None = None
    mla: MLA | None = None
    mamba: Mamba | None = None
    deltanet: DeltaNet | None = None
    mtp_layers: int = Field(0, ge=0, le=10_000)  # modules of multi-token prediction; `total` leaves them out

    @from_keys
    def _derive(cls, data: Any) -> Any:
        """Fills the nulls, so that a resolved spec has none."""
        data = {key: value for key, value in data.items() if value != "" or key not in ("name", "family")}
        heads, hidden = data.get("num_attention_heads"), data.get("hidden_size")
        if data.get("num_key_value_heads") is None:
            data["num_key_value_heads"] = heads
        if data.get("head_dim") is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
            if mla := data.get("mla"):
                latent = mla if isinstance(mla, MLA) else MLA.parse(mla, "model.mla")
                data["head_dim"] = latent.qk_nope_head_dim + latent.qk_rope_head_dim
            elif hidden % heads:
                how = f"use hidden_size {max(1, round(hidden / heads)) * heads}, or set head_dim"
                raise UserError(f"hidden_size {hidden} is not divisible by num_attention_heads {heads}", "model", how)
            else:
                data["head_dim"] = hidden // heads
        if data.get("positions") == "learned" and not data.get("learned_positions"):
            data["learned_positions"] = data.get("context", 2048)
        return data

    @model_validator(mode="after")
    def _check(self) -> ModelSpec:
        for problem, fix in self._problems():
            raise UserError(problem, "model", fix)
        return self

    def _problems(self) -> Iterator[tuple[str, str]]:
        heads, kv = self.num_attention_heads, self.kv_heads
        if heads % kv:
            best = min((n for n in range(1, heads + 1) if heads % n == 0), key=lambda n: abs(n - kv))
            problem = f"num_attention_heads {heads} is not divisible by num_key_value_heads {kv}"
            yield problem, f"use num_key_value_heads {best}"
        if any(self.window_pattern) and self.sliding_window is None:
            yield "window_pattern has a window but sliding_window is null", "set sliding_window"
        if self.moe and self.moe.top_k > self.moe.num_experts:
            problem = f"moe.top_k {self.moe.top_k} is more than moe.num_experts {self.moe.num_experts}"
            yield problem, f"use top_k {self.moe.num_experts} or less"
        for name, dims in (("mamba", self.mamba), ("deltanet", self.deltanet)):
            if dims is None and any(LAYER_PARTS[kind][0] == name for kind in self.layer_pattern):
                yield f"layer_pattern has {name} layers but {name} is null", f"set {name}"
        if not self.layer_pattern:
            yield "layer_pattern is empty", "use [attention+mlp]"
        if self.mamba and self.mamba.num_heads % self.mamba.groups:
            problem = f"mamba.num_heads {self.mamba.num_heads} is not divisible by groups {self.mamba.groups}"
            yield problem, "use groups 1"
        if self.deltanet and self.deltanet.num_value_heads % self.deltanet.num_key_heads:
            keys, values = self.deltanet.num_key_heads, self.deltanet.num_value_heads
            problem = f"deltanet.num_value_heads {values} is not divisible by num_key_heads {keys}"
            yield problem, f"use num_key_heads {values}"
        if self.mla:
            yield from self._latent_problems(self.mla)
        elif self.positions == "rope" and self.rotary_dims % 2:
            problem = f"head_dim {self.dim_per_head} x fraction {self.rope.fraction} is odd"
            yield f"RoPE turns pairs, and {problem}", f"use head_dim {self.dim_per_head + 1}"

    def _latent_problems(self, mla: MLA) -> Iterator[tuple[str, str]]:
        """Latent attention has neither groups nor norms of heads; their size follows from its own keys."""
        heads, turning = self.num_attention_heads, mla.qk_rope_head_dim
        size = mla.qk_nope_head_dim + turning
        if self.head_dim != size:
            problem = f"head_dim {self.head_dim} is not mla's qk_nope_head_dim + qk_rope_head_dim, {size}"
            yield problem, f"use head_dim {size}, or leave it out"
        if self.kv_heads != heads:
            problem = f"num_key_value_heads {self.kv_heads}: latent attention has keys for all {heads} heads"
            yield problem, f"use num_key_value_heads {heads}"
        if self.positions == "rope" and turning % 2:
            yield f"RoPE turns pairs, and mla.qk_rope_head_dim {turning} is odd", f"use {turning + 1}"
        for key, usual in (("qk_norm", None), ("clip_qkv", None), ("norm_type", "rmsnorm")):
            if (value := getattr(self, key)) != usual:
                problem = f"{key} {value} with mla: latent attention has an RMS norm of each latent, no more"
                yield problem, f"leave out {key}, or mla"
        for key in ("attention_sinks", "attention_temperature"):
            if getattr(self, key):
                yield f"{key} with mla: latent attention has none", f"leave out {key}, or mla"

    # -- derived from the keys --------------------------------------------------------------------

    @property
    def kv_heads(self) -> int:
        """Key and value heads."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def dim_per_head(self) -> int:
        """Dimensions of one query head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def dim_per_value(self) -> int:
        """Dimensions of one head's values."""
        return self.mla.v_head_dim if self.mla else self.dim_per_head

    @property
    def rotary_dims(self) -> int:
        """Dimensions of a head that turn with the position: R."""
        return self.mla.qk_rope_head_dim if self.mla else round(self.dim_per_head * self.rope.fraction)

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate beside its up projection (SwiGLU, GeGLU)."""
        return self.mlp_type in GATED

    @property
    def norm_shapes(self) -> tuple[bool, bool]:
        """Whether a norm has a weight, and whether it has a bias."""
        return self.norm_type != "nonparametric", self.norm_type in ("layernorm", "layernorm_plus_one")

    def parts(self, layer: int) -> tuple[Mixer | None, Mlp | None]:
        """The layer's token mixer and its MLP; a layer has at least one of them."""
        mixer, mlp = LAYER_PARTS[self.layer_pattern[layer % len(self.layer_pattern)]]
        return mixer, ("experts" if self.is_moe(layer) else "dense") if mlp else None

    def kind(self, layer: int) -> tuple[object, ...]:
        """The kind of this layer; layers of one kind differ only in their number."""
        return (*self.parts(layer), self.window(layer), self.has_rope(layer))

    def attention_heads(self, layer: int) -> tuple[int, int, bool]:
        """The layer's KV heads, dimensions of a head, and whether values are keys."""
        heads = self.global_attention
        if heads is None or self.window(layer) is not None:
            return self.kv_heads, self.dim_per_head, False
        return heads.num_key_value_heads, heads.head_dim, heads.values_are_keys

    def window(self, layer: int) -> int | None:
        """Keys that a query of this layer attends to; None = all before it."""
        return self.sliding_window if self.window_pattern[layer % len(self.window_pattern)] else None

    def has_rope(self, layer: int) -> bool:
        """Whether this layer applies RoPE to its queries and keys."""
        every = self.rope_every_not
        return self.positions == "rope" and not (every and (layer + 1) % every == 0)

    def is_moe(self, layer: int) -> bool:
        """Whether this layer routes to experts."""
        moe = self.moe
        if moe is None or layer < moe.first_k_dense or layer in moe.dense_layers:
            return False
        has_mlp = LAYER_PARTS[self.layer_pattern[layer % len(self.layer_pattern)]][1]
        return has_mlp and (layer + 1) % moe.every == 0
