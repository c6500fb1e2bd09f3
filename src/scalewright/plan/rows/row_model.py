"""The model of a row: by its published name, by its dims, or by its size alone.

    Llama-3-70B (truncated to 12 layers)  -->  the preset llama-3-70b, with the row's layers
    ./mine/config.json                    -->  the model of that file
    layers 96, hidden 12288, heads 96     -->  those dims; defaults for blanks
    params_b 22                           -->  the usual shape of a model of that size

Defaults: vocabulary 51,200; heads of 128; a plain MLP of 4 widths, or a gated one of 8/3; layers and whether
the head is tied from the number of parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from scalewright.plan.rows.cells import MOST, Assumptions, number, text
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec, MoE
from scalewright.spec.presets import is_preset, load_model_spec
from scalewright.spec.shapes import new_preset
from scalewright.spec.tensors import count

VOCAB, CONTEXT, HEAD_DIM, TOP_K = 51200, 2048, 128, 2
SMALL_VOCAB = 32000  # where only the size is known: Llama 2's
LEAST_BILLIONS, MOST_BILLIONS = 1e-4, 1e5
STRUCTURE = ("shared_ffn", "moe_every", "dense_ffn", "dense_layers", "mtp")
CONTRADICTS = 0.05  # share of the stated parameters from which a difference of the dims is noted


@dataclass(frozen=True)
class Dims:
    """A row's cells and options about its model; None for a blank."""

    layers: float | None
    hidden: float | None
    heads: float | None
    kv_heads: float | None
    head_dim: float | None
    ffn: float | None
    mlp_mats: float | None  # 2 a plain MLP, 3 a gated one
    vocab: float | None
    experts: float | None
    topk: float | None
    params_b: float | None  # billions, embedding included
    seq: float | None
    shared_ffn: float | None = None  # hidden units of the shared experts together
    moe_every: float | None = None  # every n-th layer holds experts
    dense_ffn: float | None = None  # hidden units of the other layers' MLP
    dense_layers: float | None = None  # leading layers without experts
    mtp: float | None = None  # multi-token-prediction layers that are trained


def model_of(row: Mapping[str, Any], options: Mapping[str, str], assumed: Assumptions) -> ModelSpec:
    """The row's model; appends to `assumed`. Raises UserError where too little is stated."""
    cells = {key: number(row, key) for key in Dims.__annotations__ if key not in STRUCTURE}
    dims = Dims(**cells, **{key: number(options, key) for key in STRUCTURE})
    name = text(row, "model")
    model, notes = _build(name, dims)
    assumed += notes
    if "hybrid" in options and not (model.mamba or model.deltanet):
        assumed.append("layers of other kinds (hybrid) priced as attention blocks")
    if dims.params_b and "truncated" not in name.lower():
        billions = count(model).total / 1e9
        embedding = model.vocab_size * model.hidden_size / 1e9  # some sizes exclude it
        if min(abs(size / dims.params_b - 1) for size in (billions, billions - embedding)) > CONTRADICTS:
            assumed.append(f"dims of {billions:.3g}B parameters, though params_b is {dims.params_b:g}")
    return model


def known_name(name: str) -> str:
    """A published name in the presets' spelling: `Llama-3-70B (truncated to 12 layers)` -> `llama-3-70b`."""
    plain = re.sub(r"\(.*?\)", "", name).strip().lower().replace(" ", "-").replace("_", "-")
    return re.sub(r"^(llama|nemotron|grok)-?(\d)", r"\1-\2", plain)


@lru_cache(maxsize=4096)
def _build(name: str, dims: Dims) -> tuple[ModelSpec, tuple[str, ...]]:
    path = name.endswith((".json", ".yaml", ".yml")) or name.startswith(("./", "../", "/", "~"))
    named = load_model_spec(name) if path else _preset(known_name(name))
    if named is not None and (dims.hidden is None or int(dims.hidden) == named.hidden_size):
        stated = {"context": dims.seq, "num_hidden_layers": dims.layers, "vocab_size": dims.vocab}
        changes = {key: int(value) for key, value in stated.items() if value}
        notes = () if dims.hidden else (f"dims of {named.name} (from the model's name)",)
        return _structured(named.replace(**changes) if changes else named, dims), notes
    if dims.hidden is None:
        return _of_size(name, dims)
    blanks: list[str] = []
    keys = _keys(name, dims, int(dims.hidden), blanks)
    keys["num_hidden_layers"] = _layers(keys, dims.params_b) if dims.layers is None else int(dims.layers)
    if dims.layers is None:
        blanks.append(f"layers {keys['num_hidden_layers']} (from params_b)")
    return _structured(_with_head(keys, dims.params_b), dims), tuple(blanks)


def _structured(model: ModelSpec, dims: Dims) -> ModelSpec:
    """The model with the expert and multi-token settings of the row's options."""
    changes: dict[str, int | MoE] = {} if dims.mtp is None else {"mtp_layers": int(dims.mtp)}
    if model.moe is not None:
        stated = {"every": dims.moe_every, "first_k_dense": dims.dense_layers}
        experts: dict[str, int | None] = {key: int(value) for key, value in stated.items() if value is not None}
        if (shared := dims.shared_ffn) is not None:
            experts["num_shared_experts"] = 1 if shared else 0
            experts["shared_intermediate_size"] = int(shared) or None
        if experts:
            changes["moe"] = model.moe.replace(**experts)
        if dims.dense_ffn is not None:
            changes["intermediate_size"] = int(dims.dense_ffn)
    return model.replace(**changes) if changes else model


def _of_size(name: str, dims: Dims) -> tuple[ModelSpec, tuple[str, ...]]:
    """The usual shape of a model of `params_b`."""
    size = dims.params_b
    if size is None:
        raise UserError(f"model '{name}' is unknown and has no dims", "row", "give layers, hidden, heads, ffn")
    if not LEAST_BILLIONS <= size <= MOST_BILLIONS:
        raise UserError(f"params_b is {size:g}", "row", "give billions of parameters, 0.0001 to 100000")
    usual = new_preset(size * 1e9, "llama", SMALL_VOCAB).replace(context=int(dims.seq or CONTEXT))
    return usual, (f"shape of a usual model of {size:g}B parameters",)


def _keys(name: str, dims: Dims, width: int, blanks: list[str]) -> dict[str, object]:
    """The keys of a ModelSpec except its depth."""
    heads = int(dims.heads or _usual_heads(width))
    grouped = bool(dims.kv_heads and dims.heads and dims.kv_heads < dims.heads)
    mats = dims.mlp_mats or (3 if grouped else 2)
    gated = mats >= 3
    ffn = int(dims.ffn or (width * 8 // 3 if gated else 4 * width))
    usual = {"vocab": f"vocab {VOCAB}", "heads": f"heads {heads} (of {width // heads})"}
    usual |= {"mlp_mats": f"mlp_mats {mats:g}", "ffn": "ffn of the usual ratio"}
    blanks += [words for cell, words in usual.items() if getattr(dims, cell) is None]
    even = max(2, width // heads // 2 * 2)
    keys: dict[str, object] = {
        "name": name or "model", "family": "llama" if gated else "gpt2", "vocab_size": int(dims.vocab or VOCAB),
        "hidden_size": width, "intermediate_size": ffn, "num_attention_heads": heads,
        "num_key_value_heads": int(dims.kv_heads or heads), "head_dim": int(dims.head_dim or even),
        "context": int(dims.seq or CONTEXT), "mlp_type": "swiglu" if gated else "gelu",
        "norm_type": "rmsnorm" if gated else "layernorm", "positions": "rope" if gated else "learned",
    }  # fmt: skip
    if dims.experts:
        top_k = int(dims.topk or TOP_K)
        if top_k > dims.experts:
            raise UserError(f"topk {top_k} is more than {dims.experts:g} experts", "row", "make them agree")
        keys["moe"] = {"num_experts": int(dims.experts), "top_k": top_k, "moe_intermediate_size": ffn}
    return keys


def _usual_heads(width: int) -> int:
    """The number of heads: the multiple of 16 that divides the width and is nearest to width / 128."""
    fits = [n for n in range(16, width // 32 + 1, 16) if width % n == 0]
    return min(fits, key=lambda n: abs(n - width / HEAD_DIM)) if fits else max(1, width // HEAD_DIM)


def _layers(keys: Mapping[str, Any], billions: float | None) -> int:
    """The depth at which the model has `billions` of parameters."""
    if billions is None:
        raise UserError("layers and params_b are both blank", "row", "fill one of them")
    first, second = (count(ModelSpec.parse({**keys, "num_hidden_layers": n})).total for n in (1, 2))
    layers = max(1, round((billions * 1e9 - first) / (second - first)) + 1)
    if layers > MOST["layers"]:
        raise UserError(f"params_b {billions:g} needs {layers:g} of these layers", "row", "check the dims")
    return layers


def _with_head(keys: Mapping[str, Any], billions: float | None) -> ModelSpec:
    """The model, its head tied or not by the parameters; models with a plain MLP have a tied head."""
    tied = ModelSpec.parse({**keys, "tie_word_embeddings": True})
    if keys["mlp_type"] == "gelu":
        return tied
    plain = ModelSpec.parse({**keys, "tie_word_embeddings": False})
    if billions is None:
        return plain
    return min((plain, tied), key=lambda model: abs(count(model).total - billions * 1e9))


@lru_cache(maxsize=512)
def _preset(name: str) -> ModelSpec | None:
    guesses = (name, name.replace("llama-3-405b", "llama-3.1-405b"), name.replace("-instruct", ""))
    return next((load_model_spec(guess) for guess in guesses if is_preset(guess)), None)
