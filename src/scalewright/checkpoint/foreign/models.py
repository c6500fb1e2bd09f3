"""The model of another trainer's checkpoint: what the user named, a config.json beside it, or its settings.

    --model llama-3.2-1b      always wins
    config.json               in the folder, or in one of the two above it
    Megatron's arguments      common.pt        as keys of a config.json, which `spec/huggingface.py` reads
    nanotron's settings       model_config.json

torchtitan and plain DCP folders have shapes only, from which the number of heads can't be known.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalewright.spec.errors import UserError
from scalewright.spec.huggingface import read_huggingface
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec
from scalewright.spec.trains import check_runs


def model_of(folder: Path, facts: Mapping[str, Any], model: str | None) -> ModelSpec:
    """The spec of a checkpoint; raises UserError where nothing has it, or it doesn't run here."""
    beside = next((p for p in (folder, *folder.parents[:2]) if (p / "config.json").is_file()), None)
    if model is not None:
        spec = load_model_spec(model)
    elif beside is not None:
        spec = load_model_spec(beside)
    elif "num_layers" in facts or "num_hidden_layers" in facts:
        spec = _from_settings(facts, str(folder))
    else:
        how = "add --model with the preset, config.json or YAML file of the model that was trained"
        why = f" ({facts['unread']})" if "unread" in facts else ""
        raise UserError(f"this checkpoint doesn't have its model's settings{why}", str(folder), how)
    check_runs(spec)
    return spec


def _from_settings(facts: Mapping[str, Any], where: str) -> ModelSpec:
    """The spec of a trainer's own settings; raises UserError where one is missing, or can't be."""
    megatron = "num_layers" in facts
    try:
        config = _from_megatron(facts, where) if megatron else _from_nanotron(facts)
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise UserError(f"its settings don't make a model ({error!r})", where, "name the model with --model") from None
    return read_huggingface(config, where, "megatron" if megatron else "nanotron")


# Arguments that the conversion of a Llama-like model rests on: any other value is refused.
_EXPECTED: dict[str, tuple[Any, ...]] = {
    "normalization": ("RMSNorm",),
    "position_embedding_type": ("rope",),
    "swiglu": (True,),
    "add_bias_linear": (False,),
    "multi_latent_attention": (False, None),
    "apply_layernorm_1p": (False, None),
    "use_rope_scaling": (False, None),
    "rotary_percent": (1.0, None),
    "rotary_interleaved": (False, None),
    "rotary_seq_len_interpolation_factor": (None,),
    "no_rope_freq": (None,),
    "window_size": (None,),
    "mtp_num_layers": (None, 0),
}
# The same of a mixture's: as Mixtral and Qwen 3 route, a softmax over the chosen experts, in every layer.
_EXPECTED_OF_EXPERTS: dict[str, tuple[Any, ...]] = {
    "add_qkv_bias": (False, None),
    "moe_router_pre_softmax": (False, None),
    "moe_router_score_function": ("softmax", None),
    "moe_router_enable_expert_bias": (False, None),
    "moe_router_topk_scaling_factor": (None,),
    "moe_router_num_groups": (None,),
    "moe_shared_expert_intermediate_size": (None,),
    "moe_latent_size": (None,),
    "moe_layer_freq": (1, None),
}


def _from_megatron(facts: Mapping[str, Any], where: str) -> dict[str, object]:
    """A config.json's keys: Llama or Mixtral, Qwen 2 (bias of qkv) or Qwen 3 (norms of q and k)."""
    expected = {**_EXPECTED, **(_EXPECTED_OF_EXPERTS if facts.get("num_experts") else {})}
    for key, values in expected.items():
        if facts.get(key, values[-1]) not in values:
            raise UserError(f"Megatron's argument {key} is {facts[key]!r} here", where, "name the model with --model")
    heads, hidden = facts["num_attention_heads"], facts["hidden_size"]
    bias, norms = bool(facts.get("add_qkv_bias")), bool(facts.get("qk_layernorm"))
    grouped = facts.get("group_query_attention", False)
    return {
        "model_type": "qwen3" if norms else "qwen2" if bias else "llama",
        "vocab_size": facts["padded_vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": facts["ffn_hidden_size"],
        "num_hidden_layers": facts["num_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts.get("num_query_groups") if grouped else heads,
        "head_dim": facts.get("kv_channels") or hidden // heads,
        "max_position_embeddings": facts["max_position_embeddings"],
        "rms_norm_eps": facts.get("norm_epsilon", 1e-5),
        "rope_theta": float(facts.get("rotary_base", 10000)),
        "tie_word_embeddings": not facts.get("untie_embeddings_and_output_weights", False),
        **_experts(facts, norms),
    }


def _experts(facts: Mapping[str, Any], norms: bool) -> dict[str, object]:
    """The keys of a mixture; none of a dense model."""
    if not (count := facts.get("num_experts")):
        return {}
    width, top = facts.get("moe_ffn_hidden_size") or facts["ffn_hidden_size"], facts["moe_router_topk"]
    if not norms:
        keys = {"model_type": "mixtral", "num_local_experts": count, "intermediate_size": width}
        return {**keys, "num_experts_per_tok": top}
    return {
        "model_type": "qwen3_moe", "num_experts": count, "num_experts_per_tok": top, "norm_topk_prob": True,
        "moe_intermediate_size": width, "decoder_sparse_step": 1, "mlp_only_layers": [],
    }  # fmt: skip


def _from_nanotron(facts: Mapping[str, Any]) -> dict[str, object]:
    """nanotron's Llama has the keys of Hugging Face's."""
    heads = facts.get("num_attention_heads")
    keys = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "rms_norm_eps",
        "max_position_embeddings", "rope_theta", "rope_scaling", "tie_word_embeddings",
    )  # fmt: skip
    known = {key: facts[key] for key in keys if facts.get(key) is not None}
    return {"model_type": "llama", **known, "num_key_value_heads": facts.get("num_key_value_heads") or heads}
