"""A small model of the same family and features, to try a layout on where the real one won't fit.

kept      norms and their places, biases, qk-norm, tied head, MLP and position kinds, GQA ratio, softcaps,
          whether KV heads are fewer than tp, whether tp divides the vocabulary, stages the layers
smaller   layers, dimensions, vocabulary, context
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import lcm, sqrt
from typing import Any

from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec

LARGEST_RATIO = 16  # query heads per KV head
HEAD_DIMS = (8, 16, 32, 64, 128)
SEQ_LEN = 32


def small_seq_len(seq_len: int, layout: Layout) -> int:
    """A short sequence that the layout's context and sequence parallelism can cut."""
    parts = 2 * layout.cp * layout.tp
    return min(seq_len, -(-SEQ_LEN // parts) * parts)


def small_model(model: ModelSpec, before: Layout, after: Layout, seq_len: int) -> ModelSpec:
    """The small model for the layout `after`, which stands for `before`; `seq_len` is already short."""
    *smaller, largest = HEAD_DIMS
    for head_dim in smaller:
        with suppress(UserError):
            return ModelSpec.parse(_keys(model, before, after, seq_len, head_dim), "model")
    return ModelSpec.parse(_keys(model, before, after, seq_len, largest), "model")


def fewer_kv_heads(model: ModelSpec, before: Layout, after: Layout) -> ModelSpec:
    """The model itself; with fewer KV heads where tp exceeded them before and no longer does."""
    if model.kv_heads < before.tp and model.kv_heads >= after.tp > 1:
        return model.replace(num_key_value_heads=_kv_heads(model, before, after))
    return model


def _kv_heads(model: ModelSpec, before: Layout, after: Layout) -> int:
    if model.kv_heads < before.tp:
        return min(max(1, after.tp * model.kv_heads // before.tp), max(1, after.tp // 2))
    return 1 if model.kv_heads == 1 else max(2, after.tp)


def _heads(model: ModelSpec, before: Layout, after: Layout) -> tuple[int, int]:
    kv, ratio = _kv_heads(model, before, after), model.num_attention_heads // model.kv_heads
    if ratio > LARGEST_RATIO:
        ratio = 4
    if ratio * kv == 1:  # one head alone is no model that heads are cut in
        kv = 2
    ulysses = after.cp if after.cp_kind == "ulysses" else 1
    return lcm(kv * ratio, after.tp * ulysses), kv


def _layers(model: ModelSpec, before: Layout, after: Layout) -> int:
    least = max(2, after.stages)
    if model.moe:
        least = max(least, min(1, model.moe.first_k_dense) + model.moe.every)
    uneven = before.stages > 1 and model.num_hidden_layers % before.stages
    by_hand = before.stage_layers is not None and len(set(before.stage_layers)) > 1
    return least + 1 if uneven or by_hand else least


def _keys(model: ModelSpec, before: Layout, after: Layout, seq_len: int, head_dim: int) -> dict[str, object]:
    heads, kv = _heads(model, before, after)
    width = heads * head_dim
    share = model.hidden_size / (model.num_attention_heads * model.dim_per_head)
    hidden = max(16, round(share * width / 8) * 8)
    step = 8 * after.tp
    mlp = max(step, round(model.intermediate_size / model.hidden_size * hidden / step) * step)
    keys: dict[str, Any] = {
        **model.dump(),
        "name": f"{model.name}-small",
        "vocab_size": 251 if model.vocab_size % before.tp or model.vocab_size % 2 else 256,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": _layers(model, before, after),
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": head_dim,
        "context": seq_len,
        "learned_positions": min(model.learned_positions, seq_len),
        "mtp_layers": min(model.mtp_layers, 2),
    }
    if model.vocab_size < 256:
        keys["vocab_size"] = model.vocab_size
    if model.embedding_scale is not None:
        keys["embedding_scale"] = sqrt(hidden)
    if model.query_scale is not None:
        keys["query_scale"] = head_dim**-0.5
    if model.rope_every_not is not None:
        keys["rope_every_not"] = min(model.rope_every_not, keys["num_hidden_layers"])
    if model.attention_temperature is not None:
        keys["attention_temperature"]["floor_scale"] = max(1, seq_len // 4)
    keys.update(_windows(model, keys["num_hidden_layers"], seq_len))
    keys["rope"] = _rope(keys["rope"], head_dim)
    if keys["moe"]:
        keys["moe"] = _experts(keys["moe"], after, step)
    if keys["mla"]:
        keys["mla"] = {**keys["mla"], "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8}
        keys["mla"].update({"v_head_dim": 8, "q_lora_rank": 16 if keys["mla"]["q_lora_rank"] else None})
        keys["head_dim"] = 16
    return keys


def _windows(model: ModelSpec, layers: int, seq_len: int) -> dict[str, object]:
    """A window that the short sequence feels, and both kinds of layer where there were both."""
    if model.sliding_window is None:
        return {}
    pattern = model.window_pattern
    shorter = list(pattern)
    if {pattern[layer % len(pattern)] for layer in range(layers)} != set(pattern):
        shorter = [layer + 1 < layers for layer in range(layers)]  # full in the last, as where RoPE is left out
    return {"sliding_window": min(model.sliding_window, max(2, seq_len // 2)), "window_pattern": shorter}


def _rope(rope: Mapping[str, Any], head_dim: int) -> Mapping[str, object]:
    scaling = rope.get("scaling")
    if not scaling:
        return rope
    pairs = round(head_dim * rope["fraction"]) // 2
    cut = {key: list(scaling[key])[:pairs] for key in ("short_factor", "long_factor") if scaling.get(key)}
    return {**rope, "scaling": {**scaling, **cut}}


def _experts(moe: Mapping[str, Any], after: Layout, step: int) -> dict[str, object]:
    experts, groups = max(4, 2 * after.ep), min(2, moe["groups"])
    return {
        **moe,
        "num_experts": experts,
        "top_k": min(moe["top_k"], experts // 2),
        "moe_intermediate_size": step,
        "shared_intermediate_size": step if moe["shared_intermediate_size"] else None,
        "num_shared_experts": min(1, moe["num_shared_experts"]),
        "first_k_dense": min(1, moe["first_k_dense"]),
        "dense_layers": [layer for layer in moe["dense_layers"] if layer < 1],
        "groups": groups,
        "top_groups": min(groups, moe["top_groups"]),
    }
