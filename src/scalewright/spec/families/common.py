"""Shared by the readers: a family's record, rotary positions, windows, activations.

A key that a config.json lacks has the default of its class in `transformers` (Gemma 3's files lack most
keys): `defaults.yaml` is the table of those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from scalewright.spec.base import parse_yaml
from scalewright.spec.errors import UserError, unknown
from scalewright.spec.model import ModelSpec

T = TypeVar("T")
Config = Mapping[str, Any]  # the keys of a config.json, its family's defaults filled in
Keys = dict[str, Any]  # keys of ModelSpec, or of a config.json that is being written


@dataclass(frozen=True)
class ModelFamily:
    """The reader of one `model_type`, and its writer when it runs here."""

    name: str  # the config's model_type
    read: Callable[[Config], Keys]
    architecture: str = ""  # the class in transformers; only of families with a writer
    write: Callable[[ModelSpec], Keys] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of the same key
    refused: Config = field(default_factory=dict)  # key -> the only value that this package expresses
    partial_rotary: bool = False  # its class has partial_rotary_factor; others turn all dimensions, or stop

    def full(self, config: Config) -> Config:
        """`config` with one name per key, and the family's defaults for missing keys."""
        given = {self.aliases.get(key, key): value for key, value in config.items()}
        for key, only in self.refused.items():
            if given.get(key) not in (None, only):
                problem = f"{key} {given[key]!r} is not supported for {self.name}"
                raise UserError(problem, "config.json", f"only {only!r} is")
        nested = (rope_parameters(given, kind) for kind in ("full_attention", "sliding_attention"))
        for part in () if self.partial_rotary else (given, *nested):
            if (fraction := part.get("partial_rotary_factor")) not in (None, 1.0):
                what = f"partial_rotary_factor {fraction!r}: transformers' {self.name} turns whole heads"
                raise UserError(what, "config.json", "remove the key to load it as transformers does")
        return {**defaults()[self.name], **given}


@lru_cache(maxsize=1)
def defaults() -> dict[str, Config]:
    """`defaults.yaml`: family -> the values of keys that its config.json doesn't give."""
    text = (Path(__file__).parent / "defaults.yaml").read_text(encoding="utf-8")
    return dict(parse_yaml(text, "defaults.yaml"))


TANH = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")  # names of GELU by tanh
GATED_ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", **dict.fromkeys(TANH, "geglu_tanh")}
PLAIN_ACTIVATIONS = {"gelu": "gelu", **dict.fromkeys(TANH, "gelu_tanh"), "relu": "relu"}
PLAIN_ACTIVATIONS |= {"relu2": "relu2", "xielu": "xielu"}


def mlp_type(name: str, gated: bool = True) -> str:
    """The MLP of a `hidden_act`; raises UserError for an unknown activation."""
    table = GATED_ACTIVATIONS if gated else PLAIN_ACTIVATIONS
    if name not in table:
        raise unknown("activation", str(name), table, "config.json: hidden_act")
    return table[name]


def hidden_act(mlp: str) -> str:
    """The `hidden_act` of this MLP."""
    names = {"swiglu": "silu", "swiglu_clamped": "silu", "geglu": "gelu"}
    return "gelu_pytorch_tanh" if mlp.endswith("_tanh") else names.get(mlp, mlp)


SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def shape(c: Config) -> Keys:
    """The dims whose keys are the same in almost every family."""
    return {
        **{key: c[key] for key in SIZES},
        "num_key_value_heads": c.get("num_key_value_heads"),
        "head_dim": c.get("head_dim"),
        "context": c["max_position_embeddings"],
        "norm_eps": c.get("rms_norm_eps", 1e-5),
        "tie_word_embeddings": bool(c["tie_word_embeddings"]),
    }


def write_shape(m: ModelSpec, without: Sequence[str] = (), **other: Any) -> Keys:
    """The inverse of `shape`, and `other` keys; `without` those that the family's config.json lacks."""
    keys = {
        **{key: getattr(m, key) for key in SIZES},
        "num_key_value_heads": m.kv_heads,
        "head_dim": m.dim_per_head,
        "max_position_embeddings": m.context,
        "rms_norm_eps": m.norm_eps,
        "tie_word_embeddings": m.tie_word_embeddings,
        "hidden_act": hidden_act(m.mlp_type),
    }
    return {key: value for key, value in keys.items() if key not in without} | other


def biases(c: Config) -> Keys:
    """`attention_bias` on all four projections of attention."""
    return {"qkv_bias": c["attention_bias"], "o_bias": c["attention_bias"]}


EXPERTS = {"num_local_experts": "num_experts", "n_routed_experts": "num_experts"}  # aliases
PREDICTING = {"num_mtp_layers": "num_nextn_predict_layers", **EXPERTS}


def experts(c: Config, size: str = "intermediate_size", **other: Any) -> Keys:
    """The keys of a mixture that every family has, and `other` ones; `size`: the key of an expert's width."""
    keys = {"num_experts": c["num_experts"], "top_k": c["num_experts_per_tok"], "moe_intermediate_size": c[size]}
    return {**keys, **other}


def grouped_experts(c: Config, **other: Any) -> Keys:
    """DeepSeek's mixture: small experts, chosen by group, whose sum is scaled."""
    groups = {"groups": c["n_group"] or 1, "top_groups": c["topk_group"] or 1}
    weights = {"normalize_top_k": bool(c["norm_topk_prob"]), "routed_scale": c["routed_scaling_factor"]}
    return experts(c, "moe_intermediate_size", **weights, **groups, **other)


def windows(sliding: Sequence[bool], size: int | None) -> Keys:
    """The layers with a sliding window, as the shortest repeating pattern."""
    if size is None or not any(sliding):
        return {"sliding_window": None, "window_pattern": (False,)}
    return {"sliding_window": size, "window_pattern": repeating(sliding)}


def repeating(kinds: Sequence[T]) -> tuple[T, ...]:
    """The shortest pattern that repeats to these kinds of layers."""
    period = next(p for p in range(1, len(kinds) + 1) if all(k == kinds[i % p] for i, k in enumerate(kinds)))
    return tuple(kinds[:period])


def all_layers(c: Config) -> Keys:
    """The windows of a family in which `sliding_window` applies to every layer."""
    return windows([True], c["sliding_window"])


def by_layer_types(c: Config, otherwise: Sequence[bool]) -> Keys:
    """The windows in `layer_types`, or by the family's own rule where it is absent."""
    types = c.get("layer_types")
    sliding = [kind == "sliding_attention" for kind in types] if types else list(otherwise)
    return windows(sliding, c["sliding_window"])


def write_layer_types(m: ModelSpec) -> list[str]:
    """The inverse of `by_layer_types`."""
    layers = range(m.num_hidden_layers)
    return ["sliding_attention" if m.window(layer) is not None else "full_attention" for layer in layers]


SCALINGS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")


def rope(c: Config, theta: float = 10000.0, fraction: float = 1.0, theta_key: str = "rope_theta") -> Keys:
    """Rotary positions in either style: `rope_theta` and `rope_scaling`, or `rope_parameters`."""
    given = rope_parameters(c)
    return {
        "theta": float(first(given.get("rope_theta"), c.get(theta_key), theta)),
        "fraction": float(first(given.get("partial_rotary_factor"), c.get("partial_rotary_factor"), fraction)),
        "scaling": rope_scaling(given, c),
    }


def rope_parameters(c: Config, layers: str = "full_attention") -> Config:
    """The dict with the scaling, for one kind of layer where kinds have their own."""
    given = c.get("rope_scaling") or c.get("rope_parameters") or {}
    nested = [key for key in ("full_attention", "sliding_attention") if key in given]
    return dict((given.get(layers, given[nested[0]]) if nested else given) or {})


def rope_scaling(given: Config, c: Config) -> Keys | None:
    """The keys of RopeScaling; None without scaling."""
    kind = given.get("rope_type") or given.get("type") or "default"
    kind = "longrope" if kind == "su" else kind
    if kind not in SCALINGS:
        raise unknown("RoPE scaling", str(kind), SCALINGS, "config.json")
    if kind == "default":
        return None
    context = c["max_position_embeddings"]
    original = None  # linear and dynamic scale from the context itself
    if kind in ("yarn", "llama3", "longrope"):
        outside = c.get("original_max_position_embeddings")  # Phi-3 has it there, and it takes precedence
        original = first(outside, given.get("original_max_position_embeddings"), context)
    keys: Keys = {"kind": kind, "original_context": original}
    keys["factor"] = first(given.get("factor"), context / original if original else 1.0)
    for name in ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "truncate"):
        if given.get(name) is not None:
            keys[name] = given[name]
    for name in ("attention_factor", "mscale", "mscale_all_dim", "short_factor", "long_factor"):
        keys[name] = given.get(name)
    return keys


def write_rope(m: ModelSpec, theta_key: str = "rope_theta", fraction_key: str = "partial_rotary_factor") -> Keys:
    """The inverse, in the older style, which transformers 4 and 5 both read."""
    keys: Keys = {theta_key: m.rope.theta, "rope_scaling": None}
    if m.rope.fraction != 1.0 or fraction_key != "partial_rotary_factor":
        keys[fraction_key] = m.rope.fraction
    scaling = m.rope.scaling
    if scaling is None:
        return keys
    written: Keys = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.original_context is not None:
        written["original_max_position_embeddings"] = scaling.original_context
    if scaling.kind == "llama3":
        written |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if scaling.kind == "yarn":
        written |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
        if not scaling.truncate:
            written["truncate"] = False
    for name in ("attention_factor", "mscale", "mscale_all_dim", "short_factor", "long_factor"):
        if (value := getattr(scaling, name)) is not None:
            written[name] = list(value) if isinstance(value, tuple) else value
    return keys | {"rope_scaling": written}


def first(*values: Any) -> Any:
    """The first value that isn't null."""
    return next((value for value in values if value is not None), None)
