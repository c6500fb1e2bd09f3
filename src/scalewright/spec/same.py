"""Whether two specs are the same network: keys are compared by what they do, not by how they are written.

windows, RoPE, experts   layer by layer: a pattern that is cut or written out is the same one
rope.scaling             the numbers that its kind uses; for null the number that stands for it
mla, moe, positions      keys that another key makes useless don't count
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import Any, NamedTuple

from scalewright.spec.common.formatting import below, flat
from scalewright.spec.model import ModelSpec

CLOSE = 2e-6  # relative: of a number that was printed with six digits
USED = {  # keys of each kind of scaling
    "linear": ("kind", "factor"),
    "dynamic": ("kind", "factor", "original_context"),
    "llama3": ("kind", "factor", "original_context", "low_freq_factor", "high_freq_factor"),
    "yarn": ("kind", "factor", "original_context", "beta_fast", "beta_slow", "truncate", "attention_factor"),
    "longrope": ("kind", "factor", "original_context", "attention_factor", "short_factor", "long_factor"),
}

SPELLED = {  # what is compared by one key and may be given by others
    "moe.first_k_dense": ("moe.every", "moe.dense_layers"),
    "moe.num_shared_experts": ("moe.shared_intermediate_size",),
    "rope.scaling.attention_factor": ("rope.scaling.mscale", "rope.scaling.mscale_all_dim"),
}
UNIFORM = ("linear", "llama3", "yarn")  # kinds that change nothing by a factor of 1


class Difference(NamedTuple):
    """A dotted key (rope.fraction) of which two networks have other values."""

    key: str
    value: Any
    other: Any


def differences(model: ModelSpec, other: ModelSpec) -> list[Difference]:
    """What `other` computes otherwise; empty for the same network, whatever its names are.

    What only follows from a key that differs (a scores' scale, from the heads' width) isn't named beside it.
    """
    keys, others = canonical(model), canonical(other)
    differing = [key for key in {**keys, **others} if not alike(keys.get(key), others.get(key))]
    names = [name for key in differing for name in (key, *SPELLED.get(key, ()))]
    parts = dict.fromkeys(_part(model, other, name) for name in names)
    named = [Difference(part, _at(model, part), _at(other, part)) for part in parts]
    return [item for item in named if not alike(item.value, item.other)] or named


def _part(model: ModelSpec, other: ModelSpec, key: str) -> str:
    """A key, or the part that it is in (moe, rope.scaling) where only one of them has that."""
    group = key.rpartition(".")[0]
    return group if group and None in (_at(model, group), _at(other, group)) else key


def canonical(model: ModelSpec) -> dict[str, object]:
    """Dotted keys, of which equal networks have equal values."""
    layers, moe = range(model.num_hidden_layers), model.moe
    windows, parts = [model.window(layer) for layer in layers], [model.parts(layer) for layer in layers]
    keys = flat(model.dump()) | {
        "sliding_window": max(filter(None, windows), default=None),
        "window_pattern": [size is not None for size in windows],
        "window_chunks": model.window_chunks and any(windows),
        "rope_every_not": [model.has_rope(layer) for layer in layers],
        "layer_pattern": [(mixer, mlp is not None) for mixer, mlp in parts],
        "query_scale": model.query_scale or model.dim_per_head**-0.5,
    }
    useless = ["name", "family", "version", "context", "rope.scaling"]  # numbers by the context are below
    if moe is not None:
        keys["moe.first_k_dense"] = [model.is_moe(layer) for layer in layers]
        keys["moe.num_shared_experts"] = moe.shared_size
        keys["moe.shared_gate"] = moe.shared_gate and moe.shared_size > 0
        if moe.top_groups >= moe.groups:
            keys |= {"moe.groups": 1, "moe.top_groups": 1}
        useless += ["moe.shared_intermediate_size", "moe.every", "moe.dense_layers"]
    useless += ["rope"] if model.positions != "rope" else ["rope.fraction"] if model.mla else []
    useless += [] if model.positions == "learned" else ["learned_positions"]
    useless += [] if any(mlp == "dense" for _, mlp in parts) else ["intermediate_size"]
    useless += [] if any(windows) else ["rope.local_theta"]
    keys = {key: value for key, value in keys.items() if not below(key, useless)}
    return keys | (_scaling(model) if model.positions == "rope" else {})


def _scaling(model: ModelSpec) -> dict[str, object]:
    """The numbers that count of a scaling; none of one that changes nothing."""
    scaling = model.rope.scaling
    if scaling is None or (scaling.kind in UNIFORM and scaling.factor == scaling.stretch == 1):
        return {}
    keys = {f"rope.scaling.{key}": getattr(scaling, key) for key in USED[scaling.kind]}
    if scaling.original_context is None and scaling.kind != "linear":
        keys["rope.scaling.original_context"] = model.context
    if scaling.kind == "yarn":
        keys["rope.scaling.attention_factor"] = scaling.stretch
    return keys


def alike(value: Any, other: Any) -> bool:
    """Equal, or the same number in print."""
    if isinstance(value, (int, float)) and isinstance(other, (int, float)):
        return isclose(value, other, rel_tol=CLOSE)
    if isinstance(value, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(value) == len(other) and all(map(alike, value, other))
    return bool(value == other)


def _at(model: ModelSpec, key: str) -> Any:
    """A dotted key's value as the spec has it."""
    value: Any = model.dump()
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
