"""One reader per family: from the keys of its config.json to those of `ModelSpec`.

    config.json --defaults of the family--> full dict --read--> keys of ModelSpec
    ModelSpec   --write (families that run)--> config.json

A file contains similar families; `FAMILIES` is the table of all.
"""

from __future__ import annotations

from scalewright.spec.families import deepseek, fused_moe, gemma, gpt, granite, llama, moe, nemotron
from scalewright.spec.families.common import ModelFamily

FAMILIES: dict[str, ModelFamily] = {
    family.name: family
    for module in (gpt, llama, gemma, moe, fused_moe, deepseek, nemotron, granite)
    for family in module.FAMILIES
}

# Families with a part whose parameters or seconds nothing here counts: refused by name, never read as a relative
UNPRICED = {
    "deepseek_v32": "sparse attention (keys that an indexer chooses)",
    "deepseek_v4": "compressed sparse attention and hyper-connections",
    "glm_moe_dsa": "sparse attention (keys that an indexer chooses)",
    "minimax_m3_vl": "sparse attention",
    "kimi_linear": "Kimi delta attention",
    "kimi_k3": "Kimi delta attention",
    "lfm2": "gated short convolutions",
    "lfm2_moe": "gated short convolutions",
}
# What names of these models contain
UNPRICED_NAMES = {
    "deepseek-v3.2": "deepseek_v32", "deepseek-v4": "deepseek_v4", "glm-5": "glm_moe_dsa",
    "minimax-m3": "minimax_m3_vl", "kimi-linear": "kimi_linear", "kimi-k3": "kimi_k3", "lfm2": "lfm2",
}  # fmt: skip

__all__ = ["FAMILIES", "UNPRICED", "UNPRICED_NAMES", "ModelFamily"]
