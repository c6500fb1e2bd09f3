"""Llama and those that changed a part of it: Mistral, Qwen2, Qwen3, SmolLM3, Phi-3, OLMo, OLMo-2, StarCoder2.

    x += o(attention(q, k, v of rmsnorm(x)))        Qwen2: biases on q, k, v     Qwen3: a norm on each head's q, k
    x += down(silu(gate(n)) * up(n)), n = rmsnorm(x)   OLMo-2: norms after, and over all of q and k

A `_read_*` states what differs; everything else is `shape`.
"""

from __future__ import annotations

from scalewright.spec.errors import UserError
from scalewright.spec.families.common import (
    Config,
    Family,
    Keys,
    all_layers,
    by_layer_types,
    mlp_type,
    rope,
    shape,
    windows,
    write_layer_types,
    write_rope,
    write_shape,
)
from scalewright.spec.model import ModelSpec


def gated(c: Config) -> Keys:
    """A gated MLP without biases, and rotary positions."""
    return {**shape(c), "mlp_type": mlp_type(c["hidden_act"]), "rope": rope(c, c.get("default_theta", 10000.0))}


def biases(c: Config) -> Keys:
    """`attention_bias` on all four projections of attention."""
    return {"qkv_bias": c["attention_bias"], "o_bias": c["attention_bias"]}


def _read_llama(c: Config) -> Keys:
    return {**gated(c), **biases(c), "mlp_bias": c["mlp_bias"]}


def _write_llama(m: ModelSpec) -> Keys:
    return {**write_shape(m), **write_rope(m), "attention_bias": m.qkv_bias, "mlp_bias": m.mlp_bias}


def _read_mistral(c: Config) -> Keys:
    return {**gated(c), **all_layers(c)}


def _write_mistral(m: ModelSpec) -> Keys:
    return {**write_shape(m), **write_rope(m), "sliding_window": m.sliding_window}


def _read_qwen2(c: Config) -> Keys:
    return {**gated({**c, "head_dim": None}), **_late_windows(c), "qkv_bias": True}


def _write_qwen2(m: ModelSpec) -> Keys:
    keys = {**write_shape(m), **write_rope(m), **_write_late_windows(m)}
    del keys["head_dim"]
    return keys


def _read_qwen3(c: Config) -> Keys:
    return {**gated(c), **biases(c), **_late_windows(c), "qk_norm": "head"}


def _write_qwen3(m: ModelSpec) -> Keys:
    return {**write_shape(m), **write_rope(m), **_write_late_windows(m), "attention_bias": m.qkv_bias}


def _late_windows(c: Config) -> Keys:
    """Qwen's rule: with `use_sliding_window`, layers from `max_window_layers` on slide."""
    if not c["use_sliding_window"]:
        return windows((), None)
    return by_layer_types(c, [i >= c["max_window_layers"] for i in range(c["num_hidden_layers"])])


def _write_late_windows(m: ModelSpec) -> Keys:
    slides = m.sliding_window is not None
    return {"use_sliding_window": slides, "sliding_window": m.sliding_window, "layer_types": write_layer_types(m)}


def _read_smollm3(c: Config) -> Keys:
    every: int | None = c["no_rope_layer_interval"] or None
    layers = c["num_hidden_layers"]
    if c["no_rope_layers"]:  # the list says 1 where a layer does turn
        without = [i + 1 for i, turns in enumerate(c["no_rope_layers"]) if not turns]
        every = without[0] if without else None
        if without != (list(range(every, layers + 1, every)) if every else []):
            raise UserError("no_rope_layers is not every n-th layer", "config.json", "such a pattern is not supported")
    no_window = not c["use_sliding_window"]
    window = windows((), None) if no_window else by_layer_types(c, [bool(every) and (i + 1) % every == 0 for i in range(layers)])  # type: ignore[operator]
    return {**gated(c), **biases(c), **window, "mlp_bias": c["mlp_bias"], "rope_every_not": every}


def _read_phi3(c: Config) -> Keys:
    return {**gated(c), **all_layers(c)}


def _read_olmo(c: Config) -> Keys:
    keys = {**gated(c), **biases(c), "norm_type": "nonparametric", "clip_qkv": c["clip_qkv"]}
    return {**keys, "norm_eps": 1e-5}


def _read_olmo2(c: Config) -> Keys:
    return {**gated(c), **biases(c), "norm_position": "post", "qk_norm": "full"}


def _write_olmo2(m: ModelSpec) -> Keys:
    keys = {**write_shape(m), **write_rope(m), "attention_bias": m.qkv_bias}
    del keys["head_dim"]
    return keys


def _read_starcoder2(c: Config) -> Keys:
    bias = c["use_bias"]
    keys = {**shape({**c, "head_dim": None}), **all_layers(c), "qkv_bias": bias, "o_bias": bias, "mlp_bias": bias}
    keys |= {"mlp_type": mlp_type(c["hidden_act"], gated=False), "norm_type": "layernorm", "norm_eps": c["norm_epsilon"]}
    return {**keys, "rope": rope(c)}


def _write_starcoder2(m: ModelSpec) -> Keys:
    keys = {**write_shape(m), **write_rope(m), "use_bias": m.mlp_bias, "norm_epsilon": m.norm_eps}
    del keys["head_dim"], keys["rms_norm_eps"]
    return {**keys, "sliding_window": m.sliding_window}


LLAMA: Keys = dict(
    vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=None, head_dim=None, hidden_act="silu", max_position_embeddings=2048, rms_norm_eps=1e-6,
    tie_word_embeddings=False, attention_bias=False, mlp_bias=False,
)  # fmt: skip
QWEN: Keys = dict(
    vocab_size=151936, hidden_size=4096, intermediate_size=22016, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=32, hidden_act="silu", max_position_embeddings=32768, rms_norm_eps=1e-6,
    tie_word_embeddings=False, attention_bias=False, use_sliding_window=False, sliding_window=4096,
    max_window_layers=28, layer_types=None,
)  # fmt: skip
OLMO: Keys = dict(
    vocab_size=50304, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=None, hidden_act="silu", max_position_embeddings=2048, tie_word_embeddings=False,
    attention_bias=False, clip_qkv=None,
)  # fmt: skip

FAMILIES = (
    Family("llama", LLAMA, _read_llama, "LlamaForCausalLM", _write_llama),
    Family(
        "mistral",
        dict(
            vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
            num_key_value_heads=8, head_dim=None, hidden_act="silu", max_position_embeddings=131072,
            rms_norm_eps=1e-6, tie_word_embeddings=False, sliding_window=4096,
        ),
        _read_mistral,
        "MistralForCausalLM",
        _write_mistral,
    ),
    Family("qwen2", QWEN, _read_qwen2, "Qwen2ForCausalLM", _write_qwen2),
    Family("qwen3", {**QWEN, "head_dim": 128}, _read_qwen3, "Qwen3ForCausalLM", _write_qwen3),
    Family(
        "smollm3",
        dict(
            vocab_size=128256, hidden_size=2048, intermediate_size=11008, num_hidden_layers=36, num_attention_heads=16,
            num_key_value_heads=4, hidden_act="silu", max_position_embeddings=32768, rms_norm_eps=1e-6,
            tie_word_embeddings=True, attention_bias=False, mlp_bias=False, use_sliding_window=False,
            sliding_window=None, no_rope_layers=None, no_rope_layer_interval=4, layer_types=None,
            default_theta=2000000.0,
        ),
        _read_smollm3,
    ),
    Family(
        "phi3",
        dict(
            vocab_size=32064, hidden_size=3072, intermediate_size=8192, num_hidden_layers=32, num_attention_heads=32,
            num_key_value_heads=None, hidden_act="silu", max_position_embeddings=4096,
            original_max_position_embeddings=4096, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=None,
        ),
        _read_phi3,
    ),
    Family("olmo", OLMO, _read_olmo),
    Family("olmo2", {**OLMO, "rms_norm_eps": 1e-5}, _read_olmo2, "Olmo2ForCausalLM", _write_olmo2),
    Family(
        "starcoder2",
        dict(
            vocab_size=49152, hidden_size=3072, intermediate_size=12288, num_hidden_layers=30, num_attention_heads=24,
            num_key_value_heads=2, hidden_act="gelu_pytorch_tanh", max_position_embeddings=4096, norm_epsilon=1e-5,
            use_bias=True, tie_word_embeddings=True, sliding_window=None,
        ),
        _read_starcoder2,
        "Starcoder2ForCausalLM",
        _write_starcoder2,
    ),
)  # fmt: skip
