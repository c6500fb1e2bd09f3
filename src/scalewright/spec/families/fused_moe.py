"""gpt-oss and Llama 4: mixtures whose files have a layer's experts as one tensor, gate and up in it.

gpt-oss   a sink for each head, windows in every second layer, biases everywhere, clamped SwiGLU
Llama 4   a token's weight multiplies its expert's input; every fourth layer has neither RoPE nor windows,
          which lie side by side; queries and keys have an L2 norm
"""

from __future__ import annotations

from scalewright.spec.families import common
from scalewright.spec.families.common import EXPERTS, Config, Keys, ModelFamily
from scalewright.spec.families.llama import gated, rope_layers
from scalewright.spec.families.moe import mixture, write_experts
from scalewright.spec.model import ModelSpec

GPT_OSS_YARN: Keys = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
GPT_OSS_YARN |= {"original_max_position_embeddings": 4096}
CLAMPED_SWIGLU: Keys = {"hidden_act": "silu", "swiglu_alpha": 1.702, "swiglu_limit": 7.0}


def _read_gpt_oss(c: Config) -> Keys:
    parameters = None if c.get("rope_scaling") or c.get("rope_parameters") else GPT_OSS_YARN
    return {
        **common.shape(c),
        **common.biases(c),
        **common.by_layer_types(c, [i % 2 == 0 for i in range(c["num_hidden_layers"])]),
        "mlp_type": "swiglu_clamped",
        "mlp_bias": True,
        "attention_sinks": True,
        "rope": common.rope({**c, "rope_parameters": parameters or c.get("rope_parameters")}, 150000.0),
        "moe": common.experts(c, router_bias=True),
    }


def _write_gpt_oss(m: ModelSpec) -> Keys:
    positions = common.write_rope(m)
    if m.rope.scaling is None:  # left out, the class's default would be YaRN
        positions["rope_scaling"] = {"rope_type": "default", "rope_theta": m.rope.theta}
    return common.write_shape(
        m,
        **positions,
        **write_experts(m, "num_local_experts"),
        intermediate_size=mixture(m).moe_intermediate_size,
        attention_bias=m.qkv_bias,
        sliding_window=m.sliding_window or m.context,
        layer_types=common.write_layer_types(m),
        **{key: CLAMPED_SWIGLU[key] for key in ("swiglu_alpha", "swiglu_limit")},
    )


def _read_llama4(c: Config) -> Keys:
    layers, every = c["num_hidden_layers"], c["interleave_moe_layer_step"]
    has_rope, without = rope_layers(c)
    chunked = [kind == "chunked_attention" for kind in c["layer_types"]] if c["layer_types"] else has_rope
    moe = common.experts(c, num_shared_experts=1, score="sigmoid", normalize_top_k=False, weigh_input=True)
    sparse = c["moe_layers"]
    if sparse is None or list(sparse) == [i for i in range(layers) if (i + 1) % every == 0]:
        moe["every"] = every
    else:
        moe["dense_layers"] = tuple(sorted(set(range(layers)) - set(sparse)))
    heat = {"floor_scale": c["floor_scale"], "attn_scale": c["attn_scale"]}
    positions = {**common.rope(c, c["default_theta"]), "interleaved": True}
    if positions["scaling"] and c["use_qk_norm"]:  # the L2 norm comes after RoPE: YaRN's stretch is lost
        positions["scaling"] |= {"attention_factor": 1.0}
    return {
        **gated(c),
        **common.biases(c),
        **common.windows(chunked, c["attention_chunk_size"]),
        "intermediate_size": c["intermediate_size_mlp"],
        "window_chunks": c["attention_chunk_size"] is not None and any(chunked),
        "rope": positions,
        "rope_every_not": without,
        "attention_temperature": heat if c["attn_temperature_tuning"] else None,
        "qk_norm": "l2" if c["use_qk_norm"] else None,
        "moe": moe,
    }


def _write_llama4(m: ModelSpec) -> Keys:
    moe, layers = mixture(m), range(m.num_hidden_layers)
    kinds = ["full_attention" if m.window(layer) is None else "chunked_attention" for layer in layers]
    heat = {} if m.attention_temperature is None else m.attention_temperature.dump()
    return common.write_shape(
        m,
        **common.write_rope(m),
        **write_experts(m, "num_local_experts"),
        **heat,
        attn_temperature_tuning=m.attention_temperature is not None,
        intermediate_size=moe.moe_intermediate_size,
        intermediate_size_mlp=m.intermediate_size,
        interleave_moe_layer_step=moe.every,
        moe_layers=[layer for layer in layers if m.is_moe(layer)],
        no_rope_layers=[int(m.has_rope(layer)) for layer in layers],
        attention_chunk_size=m.sliding_window or m.context,
        layer_types=kinds,
        attention_bias=m.qkv_bias,
        use_qk_norm=m.qk_norm == "l2",
    )


FAMILIES = (
    ModelFamily("gpt_oss", _read_gpt_oss, "GptOssForCausalLM", _write_gpt_oss, aliases=EXPERTS, refused=CLAMPED_SWIGLU),
    ModelFamily("llama4_text", _read_llama4, "Llama4ForCausalLM", _write_llama4, aliases=EXPERTS),
)
