"""Gemma 1 to 4 (text): tied heads, GeGLU, norms that multiply by 1 + weight, scaled embeddings.

Gemma 2: norms before and after, softcaps, a sliding window in every second layer
Gemma 3: a norm on each head's q and k, windows and another RoPE base in five of six layers
Gemma 4: the sixth has fewer, larger KV heads, whose values are their keys; experts beside the MLP
"""

from __future__ import annotations

import math

from scalewright.spec.errors import UserError
from scalewright.spec.families import common
from scalewright.spec.families.common import Config, Keys, ModelFamily
from scalewright.spec.model import ModelSpec


def _common(c: Config) -> Keys:
    act = common.first(c.get("hidden_activation"), c.get("hidden_act"), "gelu_pytorch_tanh")
    return {
        **common.shape(c),
        "mlp_type": common.mlp_type("gelu_pytorch_tanh" if act == "gelu" else act),  # gelu in old files means tanh
        "norm_type": "rmsnorm_plus_one",
        "embedding_scale": math.sqrt(c["hidden_size"]),
        **common.biases(c),
    }


def _query_scale(c: Config) -> float | None:
    scalar = c["query_pre_attn_scalar"]
    return None if scalar == c["head_dim"] else float(scalar) ** -0.5


def _read_gemma(c: Config) -> Keys:
    return {**_common(c), "rope": common.rope(c)}


def _read_gemma2(c: Config) -> Keys:
    return {
        **_common(c),
        **common.by_layer_types(c, [i % 2 == 0 for i in range(c["num_hidden_layers"])]),
        "norm_position": "both",
        "rope": common.rope(c),
        "query_scale": _query_scale(c),
        "attention_softcap": c["attn_logit_softcapping"],
        "logit_softcap": c["final_logit_softcapping"],
    }


def _read_gemma3(c: Config) -> Keys:
    every = c["sliding_window_pattern"]
    nested = "sliding_attention" in (c.get("rope_parameters") or {})
    local = common.rope_parameters(c, "sliding_attention").get("rope_theta") if nested else None
    base = common.rope(c, 1_000_000.0)
    if base["scaling"]:
        base["scaling"].pop("truncate", None)  # transformers looks for it beside the kinds of layers
    return {
        **_common(c),
        **common.by_layer_types(c, [(i + 1) % every != 0 for i in range(c["num_hidden_layers"])]),
        "norm_position": "both",
        "qk_norm": "head",
        "rope": {**base, "local_theta": float(common.first(local, c.get("rope_local_base_freq"), 10_000.0))},
        "query_scale": _query_scale(c),
        "logit_softcap": c["final_logit_softcapping"],
    }


def _read_gemma4(c: Config) -> Keys:
    if c.get("hidden_size_per_layer_input"):
        how = "use a model without them: Gemma 4 12B, 26B-A4B or 31B"
        raise UserError("embeddings for each layer (hidden_size_per_layer_input) are not supported", "config.json", how)
    layers = c["num_hidden_layers"]
    sliding = [(i + 1) % 6 != 0 and i < layers - 1 for i in range(layers)]
    parameters = common.rope_parameters(c)
    return {
        **_common(c),
        **(common.by_layer_types(c, ()) if c["layer_types"] else common.windows(sliding, c["sliding_window"])),
        "norm_position": "both",
        "qk_norm": "qkv",
        "query_scale": 1.0,
        "rope": {
            "theta": float(parameters.get("rope_theta", 1_000_000.0)),
            "fraction": float(parameters.get("partial_rotary_factor", 0.25)),  # where there is no window
            "local_theta": float(common.rope_parameters(c, "sliding_attention").get("rope_theta", 10_000.0)),
        },
        "logit_softcap": c["final_logit_softcapping"],
        "global_attention": _global_attention(c),
        "moe": _gemma4_experts(c) if c.get("enable_moe_block") else None,
    }


def _global_attention(c: Config) -> Keys:
    """The heads of layers without a window: from keys of their own, or from transformers' list of layers."""
    listed = next(iter((c.get("per_layer_config") or {}).values()), None)
    if listed is None:
        global_heads = c["num_global_key_value_heads"] if c["attention_k_eq_v"] else None
        heads = common.first(global_heads, c["num_key_value_heads"])
        listed = {"num_key_value_heads": heads, "head_dim": c["global_head_dim"]}
    return {
        "num_key_value_heads": listed.get("num_key_value_heads", c["num_key_value_heads"]),
        "head_dim": listed.get("head_dim", c["head_dim"]),
        "values_are_keys": c["attention_k_eq_v"],
    }


def _gemma4_experts(c: Config) -> Keys:
    """Experts beside the dense MLP, which is a shared expert."""
    shared = {"num_shared_experts": 1, "shared_intermediate_size": c["intermediate_size"], "branch_norms": True}
    return common.experts({**c, "num_experts_per_tok": c["top_k_experts"]}, "moe_intermediate_size", **shared)


def _write_common(m: ModelSpec) -> Keys:
    keys = {**common.write_shape(m), **common.write_rope(m), "attention_bias": m.qkv_bias}
    keys["hidden_activation"] = keys["hidden_act"]
    return keys


def _write_gemma2(m: ModelSpec) -> Keys:
    scale = m.query_scale
    return {
        **_write_common(m),
        "sliding_window": m.sliding_window or m.context,  # its class wants one, though no layer has it
        "layer_types": common.write_layer_types(m),
        "query_pre_attn_scalar": m.dim_per_head if scale is None else round(scale**-2),
        "attn_logit_softcapping": m.attention_softcap,
        "final_logit_softcapping": m.logit_softcap,
    }


def _write_gemma3(m: ModelSpec) -> Keys:
    return {**_write_gemma2(m), "rope_local_base_freq": m.rope.local_theta}


CAUSAL: Keys = {"use_bidirectional_attention": False}

GEMMA4: Keys = {"use_bidirectional_attention": "vision", "num_kv_shared_layers": 0}

FAMILIES = (
    ModelFamily("gemma", _read_gemma, "GemmaForCausalLM", _write_common, refused=CAUSAL),
    ModelFamily("gemma2", _read_gemma2, "Gemma2ForCausalLM", _write_gemma2, refused=CAUSAL),
    ModelFamily("gemma4_text", _read_gemma4, refused=GEMMA4, partial_rotary=True),
    ModelFamily("gemma4_unified_text", _read_gemma4, refused=GEMMA4, partial_rotary=True),
    ModelFamily("gemma3_text", _read_gemma3, "Gemma3ForCausalLM", _write_gemma3, refused=CAUSAL),
)
