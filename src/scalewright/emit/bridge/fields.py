"""Megatron's arguments as fields of Megatron-Bridge's ConfigContainer, both ways.

--tensor-model-parallel-size 8      model.tensor_model_parallel_size = 8
--untie-embeddings-and-...          model.share_embeddings_and_output_weights = False
--swiglu                            model.gated_linear_unit = True, model.activation_func = F.silu
--bf16 --fp8-recipe mxfp8           mixed_precision.bf16 = True, mixed_precision.fp8_recipe = "mxfp8"

Fields are those of Megatron-Bridge 0.6 (training/config.py, models/gpt_provider.py; read 2026-11).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.emit.megatron.model import Arguments
from scalewright.emit.python_code import Name
from scalewright.emit.rules import inverse
from scalewright.emit.tables import keys_for

MODEL = {
    "ffn-hidden-size": "ffn_hidden_size", "norm-epsilon": "layernorm_epsilon",
    "num-experts": "num_moe_experts", "apply-layernorm-1p": "layernorm_zero_centered_gamma",
    "num-virtual-stages-per-pipeline-rank": "virtual_pipeline_model_parallel_size",
    "decoder-first-pipeline-num-layers": "num_layers_in_first_pipeline_stage",
    "decoder-last-pipeline-num-layers": "num_layers_in_last_pipeline_stage",
    "use-rope-scaling": "rope_scaling", "bias-gelu-fusion": "bias_activation_fusion",
    "microbatch-group-size-per-virtual-pipeline-stage": "microbatch_group_size_per_vp_stage",
}  # fmt: skip
# Arguments that are fields of the same name, by section
SAME = keys_for("megatron-bridge, the same as arguments")
FIELDS: dict[str, str] = {
    **{flag: f"model.{field}" for flag, field in MODEL.items()},
    **{key.partition(".")[2]: key.replace("-", "_") for key in SAME},
    **{f"{kind}-format": f"mixed_precision.{kind}" for kind in ("fp8", "fp4")},
}
FLAGS = inverse(FIELDS)
INVERTED = {
    "disable-bias-linear": "model.add_bias_linear",
    "untie-embeddings-and-output-weights": "model.share_embeddings_and_output_weights",
    "no-gradient-accumulation-fusion": "model.gradient_accumulation_fusion",
}
SILU, SQUARED = Name("F.silu"), Name("squared_relu")
DTYPES = {"bf16": Name("torch.bfloat16"), "fp8": Name("torch.uint8"), "fp16": Name("torch.float16")}
RECIPES: dict[str, Arguments] = {  # parts of the names of theirs, as `bf16_with_mxfp8_mixed`
    "mxfp8": {"fp8-format": "e4m3", "fp8-recipe": "mxfp8"},
    "nvfp4": {"fp4-format": "e2m1"},
    "fp8_delayed": {"fp8-format": "hybrid", "fp8-recipe": "delayed"},
    "fp8_current": {"fp8-format": "hybrid", "fp8-recipe": "tensorwise"},
    "fp8_subchannel": {"fp8-format": "hybrid", "fp8-recipe": "blockwise"},
}


def fields_of(arguments: Arguments) -> dict[str, object]:
    """Dotted fields for these arguments; `activation_func` and types are names."""
    fields: dict[str, object] = {}
    for flag, value in arguments.items():
        if flag in INVERTED:
            fields[INVERTED[flag]] = False
        elif flag == "swiglu":
            fields |= {"model.gated_linear_unit": True, "model.activation_func": SILU}
        elif flag == "squared-relu":
            fields["model.activation_func"] = SQUARED
        elif flag in ("exp-avg-dtype", "exp-avg-sq-dtype"):
            fields[FIELDS[flag]] = DTYPES[str(value)]
        elif flag in FIELDS:
            fields[FIELDS[flag]] = value
    return fields


def arguments_of(fields: Mapping[str, Any]) -> tuple[Arguments, dict[str, str]]:
    """The arguments for these fields, and the field that each of them is."""
    arguments: Arguments = {}
    names: dict[str, str] = {}
    inverted, dtypes = inverse(INVERTED), inverse(DTYPES)
    for name, value in fields.items():
        if value is None:
            continue
        flag = FLAGS.get(name, inverted.get(name, name))
        if name in inverted:
            value = value is False
        elif flag in ("exp-avg-dtype", "exp-avg-sq-dtype"):
            value = dtypes.get(value, value)
        elif name == "model.activation_func":
            flag, value = _activation(value, bool(fields.get("model.gated_linear_unit")))
        elif name == "model.gated_linear_unit" and "model.activation_func" in fields:
            continue
        elif name == "mixed_precision":
            arguments |= precision_of(str(value))
            continue
        names[flag] = name
        arguments[flag] = value
    if "num-query-groups" in arguments:
        arguments["group-query-attention"] = True
    return arguments, names


def precision_of(recipe: str) -> Arguments:
    """The arguments of a named recipe: `bf16_mixed`, `bf16-with-fp8-current-scaling-mixed`."""
    name = recipe.replace("-", "_")
    written: Arguments = {"fp16": True} if name.startswith(("fp16", "16")) else {"bf16": True}
    if name.startswith(("fp32", "32")):
        return {}
    return next((written | more for part, more in RECIPES.items() if part in name), written)


def _activation(function: Any, gated: bool) -> tuple[str, Any]:
    name = (function.dotted if isinstance(function, Name) else str(function)).rpartition(".")[2].strip("'>")
    if gated and name in ("silu", "swish"):
        return "swiglu", True
    if not gated and name == "squared_relu":
        return "squared-relu", True
    return ("gelu", True) if not gated and name == "gelu" else ("model.activation_func", name)
