"""Llama and its variants: Mistral, Qwen2, Qwen3, SmolLM3, Phi-3, OLMo 1 to 3, StarCoder2, Apertus.

    x += o(attention(q, k, v of rmsnorm(x)))              Qwen2   biases on q, k, v
    x += down(silu(gate(n)) * up(n)), n = rmsnorm(x)      Qwen3   a norm on each head's q and k
                                                          OLMo-2  norms after, and over all of q and k
                                                          OLMo-3  and windows, but for every 4th layer
                                                          Apertus an MLP of two matrices around xIELU

A `_read_*` states what differs; everything else is `shape`.
"""

from __future__ import annotations

from scalewright.spec.errors import UserError
from scalewright.spec.families import common
from scalewright.spec.families.common import Config, Keys, ModelFamily
from scalewright.spec.model import ModelSpec


def gated(c: Config) -> Keys:
    """A gated MLP without biases, and rotary positions."""
    positions = common.rope(c, c.get("default_theta", 10000.0))
    return {**common.shape(c), "mlp_type": common.mlp_type(c["hidden_act"]), "rope": positions}


def _read_llama(c: Config) -> Keys:
    return {**gated(c), **common.biases(c), "mlp_bias": c["mlp_bias"]}


def _write_llama(m: ModelSpec) -> Keys:
    return {**common.write_shape(m), **common.write_rope(m), "attention_bias": m.qkv_bias, "mlp_bias": m.mlp_bias}


def _read_mistral(c: Config) -> Keys:
    return {**gated(c), **common.all_layers(c)}


def _write_mistral(m: ModelSpec) -> Keys:
    return {**common.write_shape(m), **common.write_rope(m), "sliding_window": m.sliding_window}


def _read_qwen2(c: Config) -> Keys:
    return {**gated({**c, "head_dim": None}), **_late_windows(c), "qkv_bias": True}


def _write_qwen2(m: ModelSpec) -> Keys:
    return {**common.write_shape(m, without=["head_dim"]), **common.write_rope(m), **_write_late_windows(m)}


def _read_qwen3(c: Config) -> Keys:
    return {**gated(c), **common.biases(c), **_late_windows(c), "qk_norm": "head"}


def _write_qwen3(m: ModelSpec) -> Keys:
    return {**common.write_shape(m), **common.write_rope(m), **_write_late_windows(m), "attention_bias": m.qkv_bias}


def _late_windows(c: Config) -> Keys:
    """Qwen's rule: with `use_sliding_window`, layers from `max_window_layers` on have the window."""
    if not c["use_sliding_window"]:
        return common.windows((), None)
    return common.by_layer_types(c, [i >= c["max_window_layers"] for i in range(c["num_hidden_layers"])])


def _write_late_windows(m: ModelSpec) -> Keys:
    slides = m.sliding_window is not None
    types = common.write_layer_types(m)
    return {"use_sliding_window": slides, "sliding_window": m.sliding_window, "layer_types": types}


def _read_smollm3(c: Config) -> Keys:
    has_rope, without = rope_layers(c)
    slides = c["use_sliding_window"]
    window = common.by_layer_types(c, [not turns for turns in has_rope]) if slides else common.windows((), None)
    return {**gated(c), **common.biases(c), **window, "mlp_bias": c["mlp_bias"], "rope_every_not": without}


def rope_layers(c: Config) -> tuple[list[bool], int | None]:
    """Whether each layer has RoPE, and the n where every n-th doesn't; UserError for other patterns."""
    layers = c["num_hidden_layers"]
    every = c["no_rope_layer_interval"] or layers + 1
    default = [(i + 1) % every != 0 for i in range(layers)]
    has_rope = [bool(flag) for flag in c["no_rope_layers"] or default]  # 1 in the file: RoPE
    every = has_rope.index(False) + 1 if False in has_rope else layers + 1
    if has_rope != [(i + 1) % every != 0 for i in range(layers)]:
        raise UserError("no_rope_layers is not every n-th layer", "config.json", "such a pattern is not supported")
    return has_rope, every if every <= layers else None


def _write_smollm3(m: ModelSpec) -> Keys:
    has_rope = [int(m.has_rope(layer)) for layer in range(m.num_hidden_layers)]
    keys = {**common.write_rope(m), "attention_bias": m.qkv_bias, "mlp_bias": m.mlp_bias, "no_rope_layers": has_rope}
    return common.write_shape(m, without=["head_dim"], **keys, **_write_late_windows(m))


def _read_olmo(c: Config) -> Keys:
    return {**gated(c), **common.biases(c), "norm_type": "nonparametric", "clip_qkv": c["clip_qkv"], "norm_eps": 1e-5}


def _write_olmo(m: ModelSpec) -> Keys:
    keys = {**common.write_rope(m), "attention_bias": m.qkv_bias, "clip_qkv": m.clip_qkv}
    return common.write_shape(m, without=["head_dim", "rms_norm_eps"], **keys)


def _read_olmo2(c: Config) -> Keys:
    return {**gated(c), **common.biases(c), "norm_position": "post", "qk_norm": "full"}


def _write_olmo2(m: ModelSpec) -> Keys:
    return common.write_shape(m, without=["head_dim"], **common.write_rope(m), attention_bias=m.qkv_bias)


def _read_olmo3(c: Config) -> Keys:
    usual = [(i + 1) % 4 != 0 for i in range(c["num_hidden_layers"])]
    return {**_read_olmo2(c), **common.by_layer_types(c, usual)}


def _read_apertus(c: Config) -> Keys:
    return {
        **common.shape(c),
        **common.biases(c),
        "mlp_type": common.mlp_type(c["hidden_act"], gated=False),
        "qk_norm": "head",
        "rope": common.rope(c, c["default_theta"]),
    }


def _read_starcoder2(c: Config) -> Keys:
    return {
        **common.shape({**c, "head_dim": None}),
        **common.all_layers(c),
        **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), c["use_bias"]),
        "mlp_type": common.mlp_type(c["hidden_act"], gated=False),
        "norm_type": "layernorm",
        "norm_eps": c["norm_epsilon"],
        "rope": common.rope(c),
    }


def _write_starcoder2(m: ModelSpec) -> Keys:
    keys = {"use_bias": m.mlp_bias, "norm_epsilon": m.norm_eps, "sliding_window": m.sliding_window}
    return common.write_shape(m, without=["head_dim", "rms_norm_eps"], **common.write_rope(m), **keys)


FAMILIES = (
    ModelFamily("llama", _read_llama, "LlamaForCausalLM", _write_llama),
    ModelFamily("mistral", _read_mistral, "MistralForCausalLM", _write_mistral),
    ModelFamily("qwen2", _read_qwen2, "Qwen2ForCausalLM", _write_qwen2),
    ModelFamily("qwen3", _read_qwen3, "Qwen3ForCausalLM", _write_qwen3),
    ModelFamily("smollm3", _read_smollm3, "SmolLM3ForCausalLM", _write_smollm3),
    ModelFamily("phi3", _read_mistral, partial_rotary=True),
    ModelFamily("olmo", _read_olmo, "OlmoForCausalLM", _write_olmo),
    ModelFamily("olmo2", _read_olmo2, "Olmo2ForCausalLM", _write_olmo2),
    ModelFamily("olmo3", _read_olmo3),
    ModelFamily("apertus", _read_apertus),
    ModelFamily("starcoder2", _read_starcoder2, "Starcoder2ForCausalLM", _write_starcoder2),
)
