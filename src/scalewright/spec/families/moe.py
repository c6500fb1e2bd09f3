"""Mixtures of experts: Mixtral, Qwen, OLMoE, DBRX, GLM-4.5, MiniMax-M2, Grok-1; and the dense Qwen3.5.

    mlp(x) = sum over the top_k experts e of  w_e * expert_e(x)   (+ shared experts, for every token)

They differ in how weights follow from scores, in shared experts, and in which layers are dense.
"""

from __future__ import annotations

from scalewright.spec.errors import UserError
from scalewright.spec.families import common
from scalewright.spec.families.common import EXPERTS, PREDICTING, Config, Keys, ModelFamily
from scalewright.spec.families.llama import gated
from scalewright.spec.model import ModelSpec, MoE


def _read_mixtral(c: Config) -> Keys:
    return {**gated(c), **common.all_layers(c), "moe": common.experts(c)}


def _write_mixtral(m: ModelSpec) -> Keys:
    keys: Keys = {"intermediate_size": mixture(m).moe_intermediate_size, "sliding_window": m.sliding_window}
    return common.write_shape(m, **common.write_rope(m), **write_experts(m, "num_local_experts"), **keys)


def mixture(m: ModelSpec) -> MoE:
    """The mixture of a model of these families; UserError for a dense one, which they can't express."""
    if m.moe is None:
        raise UserError(f"a {m.family} model has experts", "model", "use the family of a dense model")
    return m.moe


def write_experts(m: ModelSpec, number: str = "num_experts") -> Keys:
    """How many experts there are, and how many a token has."""
    return {number: mixture(m).num_experts, "num_experts_per_tok": mixture(m).top_k}


def write_grouped_experts(m: ModelSpec) -> Keys:
    """The inverse of `grouped_experts`, without the groups, which not every file has."""
    moe = mixture(m)
    return {
        **write_experts(m, "n_routed_experts"),
        "moe_intermediate_size": moe.moe_intermediate_size,
        "n_shared_experts": moe.num_shared_experts,
        "first_k_dense_replace": moe.first_k_dense,
        "norm_topk_prob": moe.normalize_top_k,
        "routed_scaling_factor": moe.routed_scale,
    }


def _qwen_moe(c: Config, shared: bool = False) -> Keys:
    """Qwen's mixture; `shared`: with an expert for every token, behind a gate."""
    moe = common.experts(
        c,
        "moe_intermediate_size",
        every=c["decoder_sparse_step"],
        dense_layers=tuple(c["mlp_only_layers"] or ()),
        normalize_top_k=c["norm_topk_prob"],
    )
    if shared:
        width = c["shared_expert_intermediate_size"]
        other = None if width == c["moe_intermediate_size"] else width
        moe |= {"num_shared_experts": 1, "shared_intermediate_size": other, "shared_gate": True}
    return moe


def _read_qwen2_moe(c: Config) -> Keys:
    early = [(i + 1) % 2 == 1 and i < c["max_window_layers"] for i in range(c["num_hidden_layers"])]
    window = common.by_layer_types(c, early) if c["use_sliding_window"] else common.windows((), None)
    return {**gated({**c, "head_dim": None}), **window, "qkv_bias": c["qkv_bias"], "moe": _qwen_moe(c, shared=True)}


def _read_qwen3_moe(c: Config) -> Keys:
    window = common.all_layers(c) if c["use_sliding_window"] else common.windows((), None)
    return {**gated(c), **common.biases(c), **window, "qk_norm": "head", "moe": _qwen_moe(c)}


def _write_qwen_moe(m: ModelSpec) -> Keys:
    """The keys of Qwen's mixtures that 2 and 3 share."""
    moe = mixture(m)
    return {
        **common.write_rope(m),
        **write_experts(m),
        "moe_intermediate_size": moe.moe_intermediate_size,
        "decoder_sparse_step": moe.every,
        "mlp_only_layers": list(moe.dense_layers),
        "norm_topk_prob": moe.normalize_top_k,
        "use_sliding_window": m.sliding_window is not None,
        "sliding_window": m.sliding_window,
    }


def _write_qwen2_moe(m: ModelSpec) -> Keys:
    keys = {
        **_write_qwen_moe(m),
        "qkv_bias": m.qkv_bias,
        "shared_expert_intermediate_size": mixture(m).shared_size,
        "max_window_layers": m.num_hidden_layers if m.sliding_window is not None else 0,
        "layer_types": common.write_layer_types(m),
    }
    return common.write_shape(m, without=["head_dim"], **keys)


def _write_qwen3_moe(m: ModelSpec) -> Keys:
    return common.write_shape(m, **_write_qwen_moe(m), attention_bias=m.qkv_bias)


def _read_qwen3_next(c: Config) -> Keys:
    return {**_linear_and_gated(c), "moe": _qwen_moe(c, shared=True)}


def _read_qwen3_5(c: Config) -> Keys:
    return {**_linear_and_gated(c), "mtp_layers": c["num_nextn_predict_layers"] or 0}


def _read_qwen3_5_moe(c: Config) -> Keys:
    c = {**c, "intermediate_size": c["moe_intermediate_size"]}  # no layer is dense
    return {**_read_qwen3_5(c), "moe": _qwen_moe(c, shared=True)}


def _linear_and_gated(c: Config) -> Keys:
    """Three layers of Gated DeltaNet, then one of attention with a gate on its output (Qwen3-Next)."""
    every = c["full_attention_interval"]
    default = ["linear_attention" if (i + 1) % every else "" for i in range(c["num_hidden_layers"])]
    is_linear = [kind == "linear_attention" for kind in c["layer_types"] or default]
    heads = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    return {
        **gated(c),
        **common.biases(c),
        "rope": common.rope(c, 10000.0, 0.25),
        "norm_type": "rmsnorm_plus_one",
        "qk_norm": "head",
        "attention_gate": True,
        "layer_pattern": common.repeating(["deltanet+mlp" if linear else "attention+mlp" for linear in is_linear]),
        "deltanet": {**{key: c[f"linear_{key}"] for key in heads}, "conv_kernel": c["linear_conv_kernel_dim"]},
    }


def _read_olmoe(c: Config) -> Keys:
    moe = common.experts(c, normalize_top_k=c["norm_topk_prob"])
    return {**gated(c), **common.biases(c), "qk_norm": "full", "clip_qkv": c["clip_qkv"], "moe": moe}


def _write_olmoe(m: ModelSpec) -> Keys:
    keys = {"attention_bias": m.qkv_bias, "clip_qkv": m.clip_qkv, "norm_topk_prob": mixture(m).normalize_top_k}
    size: Keys = {"intermediate_size": mixture(m).moe_intermediate_size}
    return common.write_shape(m, without=["head_dim"], **common.write_rope(m), **write_experts(m), **keys, **size)


def _read_dbrx(c: Config) -> Keys:
    attention, ffn = c["attn_config"] or {}, c["ffn_config"] or {}
    size = ffn.get("ffn_hidden_size", 3584)
    moe = {
        "num_experts": ffn.get("moe_num_experts", 4),
        "top_k": ffn.get("moe_top_k", 1),
        "moe_intermediate_size": size,
        "normalize_top_k": ffn.get("moe_normalize_expert_weights", 1.0) is not None,
    }
    act = (ffn.get("ffn_act_fn") or {}).get("name", "silu")
    return {
        **common.shape({**c, "intermediate_size": size, "num_key_value_heads": attention.get("kv_n_heads", 1)}),
        "mlp_type": common.mlp_type(act),
        "norm_type": "layernorm_nobias",
        "clip_qkv": attention.get("clip_qkv"),
        "rope": common.rope(c, common.first(attention.get("rope_theta"), 10000.0)),
        "moe": moe,
    }


def _read_glm4_moe(c: Config) -> Keys:
    moe = common.grouped_experts(
        c,
        num_shared_experts=c["n_shared_experts"],
        first_k_dense=c["first_k_dense_replace"],
        router_bias=True,  # the correction of the choice, learned without gradients
        score="sigmoid",
    )
    return {
        **gated(c),
        "head_dim": common.first(c.get("head_dim"), c["hidden_size"] // c["num_attention_heads"]),
        "rope": common.rope(c, 10000.0, 0.5),
        "qkv_bias": c["attention_bias"],
        "qk_norm": "head" if c["use_qk_norm"] else None,
        "moe": moe,
        "mtp_layers": c["num_nextn_predict_layers"] or 0,
    }


def _write_glm4_moe(m: ModelSpec) -> Keys:
    keys: Keys = {
        **write_grouped_experts(m),
        "n_group": mixture(m).groups,
        "topk_group": mixture(m).top_groups,
        "attention_bias": m.qkv_bias,
        "use_qk_norm": m.qk_norm == "head",
        "num_nextn_predict_layers": m.mtp_layers,
    }
    return common.write_shape(m, **common.write_rope(m), **keys)


def _read_minimax_m2(c: Config) -> Keys:
    moe = common.experts(c, router_bias=True, score="sigmoid")  # the bias corrects the choice, without gradients
    fraction = c["rotary_dim"] / c["head_dim"] if c["rotary_dim"] else 1.0
    return {**gated(c), "rope": common.rope(c, c["default_theta"], fraction), "qk_norm": "full", "moe": moe}


def _read_grok1(c: Config) -> Keys:
    return {
        **gated(c),
        "norm_position": "both",
        "embedding_scale": c["embedding_multiplier_scale"],
        "query_scale": c["attn_output_multiplier"],
        "attention_softcap": c["max_attn_value"],
        "moe": common.experts(c, normalize_top_k=False),
    }


QWEN_PREDICTS = {"mtp_num_hidden_layers": "num_nextn_predict_layers", **EXPERTS}
DBRX_NAMES = {"d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"}
DBRX_NAMES |= {"max_seq_len": "max_position_embeddings"}
FAMILIES = (
    ModelFamily("mixtral", _read_mixtral, "MixtralForCausalLM", _write_mixtral, aliases=EXPERTS),
    ModelFamily("qwen2_moe", _read_qwen2_moe, "Qwen2MoeForCausalLM", _write_qwen2_moe, aliases=EXPERTS),
    ModelFamily("qwen3_moe", _read_qwen3_moe, "Qwen3MoeForCausalLM", _write_qwen3_moe, aliases=EXPERTS),
    ModelFamily("qwen3_next", _read_qwen3_next, aliases=EXPERTS, partial_rotary=True),
    ModelFamily("qwen3_5_text", _read_qwen3_5, aliases=QWEN_PREDICTS, partial_rotary=True),
    ModelFamily("qwen3_5_moe_text", _read_qwen3_5_moe, aliases=QWEN_PREDICTS, partial_rotary=True),
    ModelFamily("olmoe", _read_olmoe, "OlmoeForCausalLM", _write_olmoe, aliases=EXPERTS),
    ModelFamily("dbrx", _read_dbrx, aliases=DBRX_NAMES),
    ModelFamily(
        "glm4_moe", _read_glm4_moe, "Glm4MoeForCausalLM", _write_glm4_moe, partial_rotary=True, aliases=PREDICTING
    ),
    ModelFamily("minimax_m2", _read_minimax_m2, aliases=EXPERTS, partial_rotary=True),
    ModelFamily("grok-1", _read_grok1, aliases=EXPERTS),
)
