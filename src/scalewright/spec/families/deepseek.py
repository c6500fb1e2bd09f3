"""DeepSeek-V2, DeepSeek-V3 and Kimi K2: latent attention, many small experts and shared ones.

q = up_q(norm(down_q(x)))
k, v = up_kv(norm(c)),  [c, k_rope] = down_kv(x)        only c and k_rope are cached
"""

from __future__ import annotations

from scalewright.spec.families.common import (
    EXPERTS,
    Config,
    Keys,
    ModelFamily,
    grouped_experts,
    mlp_type,
    rope,
    shape,
)


def _read_v2(c: Config) -> Keys:
    mla = {
        "q_lora_rank": c["q_lora_rank"],
        "kv_lora_rank": c["kv_lora_rank"],
        "qk_nope_head_dim": c["qk_nope_head_dim"],
        "qk_rope_head_dim": c["qk_rope_head_dim"],
        "v_head_dim": c["v_head_dim"],
    }
    moe = grouped_experts(
        c, num_shared_experts=c["n_shared_experts"] or 0, first_k_dense=c["first_k_dense_replace"]
    )
    return {
        **shape({**c, "head_dim": None}),
        "num_key_value_heads": c["num_attention_heads"],  # every head has its own, made from the latent
        "mlp_type": mlp_type(c["hidden_act"]),
        "rope": rope(c),
        "qkv_bias": c["attention_bias"],
        "o_bias": c["attention_bias"],
        "mla": mla,
        "moe": moe if c["num_experts"] else None,
    }


def _read_v3(c: Config) -> Keys:
    keys = _read_v2(c)
    if keys["moe"]:
        # the bias corrects the choice of experts, without gradients
        keys["moe"] |= {"router_bias": True, "score": "sigmoid"}
    return {**keys, "mtp_layers": c["num_nextn_predict_layers"] or 0}


ONLY: Keys = {"moe_layer_freq": 1, "mlp_bias": False}
NAMES = {"num_mtp_layers": "num_nextn_predict_layers", **EXPERTS}

FAMILIES = (
    ModelFamily("deepseek_v2", _read_v2, aliases=NAMES, refused=ONLY),
    ModelFamily("deepseek_v3", _read_v3, aliases=NAMES, refused=ONLY),
    ModelFamily("kimi_k2", _read_v3, aliases=NAMES, refused=ONLY),
)
