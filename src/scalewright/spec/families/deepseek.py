"""DeepSeek-V2, DeepSeek-V3 and Kimi K2: latent attention, many small experts and shared ones.

q = up_q(norm(down_q(x)))
k, v = up_kv(norm(c)),  [c, k_rope] = down_kv(x)        only c and k_rope are cached
"""

from __future__ import annotations

import math
from typing import Any

from scalewright.spec.errors import UserError
from scalewright.spec.families.common import (
    EXPERTS,
    Config,
    Keys,
    ModelFamily,
    grouped_experts,
    mlp_type,
    rope,
    shape,
    write_rope,
    write_shape,
)
from scalewright.spec.model import ModelSpec


def _read(c: Config, interleaved: bool, **of_experts: Any) -> Keys:
    mla = {
        "q_lora_rank": c["q_lora_rank"],
        "kv_lora_rank": c["kv_lora_rank"],
        "qk_nope_head_dim": c["qk_nope_head_dim"],
        "qk_rope_head_dim": c["qk_rope_head_dim"],
        "v_head_dim": c["v_head_dim"],
    }
    moe = grouped_experts(
        c, num_shared_experts=c["n_shared_experts"] or 0, first_k_dense=c["first_k_dense_replace"], **of_experts
    )
    positions = rope(c) | {"interleaved": interleaved}
    return {
        **shape({**c, "head_dim": None}),
        "num_key_value_heads": c["num_attention_heads"],  # every head has its own, made from the latent
        "mlp_type": mlp_type(c["hidden_act"]),
        "rope": positions,
        "query_scale": _query_scale(mla, positions["scaling"]),
        "qkv_bias": c["attention_bias"],
        "o_bias": c["attention_bias"],
        "mla": mla,
        "moe": moe if c["num_experts"] else None,
    }


def _query_scale(mla: Keys, scaling: Keys | None) -> float | None:
    """The scores' factor where YaRN stretches them (`mscale_all_dim`): its stretch, twice; else None.

    Peng et al. 2023 §3.4; DeepSeek apply it to queries and keys, in place of the angles' tables.
    """
    if scaling is None or not scaling["mscale_all_dim"] or scaling["factor"] <= 1:
        return None
    stretch = 0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"]) + 1.0
    return float((mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"]) ** -0.5 * stretch**2)


def _read_v2(c: Config) -> Keys:
    if c["topk_method"] == "greedy":
        c = {**c, "n_group": None, "topk_group": None}
    return _read(c, interleaved=True)


def _read_v3(c: Config) -> Keys:
    # the bias corrects the choice of experts, without gradients
    keys = _read(c, c["rope_interleave"], router_bias=True, score="sigmoid")
    return {**keys, "mtp_layers": c["num_nextn_predict_layers"] or 0}


def _write(m: ModelSpec) -> Keys:
    """What both versions' files have."""
    mla, moe = m.mla, m.moe
    if mla is None or moe is None:
        raise UserError(f"a {m.family} model has latent attention and experts", "model", "use another family")
    return write_shape(
        m,
        without=("head_dim",),
        **write_rope(m),
        attention_bias=m.qkv_bias,
        q_lora_rank=mla.q_lora_rank,
        kv_lora_rank=mla.kv_lora_rank,
        qk_nope_head_dim=mla.qk_nope_head_dim,
        qk_rope_head_dim=mla.qk_rope_head_dim,
        v_head_dim=mla.v_head_dim,
        n_routed_experts=moe.num_experts,
        num_experts_per_tok=moe.top_k,
        moe_intermediate_size=moe.moe_intermediate_size,
        n_shared_experts=moe.num_shared_experts,
        first_k_dense_replace=moe.first_k_dense,
        norm_topk_prob=moe.normalize_top_k,
        routed_scaling_factor=moe.routed_scale,
    )


def _write_v2(m: ModelSpec) -> Keys:
    moe = m.moe
    grouped = moe is not None and moe.groups > 1
    own: Keys = {"topk_method": "group_limited_greedy" if grouped else "greedy"}
    if moe is not None and grouped:
        own |= {"n_group": moe.groups, "topk_group": moe.top_groups}
    return _write(m) | own


def _write_v3(m: ModelSpec) -> Keys:
    moe = m.moe
    own: Keys = {"rope_interleave": m.rope.interleaved, "num_nextn_predict_layers": m.mtp_layers}
    if moe is not None:
        own |= {"n_group": moe.groups, "topk_group": moe.top_groups}
    return _write(m) | own


ONLY: Keys = {"moe_layer_freq": 1, "mlp_bias": False}
ONLY_V2 = {**ONLY, "norm_topk_prob": False}  # transformers ignores it; DeepSeek's own code scales only without it
NAMES = {"num_mtp_layers": "num_nextn_predict_layers", **EXPERTS}

FAMILIES = (
    ModelFamily("deepseek_v2", _read_v2, "DeepseekV2ForCausalLM", _write_v2, aliases=NAMES, refused=ONLY_V2),
    ModelFamily("deepseek_v3", _read_v3, "DeepseekV3ForCausalLM", _write_v3, aliases=NAMES, refused=ONLY),
    ModelFamily("kimi_k2", _read_v3, aliases=NAMES, refused=ONLY),
)
