"""DeepSeek-V2, DeepSeek-V3, Kimi K2 and Mistral Large 3: latent attention, many small experts and shared ones.

q = up_q(norm(down_q(x)))
k, v = up_kv(norm(c)),  [c, k_rope] = down_kv(x)        only c and k_rope are cached
"""

from __future__ import annotations

import math
from typing import Any

from scalewright.spec.errors import UserError
from scalewright.spec.families import common
from scalewright.spec.families.common import PREDICTING, Config, Keys, ModelFamily
from scalewright.spec.families.moe import mixture, write_grouped_experts
from scalewright.spec.model import MLA, ModelSpec


def _read(c: Config, interleaved: bool, **of_experts: Any) -> Keys:
    mla = {key: c[key] for key in MLA.model_fields}
    moe = common.grouped_experts(
        c, num_shared_experts=c["n_shared_experts"] or 0, first_k_dense=c["first_k_dense_replace"], **of_experts
    )
    positions = common.rope(c) | {"interleaved": interleaved}
    return {
        **common.shape({**c, "head_dim": None}),
        **common.biases(c),
        "num_key_value_heads": c["num_attention_heads"],  # every head has its own, made from the latent
        "mlp_type": common.mlp_type(c["hidden_act"]),
        "rope": positions,
        "query_scale": _query_scale(mla, positions["scaling"]),
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


def _read_mistral4(c: Config) -> Keys:
    """Queries grow with the position as Llama 4's, which costs nothing and is left out: these models don't run."""
    keys = _read(c, c["rope_interleave"])
    return {**keys, "rope": keys["rope"] | {"fraction": 1.0}}  # its file states the turning share of a whole head


def _write(m: ModelSpec) -> Keys:
    if m.mla is None or m.moe is None:
        raise UserError(f"a {m.family} model has latent attention and experts", "model", "use another family")
    keys = {**common.write_rope(m), "attention_bias": m.qkv_bias, **m.mla.dump(), **write_grouped_experts(m)}
    return common.write_shape(m, without=("head_dim",), **keys)


def _write_v2(m: ModelSpec) -> Keys:
    keys, moe = _write(m), mixture(m)
    if moe.groups <= 1:
        return keys | {"topk_method": "greedy"}
    return keys | {"topk_method": "group_limited_greedy", "n_group": moe.groups, "topk_group": moe.top_groups}


def _write_v3(m: ModelSpec) -> Keys:
    keys, moe = _write(m), mixture(m)
    keys |= {"rope_interleave": m.rope.interleaved, "num_nextn_predict_layers": m.mtp_layers}
    return keys | {"n_group": moe.groups, "topk_group": moe.top_groups}


ONLY: Keys = {"moe_layer_freq": 1, "mlp_bias": False}
ONLY_V2 = {**ONLY, "norm_topk_prob": False}  # transformers ignores it; DeepSeek's own code scales only without it

FAMILIES = (
    ModelFamily("deepseek_v2", _read_v2, "DeepseekV2ForCausalLM", _write_v2, aliases=PREDICTING, refused=ONLY_V2),
    ModelFamily("deepseek_v3", _read_v3, "DeepseekV3ForCausalLM", _write_v3, aliases=PREDICTING, refused=ONLY),
    ModelFamily("kimi_k2", _read_v3, aliases=PREDICTING, refused=ONLY),
    ModelFamily("mistral4", _read_mistral4, aliases=PREDICTING, partial_rotary=True),
)
