"""NVIDIA's Nemotron: dense with squared ReLU, and hybrids of Mamba-2, attention and MLPs (or experts).

Nemotron     LayerNorm times 1 + weight, RoPE on half of each head; every layer attention and MLP
Nemotron-H   RMSNorm, no positions; a layer is a single part: M Mamba  * attention  - MLP  E experts
"""

from __future__ import annotations

from scalewright.spec.errors import unknown
from scalewright.spec.families import common
from scalewright.spec.families.common import EXPERTS, Config, Keys, ModelFamily
from scalewright.spec.model import LayerKind


def _read_nemotron(c: Config) -> Keys:
    return {
        **common.shape(c),
        **common.biases(c),
        "mlp_bias": c["mlp_bias"],
        "mlp_type": common.mlp_type(c["hidden_act"], gated=False),
        "norm_type": "layernorm_plus_one",
        "norm_eps": c["norm_eps"],
        "rope": common.rope(c, fraction=0.5),
    }


# The letters of `hybrid_override_pattern`, and the names in `layers_block_type`, old and new.
KINDS: dict[str, LayerKind] = {
    "M": "mamba", "mamba": "mamba", "linear_attention": "mamba",
    "*": "attention", "attention": "attention", "full_attention": "attention",
    "-": "mlp", "mlp": "mlp",
    "E": "mlp", "moe": "mlp",
}  # fmt: skip


def _read_nemotron_h(c: Config) -> Keys:
    default = ("linear_attention", "moe", "full_attention", "mlp")
    letters = list(c["layers_block_type"] or c.get("hybrid_override_pattern") or default)
    for letter in letters:
        if letter not in KINDS:
            raise unknown("kind of layer", str(letter), KINDS, "config.json: hybrid_override_pattern")
    kinds = [KINDS[letter] for letter in letters]
    dense = [i for i, letter in enumerate(letters) if letter in ("-", "mlp")]
    return {
        **common.shape({**c, "num_hidden_layers": len(kinds)}),
        "layer_pattern": common.repeating(kinds),
        "mlp_type": common.mlp_type(c["mlp_hidden_act"], gated=False),
        "norm_eps": c["layer_norm_epsilon"],
        "positions": "none",
        "mamba": _mamba(c) if "mamba" in kinds else None,
        "moe": _experts(c, dense) if {"E", "moe"} & set(letters) else None,
        "mtp_layers": c["num_nextn_predict_layers"],
    }


def _mamba(c: Config) -> Keys:
    return {
        "num_heads": c["mamba_num_heads"],
        "head_dim": c["mamba_head_dim"],
        "state_size": c["ssm_state_size"],
        "groups": c["n_groups"],
        "conv_kernel": c["conv_kernel"],
        "conv_bias": c["use_conv_bias"],
        "chunk_size": c["chunk_size"],
    }


def _experts(c: Config, dense: list[int]) -> Keys:
    return common.grouped_experts(
        c,
        latent_size=c["moe_latent_size"],
        num_shared_experts=1,
        shared_intermediate_size=c["moe_shared_expert_intermediate_size"],
        dense_layers=tuple(dense),
        router_bias=True,  # the correction of the choice, learned without gradients
        score="sigmoid",
    )


NAMES = {"layer_types": "layers_block_type", "mamba_n_groups": "n_groups", "mamba_chunk_size": "chunk_size", **EXPERTS}
NAMES |= {"mamba_d_conv": "conv_kernel", "mamba_conv_bias": "use_conv_bias"}
BIASES = ("use_bias", "mlp_bias", "attention_bias", "mamba_proj_bias")
ONLY: Keys = {**dict.fromkeys(BIASES, False), "sliding_window": None}
FAMILIES = (
    ModelFamily("nemotron", _read_nemotron, partial_rotary=True),
    ModelFamily("nemotron_h", _read_nemotron_h, aliases=NAMES, refused=ONLY),
)
