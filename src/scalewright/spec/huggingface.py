"""A Hugging Face config.json as a ModelSpec, and back.

    config.json --read_huggingface--> ModelSpec --to_huggingface--> config.json     (families in RUNS)

Reading is exact to the parameter: every bias, norm, router and sink is counted. `why_not_running` is the
reason why some families that are read don't run yet; an unknown family is an error with its name.
The readers themselves are in `spec/families/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from scalewright.spec.errors import UserError, unknown
from scalewright.spec.families import FAMILIES, UNPRICED
from scalewright.spec.model import ModelSpec
from scalewright.spec.same import differences

# Families whose network `model/` builds, with the outputs of transformers.
RUNS: frozenset[str] = frozenset(name for name, family in FAMILIES.items() if family.write is not None)

# A multimodal config contains that of its language model.
WRAPPERS = {
    "gemma3": "gemma3_text", "gemma4": "gemma4_text", "gemma4_unified": "gemma4_text", "kimi_k25": "kimi_k2",
    "llama4": "llama4_text", "mistral3": "mistral", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text",
}  # fmt: skip
INSTEAD = "price a model without it as a bound (`scalewright presets models` lists some)"


def read_huggingface(config: Mapping[str, Any], where: str = "config.json", name: str | None = None) -> ModelSpec:
    """The spec of a config.json's content; raises UserError for an unknown family, or for what can't be expressed."""
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in WRAPPERS and isinstance(config.get("text_config"), Mapping):
        inner = dict(config["text_config"])
        inner_type = inner.get("model_type")
        inner["model_type"] = inner_type if inner_type in FAMILIES else WRAPPERS[model_type]
        return read_huggingface(inner, where, name)
    if not isinstance(model_type, str):
        raise UserError("config.json names no model_type", where, "add it, e.g. 'model_type': 'llama'")
    if model_type in UNPRICED:
        raise unpriced(model_type, where)
    if model_type not in FAMILIES:
        raise unknown("model family", model_type, FAMILIES, where)
    family = FAMILIES[model_type]
    try:
        keys = family.read(family.full(config))
    except UserError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, ZeroDivisionError) as error:
        problem = f"cannot read this {model_type} config ({error!r})"
        raise UserError(problem, where, "check the types of its values") from None
    keys["name"] = name or str(config.get("_name_or_path") or model_type)
    return ModelSpec.parse({**keys, "family": model_type}, where)


def unpriced(family: str, where: str) -> UserError:
    """The error for a family with a part that nothing here counts."""
    return UserError(f"a {family} model has {UNPRICED[family]}, which has no price here", where, INSTEAD)


def to_huggingface(model: ModelSpec) -> dict[str, object]:
    """The config.json from which `transformers.AutoConfig` builds the same model.

    Raises UserError when the model's family doesn't run here, or can't express one of its keys.
    """
    family = FAMILIES.get(model.family)
    if family is None or family.write is None:
        reason = why_not_running(model) or f"family '{model.family}' has no config.json"
        raise UserError(f"cannot write a config.json: {reason}", "model", "use one of " + ", ".join(sorted(RUNS)))
    config = _config(model)
    if lost := differences(model, read_huggingface(config, name=model.name)):
        key, value, other = lost[0]
        others = _others(model)
        usual = f"no family here has it: train with {key} {other}, which transformers computes"
        how = f"use the family that has it: {' or '.join(others)}" if others else usual
        raise UserError(f"a {model.family} config.json can't express {key} {value!r}", "model", how)
    return config


def _config(model: ModelSpec) -> dict[str, object]:
    """The config.json of a model's family, whether or not it expresses all of it."""
    family = FAMILIES[model.family]
    assert family.write is not None
    keys = family.write(model)
    if not family.partial_rotary:
        keys.pop("partial_rotary_factor", None)
    without_tokenizer = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    return {"architectures": [family.architecture], "model_type": model.family, **keys, **without_tokenizer}


def _others(model: ModelSpec) -> list[str]:
    """The families that run here and whose config.json expresses all of a model."""
    with_it = []
    for name in sorted(RUNS - {model.family}):
        with suppress(UserError):
            other = model.replace(family=name)
            with_it += [] if differences(model, read_huggingface(_config(other))) else [name]
    return with_it


def why_not_running(model: ModelSpec) -> str | None:
    """Why this model can be counted but not run yet, in one line; None when it runs."""
    moe, predicts, last = model.moe, model.mtp_layers > 0, model.parts(model.num_hidden_layers - 1)
    scaling = model.rope.scaling and model.rope.scaling.kind
    lone_part = any(None in model.parts(layer) for layer in range(len(model.layer_pattern)))
    reasons = (
        (model.mamba, "Mamba layers are"),
        (model.deltanet, "DeltaNet layers are"),
        (lone_part, "layers of attention or an MLP alone are"),
        (moe and moe.latent_size, "experts behind a latent are"),
        (moe and moe.branch_norms, "norms of experts' branches are"),
        (scaling == "longrope", "RoPE scaling 'longrope' is"),
        (model.attention_gate, "a gate on attention's output is"),
        (model.global_attention, "other heads on global layers are"),
        (model.qk_norm == "qkv", "qk_norm 'qkv' is"),
        (model.mlp_type == "xielu", "mlp_type 'xielu' is"),
        (model.norm_type == "layernorm_plus_one", "norm_type 'layernorm_plus_one' is"),
        (
            predicts and (model.positions == "learned" or model.embedding_norm),
            "multi-token prediction with learned positions or a norm of the embedding is",
        ),
        (
            predicts and last != ("attention", "experts" if moe else "dense"),
            "multi-token prediction behind a last layer of another kind than its own is",
        ),
        (model.family not in RUNS, f"family '{model.family}' is"),
    )
    subject = next((text for holds, text in reasons if holds), None)
    return subject and f"{subject} counted but {'do' if subject.endswith('are') else 'does'}n't run yet"
