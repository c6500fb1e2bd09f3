"""What a model holds and does when it serves: weights by how they are split, the KV cache, FLOPs; before any layout.

    weights    attention | attention that every rank holds (MLA's down-projections) | MLPs | routed experts | rest
    KV cache   attention          2 x KV heads x head dim                a token and layer
               MLA                kv_lora_rank + qk_rope_head_dim        shared by all heads (DeepSeek-V2 §2.1)
               a window           as attention, for at most `window` tokens
               mamba, deltanet    one state a sequence, whatever its length

Sums over spec/tensors.py. FLOPs of attention are a query with a key, causal; MLA decodes with its up-projections
absorbed (DeepSeek-V2 §2.1.2), so that a head works on the latent vector, and prefills with heads as they are.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import TensorSpec, count, tensors

MIXERS = ("attention", "mamba", "deltanet")
STATE_BYTES = 4  # a state that is summed over the whole text is kept in fp32 (vLLM's mamba_ssm_cache_dtype)
CONV_BYTES = 2


@dataclass(frozen=True)
class Cache:
    """The attention layers of one kind together: elements a token, and FLOPs of one query with one key."""

    elements: float = 0.0
    decode_flops: float = 0.0
    prefill_flops: float = 0.0


@dataclass(frozen=True)
class Counts:
    """Elements of weights by part; caches; sizes that communication needs."""

    layers: int
    parts: int  # mixers and MLPs, each with a sum over tp ranks behind it: two a layer, but in some hybrids
    hidden: int
    params: int
    active: int
    attention: float
    attention_whole: float
    mlp: float
    experts: float
    rest: float
    embedding: float
    head: float
    tied: bool
    expert_layers: int
    num_experts: int
    top_k: int
    kv_heads: int
    latent: bool
    full: Cache
    windowed: Cache
    window: int
    state_bytes: float  # a sequence
    mtp: float

    @property
    def kv_elements(self) -> float:
        """Elements that one more token adds, within the windows."""
        return self.full.elements + self.windowed.elements


@lru_cache(maxsize=256)
def counts(model: ModelSpec) -> Counts:
    """The counts of a model."""
    parts: dict[str, float] = defaultdict(float)
    for tensor in tensors(model):
        parts[_part(tensor)] += tensor.size
    full, windowed, heads, state, blocks = Cache(), Cache(), model.kv_heads, 0.0, 0
    for layer in range(model.num_hidden_layers):
        mixer, mlp = model.parts(layer)
        blocks += (mixer is not None) + (mlp is not None)
        if mixer == "attention":
            cache, layer_heads = _cache(model, layer)
            heads = min(heads, layer_heads)
            if model.window(layer) is None:
                full = _sum(full, cache)
            else:
                windowed = _sum(windowed, cache)
        elif mixer is not None:
            state += _state(model, mixer)
    sizes, moe = count(model), model.moe
    return Counts(
        layers=model.num_hidden_layers, parts=blocks, hidden=model.hidden_size, params=sizes.total, active=sizes.active,
        attention=parts["attention"], attention_whole=parts["attention_whole"], mlp=parts["mlp"],
        experts=parts["experts"], rest=parts["rest"], embedding=sizes.embedding, head=sizes.head or sizes.embedding,
        tied=not sizes.head, expert_layers=sum(model.is_moe(layer) for layer in range(model.num_hidden_layers)),
        num_experts=moe.num_experts if moe else 1, top_k=moe.top_k if moe else 1, kv_heads=heads,
        latent=model.mla is not None, full=full, windowed=windowed, window=model.sliding_window or 0,
        state_bytes=state, mtp=sizes.mtp,
    )  # fmt: skip


def _part(tensor: TensorSpec) -> str:
    """Which part a tensor belongs to."""
    if tensor.role in ("embedding", "head"):
        return "ends"
    if tensor.role.startswith("expert"):
        return "experts"
    if len(tensor.shape) < 2 or tensor.role in ("norm", "head_norm", "router"):
        return "rest"
    if any(f".{mixer}." in tensor.name for mixer in MIXERS):
        return "attention_whole" if tensor.role == "plain" else "attention"
    return "mlp"


def _cache(m: ModelSpec, layer: int) -> tuple[Cache, int]:
    """The KV cache of one attention layer, and its KV heads."""
    heads = m.num_attention_heads
    if m.mla:
        latent, turning = m.mla.kv_lora_rank, m.mla.qk_rope_head_dim
        wide = m.mla.qk_nope_head_dim + turning + m.mla.v_head_dim
        return Cache(latent + turning, 2.0 * heads * (2 * latent + turning), 2.0 * heads * wide), heads
    kv_heads, dim, _ = m.attention_heads(layer)
    flops = 4.0 * heads * dim
    return Cache(2.0 * kv_heads * dim, flops, flops), kv_heads


def _state(m: ModelSpec, mixer: str) -> float:
    """Bytes of one sequence's state in one layer, and of the last inputs of its convolution."""
    if mixer == "mamba" and m.mamba:
        state = m.mamba.inner * m.mamba.state_size
        conv = (m.mamba.inner + 2 * m.mamba.groups * m.mamba.state_size) * (m.mamba.conv_kernel - 1)
    else:
        assert m.deltanet is not None
        net = m.deltanet
        state = net.num_value_heads * net.value_head_dim * net.key_head_dim
        channels = 2 * net.num_key_heads * net.key_head_dim + net.num_value_heads * net.value_head_dim
        conv = channels * (net.conv_kernel - 1)
    return float(STATE_BYTES * state + CONV_BYTES * conv)


def _sum(a: Cache, b: Cache) -> Cache:
    return Cache(a.elements + b.elements, a.decode_flops + b.decode_flops, a.prefill_flops + b.prefill_flops)
