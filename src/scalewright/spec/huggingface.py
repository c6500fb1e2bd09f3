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
from scalewright.spec.families import FAMILIES
from scalewright.spec.model import Mixer, Mlp, ModelSpec
from scalewright.spec.same import differences

# Families whose network `model/` builds, with the outputs of transformers.
RUNS: frozenset[str] = frozenset(name for name, family in FAMILIES.items() if family.write is not None)

# A multimodal config contains that of its language model.
WRAPPERS = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_text",
    "kimi_k25": "kimi_k2",
    "llama4": "llama4_text",
    "mistral3": "mistral",
}


def read_huggingface(config: Mapping[str, Any], where: str = "config.json", name: str | None = None) -> ModelSpec:
    """The spec of a config.json's content.

    Raises UserError for an unknown family, and for a key whose value this package can't express.
    """
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in WRAPPERS and isinstance(config.get("text_config"), Mapping):
        inner = dict(config["text_config"])
        inner_type = inner.get("model_type")
        inner["model_type"] = inner_type if inner_type in FAMILIES else WRAPPERS[model_type]
        return read_huggingface(inner, where, name)
    if not isinstance(model_type, str):
        raise UserError("config.json names no model_type", where, "add it, e.g. 'model_type': 'llama'")
    if model_type not in FAMILIES:
        raise unknown("model family", model_type, FAMILIES, where)
    family = FAMILIES[model_type]
    full = family.full(config)
    try:
        keys = family.read(full)
    except (TypeError, KeyError, AttributeError, ZeroDivisionError) as error:
        raise UserError(
            f"cannot read this {model_type} config ({error!r})", where, "check the types of its values"
        ) from None
    keys["name"] = name or str(config.get("_name_or_path") or model_type)
    return ModelSpec.parse({**keys, "family": model_type}, where)


def to_huggingface(model: ModelSpec) -> dict[str, object]:
    """The config.json from which `transformers.AutoConfig` builds the same model.

    Raises UserError when the model's family doesn't run here, or can't express one of its keys.
    """
    family = FAMILIES.get(model.family)
    if family is None or family.write is None:
        reason = why_not_running(model) or f"family '{model.family}' has no config.json"
        raise UserError(f"cannot write a config.json: {reason}", "model", "use one of " + ", ".join(sorted(RUNS)))
    config = _config(model)
    lost = differences(model, read_huggingface(config, name=model.name))
    if lost:
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
    return {
        "architectures": [family.architecture],
        "model_type": model.family,
        **keys,
        "bos_token_id": None,  # set where the tokenizer is known
        "eos_token_id": None,
        "pad_token_id": None,
    }


def _others(model: ModelSpec) -> list[str]:
    """The families that run here and whose config.json expresses all of a model."""
    with_it = []
    for name in sorted(RUNS - {model.family}):
        with suppress(UserError):
            other = model.replace(family=name)
            with_it += [] if differences(model, read_huggingface(_config(other))) else [name]
    return with_it


def _last_parts(model: ModelSpec) -> tuple[Mixer | None, Mlp | None]:
    """The parts of the last layer, as which a prediction module's block runs."""
    return model.parts(model.num_hidden_layers - 1)


def why_not_running(model: ModelSpec) -> str | None:
    """Why this model can be counted but not run yet, in one line; None when it runs."""
    scaling = model.rope.scaling
    reasons = (
        (model.mamba is not None, "Mamba layers are counted but don't run yet"),
        (model.deltanet is not None, "DeltaNet layers are counted but don't run yet"),
        (
            any(None in model.parts(layer) for layer in range(len(model.layer_pattern))),
            "layers of attention or an MLP alone are counted but don't run yet",
        ),
        (
            model.moe is not None and model.moe.latent_size is not None,
            "experts behind a latent are counted but don't run yet",
        ),
        (model.moe is not None and model.moe.branch_norms, "norms of experts' branches are counted but don't run yet"),
        (scaling is not None and scaling.kind == "longrope", "RoPE scaling 'longrope' is counted but doesn't run yet"),
        (model.attention_gate, "a gate on attention's output is counted but doesn't run yet"),
        (model.global_attention is not None, "other heads on global layers are counted but don't run yet"),
        (model.qk_norm == "qkv", "qk_norm 'qkv' is counted but doesn't run yet"),
        (model.norm_type == "layernorm_plus_one", "norm_type 'layernorm_plus_one' is counted but doesn't run yet"),
        (
            model.mtp_layers > 0 and (model.positions == "learned" or model.embedding_norm),
            "multi-token prediction with learned positions or a norm of the embedding is counted but doesn't run yet",
        ),
        (
            model.mtp_layers > 0 and _last_parts(model) != ("attention", "experts" if model.moe else "dense"),
            "multi-token prediction behind a last layer of another kind than its own is counted but doesn't run yet",
        ),
        (model.family not in RUNS, f"family '{model.family}' is counted but doesn't run yet"),
    )
    return next((text for holds, text in reasons if holds), None)
