"""A module for torchtitan 0.2 that registers a model of other sizes: arguments of its own classes."""

from __future__ import annotations

from typing import Any

from scalewright.emit.python_code import Call, spelled
from scalewright.emit.torchtitan.decoder import OWN
from scalewright.emit.torchtitan.model import Network
from scalewright.spec.errors import UserError


def own_model(network: Network, title: str) -> str:
    """The module of 0.2 that registers arguments of its classes under the name `own`."""
    assert network.call is not None
    given = dict(network.call.values)
    moe, dense = given.pop("moe", None), given.pop("dense_layers", [])
    if network.name == "qwen3" and dense:
        how = "emit it for torchtitan 0.3, which has both kinds of layers"
        raise UserError("torchtitan 0.2's Qwen3 has experts in every layer", "model.moe", how)
    more = "from torchtitan.models.moe import MoEArgs\n" if moe else ""
    make = {"llama3": _llama_args, "qwen3": _qwen_args, "deepseek_v3": _deepseek_args}[network.name]
    call = make(given, moe, dense)
    scaled = isinstance(call.values.get("rope_scaling_args"), Call)
    classes = call.name + (", RoPEScalingArgs" if scaled else "")
    return OWN.format(title=title, module=network.name, classes=classes, more=more, args=spelled(call))


def _llama_args(given: dict[str, Any], moe: Any, dense: list[int]) -> Call:
    """TransformerModelArgs; its hidden size is a multiple of the one that we want, with a factor below it."""
    for key in ("head_dim", "qk_norm", "tied"):
        given.pop(key, None)
    hidden, context = given.pop("hidden_dim"), given.pop("context")
    scaling = given.pop("rope_scaling", None) or {"scaling_factor": 1.0}
    two_thirds = int(2 * 4 * given["dim"] / 3)
    return Call("TransformerModelArgs", {
        **given, "max_seq_len": context, "multiple_of": hidden,
        "ffn_dim_multiplier": min(1.0, round(hidden / two_thirds * 0.999, 3)),
        "rope_scaling_args": Call("RoPEScalingArgs", scaling),
    })  # fmt: skip


def _qwen_args(given: dict[str, Any], moe: Any, dense: list[int]) -> Call:
    context, tied = given.pop("context"), given.pop("tied", False)
    values = {
        **given,
        "qk_norm": given.get("qk_norm", False),
        "max_seq_len": context,
        "enable_weight_tying": tied,
    }
    if moe:
        values |= {"moe_enabled": True, "moe_inter_dim": moe["hidden_dim"], "moe_args": _moe_args(moe)}
    return Call("Qwen3ModelArgs", values)


def _deepseek_args(given: dict[str, Any], moe: Any, dense: list[int]) -> Call:
    hidden, context = given.pop("hidden_dim"), given.pop("context")
    latent, scaling = given.pop("latent"), given.pop("rope_scaling", None) or {"rope_factor": 1.0}
    return Call("DeepSeekV3ModelArgs", {
        **given, "inter_dim": hidden, "max_seq_len": context, "n_dense_layers": len(dense),
        "moe_inter_dim": moe["hidden_dim"], "moe_args": _moe_args(moe), **latent, **scaling,
    })  # fmt: skip


def _moe_args(moe: dict[str, Any]) -> Call:
    return Call("MoEArgs", {
        "num_experts": moe["num_experts"], "num_shared_experts": moe["shared_dim"] // moe["hidden_dim"],
        "top_k": moe["top_k"], "score_func": moe["score"], "route_norm": moe["normalize"],
        "route_scale": moe["scale"], "num_expert_groups": moe["groups"],
        "num_limited_groups": moe["top_groups"], "score_before_experts": False,
        "load_balance_coeff": moe["bias_rate"],
    })  # fmt: skip
