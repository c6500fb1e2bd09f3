"""One table-like reader per family: what its config.json says, in the words of `ModelSpec`.

    config.json --defaults of the family--> full dict --read--> keys of ModelSpec
    ModelSpec   --write (families that run)--> config.json

A file holds families that resemble one another; `FAMILIES` is the list of them all.
"""

from __future__ import annotations

from scalewright.spec.families import deepseek, gemma, gpt, llama, moe, nemotron
from scalewright.spec.families.common import Family

FAMILIES: dict[str, Family] = {
    family.name: family
    for module in (gpt, llama, gemma, moe, deepseek, nemotron)
    for family in module.FAMILIES
}

__all__ = ["FAMILIES", "Family"]
