"""The network for torchtitan: one of its flavors, or the arguments of a decoder of its parts, both ways.

llama-3.1-8b          0.3: model_registry("8B")          0.2: [model] name, flavor
any other decoder     0.3: decoder(dim=1024, ...)        0.2: own_model.py with TransformerModelArgs(...)
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log, sqrt
from typing import Any, NamedTuple

from scalewright.emit.foreign import ForeignKeys, RunKeys
from scalewright.emit.python_code import Call
from scalewright.emit.rules import Fixed, inverse
from scalewright.emit.settings import Settings
from scalewright.emit.torchtitan.flavors import FLAVORS, find_flavor, flavor_of, spec_of
from scalewright.spec.errors import UserError

SCALES = ("low_freq_factor", "high_freq_factor")
YARN = {"factor": "rope_factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow",
        "original_context": "original_seq_len"}  # fmt: skip
TAKEN = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "num_key_value_heads", "head_dim", "context", "rope.theta", "learned_positions")  # fmt: skip


EXPERTS = (
    "num_experts", "top_k", "moe_intermediate_size", "num_shared_experts", "shared_intermediate_size", "first_k_dense",
    "every", "dense_layers", "router_bias", "score", "normalize_top_k", "routed_scale", "groups", "top_groups",
)  # fmt: skip


PARTS = (
    Fixed("model.positions", ("rope",), "torchtitan's decoders have RoPE"),
    Fixed("model.mlp_type", ("swiglu",), "torchtitan's MLPs are SwiGLU"),
    Fixed("model.norm_type", ("rmsnorm",), "torchtitan's norms are RMSNorm"),
)


class Network(NamedTuple):
    """A model in their words: a flavor, or the call of one of the functions in decoder.py."""

    name: str  # of the model in torchtitan: llama3, qwen3, deepseek_v3
    flavor: str  # "" where `call` makes it
    call: Call | None


def write_model(s: Settings, release: str) -> Network:
    """The model; what its parts can't be is dropped. Raises UserError where the layout can't run."""
    model, layout = s.model, s.layout
    if layout.tp > 1 and model.kv_heads % layout.tp and not model.mla:
        what = f"torchtitan cuts key and value heads, and tp {layout.tp} doesn't divide them"
        raise UserError(what, "layout.tp", f"use a tp that divides {model.kv_heads}")
    if model.tie_word_embeddings and layout.pp > 1:
        raise UserError("torchtitan has no pipeline for tied embeddings", "layout.pp", "use pp 1")
    known = flavor_of(model, release)
    if known and known[0] == "deepseek_v3" and release == "0.2" and layout.cp > 1:
        known = None  # its flavors have flex attention, which 0.2 can't cut over cp
    name = known[0] if known else "deepseek_v3" if model.mla else "qwen3" if _needs_qwen(s) else "llama3"
    how = "emit it for torchtitan 0.3"
    if release == "0.1" and known is None:
        raise UserError("torchtitan 0.1 has Llama 3 in its published sizes alone", "model", how)
    if release == "0.2" and name == "qwen3" and layout.pp > 1:
        raise UserError("torchtitan 0.2 has no pipeline for its Qwen3, which has these parts", "layout.pp", how)
    if known is not None:
        return _flavored(s, known, release)
    _shared_parts(s)
    if model.mla:
        return Network(name, "", Call("latent_decoder", _latent(s, release)))
    return Network(name, "", Call("decoder", _plain(s, release)))


def _flavored(s: Settings, name: tuple[str, str], release: str) -> Network:
    eps = spec_of(FLAVORS[name]).norm_eps
    rate = s.values.get("train.balance.bias_rate")
    s.take_all("model.")
    if s.model.norm_eps != eps:
        s.nearly("model.norm_eps", f"{eps:g}", f"torchtitan's {name[1]} has it")
    if s.model.rope.scaling is not None and release == "0.1":
        s.nearly("model.rope.scaling.factor", "1", "0.1 doesn't scale RoPE")
    if s.model.mtp_layers:
        s.nearly("model.mtp_layers", "0", "its flavors are without prediction modules")
    if s.model.moe and rate is not None and rate != 1e-3:
        s.nearly("train.balance.bias_rate", "0.001", f"torchtitan's {name[1]} has it")
    elif s.model.moe:
        s.take("train.balance.bias_rate")
    return Network(*name, None)


def _shared_parts(s: Settings) -> None:
    """Takes what all its decoders have, and reports the parts that none has."""
    s.take_each("model", *TAKEN)
    if s.model.mla:
        s.take("model.rope.interleaved")
    s.write(PARTS)


def _plain(s: Settings, release: str) -> dict[str, object]:
    """Arguments of `decoder`; of 0.2's classes, `_own` makes them."""
    model = s.model
    arguments: dict[str, object] = {
        "dim": model.hidden_size, "n_layers": model.num_hidden_layers, "n_heads": model.num_attention_heads,
        "n_kv_heads": model.kv_heads, "head_dim": model.dim_per_head, "hidden_dim": model.intermediate_size,
        "vocab_size": model.vocab_size, "context": max(model.context, s.run.seq_len),
        "norm_eps": s.take("model.norm_eps"), "rope_theta": model.rope.theta,
    }  # fmt: skip
    scaling = model.rope.scaling
    if scaling is not None and scaling.kind == "llama3" and not (release == "0.2" and _needs_qwen(s)):
        s.take_all("model.rope.scaling.")
        arguments["rope_scaling"] = {
            "scaling_factor": scaling.factor,
            **{key: getattr(scaling, key) for key in SCALES},
            "original_max_position_embeddings": scaling.original_context or 8192,
        }
        s.assume("RoPE turns neighbouring pairs: the same network with rows of q and k in another order")
    if model.qk_norm == "head":
        s.take("model.qk_norm")
        arguments["qk_norm"] = True
    if s.take("model.tie_word_embeddings"):
        arguments["tied"] = True
    if model.moe:
        arguments |= _experts(s, release)
    return arguments


def _experts(s: Settings, release: str) -> dict[str, object]:
    moe = s.model.moe
    assert moe is not None
    s.take_each("model.moe", *EXPERTS)
    if moe.shared_size % moe.moe_intermediate_size and (s.model.mla or release == "0.2"):
        how = "emit it for torchtitan 0.3" if release == "0.2" else "emit it for Megatron-LM"
        raise UserError("its shared experts are as wide as the others", "model.moe.shared_intermediate_size", how)
    if moe.score == "softmax" and moe.groups > moe.top_groups:
        s.nearly("model.moe.groups", "by 2 scores", "torchtitan chooses a group by the sum of its two largest")
    if moe.score == "softmax" and moe.router_bias:
        why = "torchtitan's bias moves the choice alone, by the experts' loads"
        s.nearly("model.moe.router_bias", "a bias of the choice", why)
    rate = s.take("train.balance.bias_rate")
    dense = _dense_layers(s)
    arguments: dict[str, object] = {
        "moe": {
            "num_experts": moe.num_experts, "top_k": moe.top_k, "hidden_dim": moe.moe_intermediate_size,
            "score": moe.score, "normalize": moe.normalize_top_k, "scale": moe.routed_scale,
            "groups": moe.groups if moe.groups > 1 else None,
            "top_groups": moe.top_groups if moe.groups > 1 else None, "shared_dim": moe.shared_size,
            "bias_rate": rate if moe.router_bias and rate else None,
        }
    }  # fmt: skip
    return arguments | ({"dense_layers": dense} if dense else {})


def _dense_layers(s: Settings) -> list[int]:
    return [i for i in range(s.model.num_hidden_layers) if not s.model.is_moe(i)]


def _latent(s: Settings, release: str) -> dict[str, object]:
    model, mla = s.model, s.model.mla
    assert mla is not None
    if model.moe is None:
        how = "emit it for Megatron-LM, which has both"
        raise UserError("torchtitan has latent attention only with experts", "model.mla", how)
    s.take_all("model.mla.")
    if s.take("model.tie_word_embeddings"):
        s.nearly("model.tie_word_embeddings", "false", "torchtitan's latent attention has two ends")
    s.take("model.norm_eps")
    scaling = model.rope.scaling
    arguments = {
        "dim": model.hidden_size, "n_layers": model.num_hidden_layers, "n_heads": model.num_attention_heads,
        "hidden_dim": model.intermediate_size, "vocab_size": model.vocab_size,
        "context": max(model.context, s.run.seq_len), "rope_theta": model.rope.theta,
        "latent": {
            "q_lora_rank": mla.q_lora_rank or 0, "kv_lora_rank": mla.kv_lora_rank,
            "qk_nope_head_dim": mla.qk_nope_head_dim, "qk_rope_head_dim": mla.qk_rope_head_dim,
            "v_head_dim": mla.v_head_dim, "mscale": _mscale(s),
        },
        "dense_layers": [], **_experts(s, release),
    }  # fmt: skip
    dense = _dense_layers(s)
    if dense != list(range(len(dense))):
        how = "emit it for Megatron-LM, which has any order"
        raise UserError("torchtitan's dense layers come first", "model.moe.dense_layers", how)
    if scaling is not None and scaling.kind == "yarn":
        s.take_all("model.rope.scaling.")
        arguments["rope_scaling"] = {
            foreign: value for ours, foreign in YARN.items() if (value := getattr(scaling, ours)) is not None
        }
    return arguments


def _mscale(s: Settings) -> float:
    """Their factor of YaRN that makes our scale of queries: d^-0.5 (0.1 mscale ln(factor) + 1)^2."""
    model = s.model
    scale, scaling = s.take("model.query_scale"), model.rope.scaling
    if scaling is None or scaling.kind != "yarn" or scaling.factor <= 1:
        return 1.0
    if scale is None:
        return 0.0
    ratio = sqrt(scale * sqrt(model.dim_per_head))
    return float(f"{max(0.0, (ratio - 1) / (0.1 * log(scaling.factor))):.6g}")


def _needs_qwen(s: Settings) -> bool:
    """Whether 0.2's llama3 lacks a part: experts, norms of q and k, tied ends, heads of another size."""
    model = s.model
    odd = model.dim_per_head * model.num_attention_heads != model.hidden_size
    return bool(model.moe or model.qk_norm == "head" or model.tie_word_embeddings or odd)


def read_model(t: ForeignKeys, run: RunKeys, unscaled: bool) -> int | None:
    """The model of a name and flavor, or of a `decoder` call; its layers, where it is known."""
    call = t.take("model_spec")
    if isinstance(call, Call) and call.name in ("decoder", "latent_decoder"):
        run["model"] = decoder_spec(call.values, run)
        return int(run["model"]["num_hidden_layers"])
    name, size = t.take("model.name", "llama3"), t.take("model.flavor", "debugmodel")
    t.take("model.norm_type")
    flavor = find_flavor(str(name), str(size), unscaled)
    if flavor is None:
        t.refuse("model.flavor", "no model of this name is known here: add model=")
        return None
    spec = spec_of(flavor)
    run["model"] = spec.dump() if flavor.differs else flavor.preset
    return spec.num_hidden_layers


def decoder_spec(given: Mapping[str, Any], run: RunKeys) -> dict[str, object]:
    """The model of the arguments of a decoder; what balances its experts goes into the run."""
    model: dict[str, Any] = {
        "vocab_size": given["vocab_size"], "hidden_size": given["dim"], "intermediate_size": given["hidden_dim"],
        "num_hidden_layers": given["n_layers"], "num_attention_heads": given["n_heads"], "context": given["context"],
        "norm_eps": given.get("norm_eps", 1e-5), "rope": {"theta": float(given["rope_theta"])},
        "tie_word_embeddings": bool(given.get("tied", False)),
    }  # fmt: skip
    if given.get("qk_norm"):
        model["qk_norm"] = "head"
    scaling = given.get("rope_scaling") or {}
    if latent := given.get("latent"):
        model["mla"] = {key: value for key, value in latent.items() if key != "mscale"}
        model["mla"]["q_lora_rank"] = latent["q_lora_rank"] or None
        model["rope"]["interleaved"] = True
        if scaling:
            back = inverse(YARN)
            model["rope"]["scaling"] = {"kind": "yarn", **{back[key]: value for key, value in scaling.items()}}
            model["rope"]["scaling"]["attention_factor"] = 1.0  # its RoPE is a rotation alone
            size, factor = latent["qk_nope_head_dim"] + latent["qk_rope_head_dim"], scaling["rope_factor"]
            grown = 0.1 * latent["mscale"] * log(factor) + 1 if factor > 1 else 1.0
            model["query_scale"] = float(f"{size**-0.5 * grown**2:.9g}")
    else:
        model |= {"num_key_value_heads": given["n_kv_heads"], "head_dim": given["head_dim"]}
        if scaling:
            given_scales, context = {key: scaling[key] for key in SCALES}, scaling["original_max_position_embeddings"]
            scales = {"factor": scaling["scaling_factor"], **given_scales, "original_context": context}
            model["rope"]["scaling"] = {"kind": "llama3", **scales}
    if moe := given.get("moe"):
        model["moe"] = _experts_spec(moe, given.get("dense_layers") or [])
        if moe["bias_rate"]:
            run.setdefault("train", {})["balance"] = {"bias_rate": moe["bias_rate"]}
    return model


def _experts_spec(moe: Mapping[str, Any], dense: list[int]) -> dict[str, object]:
    spec = {
        "num_experts": moe["num_experts"], "top_k": moe["top_k"], "moe_intermediate_size": moe["hidden_dim"],
        "score": moe["score"], "normalize_top_k": moe["normalize"], "routed_scale": float(moe["scale"]),
        "groups": moe["groups"] or 1, "top_groups": moe["top_groups"] or 1, "router_bias": moe["bias_rate"] is not None,
    }  # fmt: skip
    if moe["shared_dim"]:
        each, left = divmod(moe["shared_dim"], moe["hidden_dim"])
        spec["num_shared_experts"] = each if not left else 1
        if left:
            spec["shared_intermediate_size"] = moe["shared_dim"]
    leading = dense == list(range(len(dense)))
    return spec | ({"first_k_dense": len(dense)} if leading else {"dense_layers": list(dense)})
