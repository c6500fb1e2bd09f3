"""One reader per family: from the keys of its config.json to those of `ModelSpec`.

    config.json --defaults of the family--> full dict --read--> keys of ModelSpec
    ModelSpec   --write (families that run)--> config.json

A file contains similar families; `FAMILIES` is the table of all.
"""

from __future__ import annotations

from scalewright.spec.families import deepseek, fused_moe, gemma, gpt, llama, moe, nemotron
from scalewright.spec.families.common import ModelFamily

FAMILIES: dict[str, ModelFamily] = {
    family.name: family
    for module in (gpt, llama, gemma, moe, fused_moe, deepseek, nemotron)
    for family in module.FAMILIES
}

__all__ = ["FAMILIES", "ModelFamily"]
