"""The smallest model of the comparisons: for trying their plumbing, not for speed."""

from __future__ import annotations

from scalewright.spec.model import ModelSpec

TINY = ModelSpec.parse(
    {
        "name": "tiny",
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
)
