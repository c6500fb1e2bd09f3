"""A tiny configuration of every family that runs, with the options that change its mathematics.

Each entry is (transformers' config class, its arguments). Weights are random, biases and norms too, so that a
part that is left out shows in the logits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def _rope(kind: str, **keys: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, **keys}


_LLAMA_3 = _rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
_YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=64)  # the ramp ends between dimensions
_GPT2 = {"vocab_size": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
_NEOX = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
_BLOOM = {"vocab_size": 96, "hidden_size": 32, "n_layer": 3}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LATENT = {
    "q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
    "num_key_value_heads": 4,
}  # fmt: skip
_SHARED_EXPERTS = {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
}  # fmt: skip
_GROUPS = {"n_group": 4, "topk_group": 2}
_GPT_OSS = {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 5}
_LLAMA_4 = {
    "num_local_experts": 4, "intermediate_size_mlp": 40, "head_dim": 16, "no_rope_layer_interval": 3,
    "floor_scale": 4, "attn_scale": 0.5,
}  # fmt: skip
_GEMMA_2 = {"sliding_window": 5, "query_pre_attn_scalar": 20, "head_dim": 16}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", _GPT2),
    "gpt2-untied-inner": ("GPT2Config", {**_GPT2, "tie_word_embeddings": False, "n_inner": 40}),
    "neox-partial": ("GPTNeoXConfig", {**_NEOX, "rotary_pct": 0.25}),
    "neox-sequential": (
        "GPTNeoXConfig",
        {**_NEOX, "use_parallel_residual": False, "rotary_pct": 1.0, "hidden_act": "gelu_new"},
    ),
    "bloom": ("BloomConfig", {**_BLOOM, "n_head": 4}),
    "bloom-6-heads": ("BloomConfig", {**_BLOOM, "hidden_size": 48, "n_head": 6}),  # not a power of two
    "llama-gqa": ("LlamaConfig", SMALL),
    "llama-mha-tied": ("LlamaConfig", {**SMALL, "num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama-mqa-biases": (
        "LlamaConfig",
        {**SMALL, "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True, "head_dim": 24},
    ),
    "llama-linear": ("LlamaConfig", {**SMALL, "rope_parameters": _rope("linear", factor=3.0)}),
    "llama-dynamic": (
        "LlamaConfig",
        {**SMALL, "max_position_embeddings": 16, "rope_parameters": _rope("dynamic", factor=2.0)},
    ),
    "llama-llama3": ("LlamaConfig", {**SMALL, "rope_parameters": _LLAMA_3}),
    "llama-yarn": ("LlamaConfig", {**SMALL, "rope_parameters": _YARN}),
    "llama-yarn-mscale": (
        "LlamaConfig",
        {**SMALL, "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.7, "truncate": False}},
    ),
    "mistral-window": ("MistralConfig", {**SMALL, "sliding_window": 5}),
    "mistral-head-dim": ("MistralConfig", {**SMALL, "sliding_window": None, "head_dim": 12}),
    "qwen2": ("Qwen2Config", {**SMALL, "tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2Config", {**SMALL, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", {**SMALL, "head_dim": 16}),
    "gemma": ("GemmaConfig", {**SMALL, "num_key_value_heads": 1, "head_dim": 16}),
    "gemma2": ("Gemma2Config", {**SMALL, **_GEMMA_2, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5}),
    "gemma3": ("Gemma3TextConfig", {**SMALL, **_GEMMA_2, "num_hidden_layers": 7}),
    "gemma3-linear": (
        "Gemma3TextConfig",
        {
            **SMALL,
            **_GEMMA_2,
            "num_hidden_layers": 6,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "olmo2": ("Olmo2Config", SMALL),
    "olmo-clip": ("OlmoConfig", {**SMALL, "clip_qkv": 0.5}),
    "smollm3": (
        "SmolLM3Config",
        {**SMALL, "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 5},
    ),
    "mixtral": ("MixtralConfig", {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2-moe": (
        "Qwen2MoeConfig",
        {**SMALL, **_EXPERTS, "shared_expert_intermediate_size": 40, "mlp_only_layers": [1]},
    ),
    "qwen3-moe": ("Qwen3MoeConfig", {**SMALL, **_EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "qwen3-moe-every-other": ("Qwen3MoeConfig", {**SMALL, **_EXPERTS, "decoder_sparse_step": 2}),
    "olmoe": ("OlmoeConfig", {**SMALL, **_EXPERTS, "clip_qkv": 0.5}),
    "glm4-moe": (
        "Glm4MoeConfig",
        {
            **SMALL,
            **_SHARED_EXPERTS,
            **_GROUPS,
            "norm_topk_prob": True,
            "use_qk_norm": True,
            "num_nextn_predict_layers": 0,
        },
    ),
    "deepseek-v2": ("DeepseekV2Config", {**SMALL, **_LATENT, **_SHARED_EXPERTS}),
    "deepseek-v2-lite-groups": (
        "DeepseekV2Config",
        {
            **SMALL,
            **_LATENT,
            **_SHARED_EXPERTS,
            **_GROUPS,
            "q_lora_rank": None,
            "v_head_dim": 20,
            "topk_method": "group_limited_greedy",
        },
    ),
    "deepseek-v2-yarn": (
        "DeepseekV2Config",
        {**SMALL, **_LATENT, **_SHARED_EXPERTS, "rope_parameters": {**_YARN, "mscale": 0.7, "mscale_all_dim": 0.7}},
    ),
    "deepseek-v3": ("DeepseekV3Config", {**SMALL, **_LATENT, **_SHARED_EXPERTS, **_GROUPS, "num_mtp_layers": 0}),
    "deepseek-v3-yarn": (
        "DeepseekV3Config",
        {
            **SMALL,
            **_LATENT,
            **_SHARED_EXPERTS,
            **_GROUPS,
            "num_mtp_layers": 0,
            "rope_interleave": False,
            "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "gpt-oss": ("GptOssConfig", {**SMALL, **_GPT_OSS, "rope_parameters": _rope("default")}),
    "gpt-oss-yarn": ("GptOssConfig", {**SMALL, **_GPT_OSS, "rope_parameters": {**_YARN, "truncate": False}}),
    "llama4": ("Llama4TextConfig", {**SMALL, **_LLAMA_4, "interleave_moe_layer_step": 2, "attention_chunk_size": 5}),
    "llama4-two-experts": (
        "Llama4TextConfig",
        {
            **SMALL,
            **_LLAMA_4,
            "num_experts_per_tok": 2,
            "moe_layers": [0, 1],
            "use_qk_norm": False,
            "attention_bias": True,
            "attention_chunk_size": 7,
            "rope_parameters": _LLAMA_3,
        },
    ),
    "starcoder2": ("Starcoder2Config", {**SMALL, "sliding_window": 7}),
    "starcoder2-no-bias": ("Starcoder2Config", {**SMALL, "use_bias": False, "tie_word_embeddings": False}),
}


def make(case: str, seed: int = 0) -> nn.Module:
    """The case as transformers builds it, in fp32 and with every parameter random."""
    kind, arguments = CASES[case]
    config = getattr(transformers, kind)(**arguments, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:  # norms and biases stay near their start
                parameter.add_(noise, alpha=0.1)
            else:  # logits of order 1; blocks outweigh the embedding, or a tied head would repeat its input
                gain = 2.0 if ".0." in name or ".1." in name or ".2." in name else 0.5
                parameter.copy_(noise * gain * parameter.shape[-1] ** -0.5)
    return model


def save(case: str, folder: Path, seed: int = 0, **keys: Any) -> nn.Module:
    """As `make`, saved as safetensors in `folder`."""
    model = make(case, seed)
    model.save_pretrained(folder, **keys)
    return model


def tokens(batch: int = 2, length: int = 24, vocab: int = 96, seed: int = 1) -> torch.Tensor:
    """Random token ids [batch, length]."""
    return torch.randint(0, vocab, (batch, length), generator=torch.Generator().manual_seed(seed))
