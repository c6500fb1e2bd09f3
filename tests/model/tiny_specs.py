"""Small models of ours that between them use every part of the decoder."""

from __future__ import annotations

import torch

from scalewright.model.decoder import Decoder
from scalewright.model.init import initialize
from scalewright.spec.model import ModelSpec

_BASE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "context": 64,
}
_PLAIN = {**_BASE, "num_key_value_heads": 4, "mlp_type": "gelu_tanh", "norm_type": "layernorm"}
_BIASED = {"qkv_bias": True, "o_bias": True, "mlp_bias": True}
_GEMMA = {"norm_type": "rmsnorm_plus_one", "norm_position": "both", "mlp_type": "geglu_tanh", "head_dim": 16}
_SLIDING = {"sliding_window": 5, "window_pattern": (True, False)}
_MLA = {"q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}

SPECS: dict[str, ModelSpec] = {
    name: ModelSpec.parse({"name": name, **keys})
    for name, keys in {
        "llama": _BASE,
        "tied": {**_BASE, "tie_word_embeddings": True},
        "mqa-wide-heads": {**_BASE, "num_key_value_heads": 1, "head_dim": 20, **_BIASED},
        "gpt2": {**_PLAIN, **_BIASED, "family": "gpt2", "positions": "learned", "tie_word_embeddings": True},
        "neox": {**_PLAIN, **_BIASED, "family": "gpt_neox", "residual": "parallel", "rope": {"fraction": 0.25}},
        "shared-norm": {**_PLAIN, "residual": "parallel_shared", "norm_type": "layernorm_nobias"},
        "bloom": {**_PLAIN, **_BIASED, "family": "bloom", "positions": "alibi", "embedding_norm": True},
        "qwen3": {**_BASE, "family": "qwen3", "qk_norm": "head"},
        "olmo2": {**_BASE, "family": "olmo2", "qk_norm": "full", "norm_position": "post"},
        "gemma2": {
            **_BASE,
            **_GEMMA,
            **_SLIDING,
            "attention_softcap": 2.0,
            "logit_softcap": 3.0,
            "embedding_scale": 5.6,
        },
        "gemma3": {**_BASE, **_GEMMA, **_SLIDING, "qk_norm": "head", "rope": {"theta": 1e6, "local_theta": 1e4}},
        "yarn": {**_BASE, "rope": {"scaling": {"kind": "yarn", "factor": 4.0, "original_context": 16}}},
        "sometimes-no-rope": {**_BASE, "rope_every_not": 2, "clip_qkv": 1.0},
        "nonparametric": {**_BASE, "norm_type": "nonparametric", "final_norm": False},
        "latent": {**_BASE, "num_key_value_heads": 4, "mla": _MLA, "rope": {"interleaved": True}},
        "latent-wide-values": {
            **_BASE,
            **_SLIDING,
            "num_key_value_heads": 4,
            "mla": {**_MLA, "q_lora_rank": None, "v_head_dim": 20},
            "attention_softcap": 2.0,
        },
        "sinks": {**_BASE, **_SLIDING, "attention_sinks": True, "mlp_type": "swiglu_clamped"},
        "windows-side-by-side": {
            **_BASE,
            **_SLIDING,
            "window_chunks": True,
            "qk_norm": "l2",
            "rope": {"interleaved": True},
            "rope_every_not": 2,
            "attention_temperature": {"floor_scale": 4, "attn_scale": 0.5},
        },
        "head-bias": {**_BASE, "head_bias": True, "tie_word_embeddings": True, "mlp_type": "relu2"},
    }.items()
}


def make(name: str, seed: int = 0) -> Decoder:
    """The model with its first weights, spread wide enough that every part shows in the logits."""
    model = Decoder(SPECS[name])
    initialize(model, SPECS[name], seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 8.0 if parameter.dim() > 1 else 1.0
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(parameter * spread + (0.0 if parameter.dim() > 1 else 0.1) * noise)
    return model


def tokens(batch: int = 2, length: int = 24, seed: int = 1) -> torch.Tensor:
    """Random token ids [batch, length]."""
    return torch.randint(0, 64, (batch, length), generator=torch.Generator().manual_seed(seed))
