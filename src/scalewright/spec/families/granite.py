"""IBM's Granite 4: Mamba-2 or attention in a layer, then experts and an MLP for every token (or that MLP alone).

    layer   mamba | attention  ->  shared MLP + experts (none in the dense sizes)

Attention has no positions, or RoPE in the sizes without Mamba. Its multipliers of the residual stream and of the
logits cost nothing, and are left out: these models are counted and priced, and don't run.
"""

from __future__ import annotations

from scalewright.spec.families import common
from scalewright.spec.families.common import EXPERTS, Config, Keys, ModelFamily
from scalewright.spec.model import LayerKind

KINDS: dict[str, LayerKind] = {"mamba": "mamba+mlp", "linear_attention": "mamba+mlp"}  # all others: attention


def _read(c: Config) -> Keys:
    types = c["layer_types"] or ["mamba"] * c["num_hidden_layers"]
    kinds = [KINDS.get(kind, "attention+mlp") for kind in types]
    width, routed = c["shared_intermediate_size"], c["num_experts"]
    turns = c["position_embedding_type"] == "rope"
    experts = common.experts(c, num_shared_experts=1, shared_intermediate_size=width) if routed else None
    return {
        **common.shape({**c, "intermediate_size": width}),
        **common.biases(c),
        "mlp_type": common.mlp_type(c["hidden_act"]),
        "layer_pattern": common.repeating(kinds),
        "mamba": _mamba(c) if "mamba+mlp" in kinds else None,
        "moe": experts,
        "positions": "rope" if turns else "none",
        **({"rope": common.rope(c)} if turns else {}),
        "query_scale": c["attention_multiplier"],
        "embedding_scale": None if c["embedding_multiplier"] == 1 else c["embedding_multiplier"],
    }


def _mamba(c: Config) -> Keys:
    heads, size = c["mamba_n_heads"], c["mamba_d_head"]
    return {
        "num_heads": heads,
        "head_dim": c["mamba_expand"] * c["hidden_size"] // heads if size == "auto" else size,
        "state_size": c["mamba_d_state"],
        "groups": c["mamba_n_groups"],
        "conv_kernel": c["mamba_d_conv"],
        "conv_bias": c["mamba_conv_bias"],
        "chunk_size": c["mamba_chunk_size"],
    }


FAMILIES = (
    ModelFamily(
        "granitemoehybrid",
        _read,
        aliases={**EXPERTS, "layers_block_type": "layer_types"},
        refused={"mamba_proj_bias": False},
    ),
)
