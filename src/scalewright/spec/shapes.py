"""A model shape with a given parameter count: `presets new --params 13e9 --like llama --vocab 65536`.

    width   multiples of 8 heads of 128 when large, so that tensor parallelism of 8 divides them
    depth   hidden / layers as in published models: 64 at 0.1B, 128 at 8B and above
    mlp     the family's ratio to hidden, in steps of 256; of 16 in small models, where fine steps are asked for

The parameter count is affine in depth, and in the MLP's size at a depth: three counts at one width give all
others. The result is the shape within 2% of the size whose proportions are nearest to the usual.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from scalewright.spec.base import read_yaml
from scalewright.spec.errors import UserError, unknown
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec, model_presets
from scalewright.spec.tensors import count

TOLERANCE = 0.02


@dataclass(frozen=True)
class Style:
    """Proportions that a family's shapes share; the table is `presets/styles.yaml`."""

    ratio: float  # intermediate / hidden (of an expert, in a mixture)
    kv_heads: int | None = None  # at most; null: as many as query heads
    head_dim: int | None = None  # null: 64 below 1.5B parameters, 128 above
    tied_below: float = 0.0  # parameters below which embedding and head share a matrix
    fixed_mlp: bool = False  # the config.json has no key for another ratio
    keys: Mapping[str, Any] = field(default_factory=dict)


@lru_cache(maxsize=1)
def styles() -> dict[str, Style]:
    """Family -> its style."""
    table = read_yaml(Path(__file__).parent / "presets" / "styles.yaml")
    return {family: Style(**keys) for family, keys in table.items()}


SHORT = {
    "gpt": "gpt2", "pythia": "gpt_neox", "neox": "gpt_neox", "qwen": "qwen3", "gemma3": "gemma3_text",
    "gpt-oss": "gpt_oss", "llama4": "llama4_text", "llama-4": "llama4_text",
}  # fmt: skip


def new_preset(params: float, like: str = "llama", vocab: int = 65536, fine: bool = False) -> ModelSpec:
    """A spec of the family `like`, or of that preset's, within 2% of `params`; raises UserError when there is none.

    `fine`: sizes of small models in finer steps, so that those of a ladder keep their proportions.
    """
    if vocab < 1 or params <= 0:
        raise UserError(f"params {params:g} and vocab {vocab} must be positive", "presets new", "give other numbers")
    family = find_family(like)
    style = styles()[family]
    widths = _widths(params, style, fine)
    candidates = [shape for width in widths for shape in _candidates(family, style, params, vocab, width, fine)]
    if not candidates and not fine:
        return new_preset(params, like, vocab, fine=True)
    if not candidates:
        smallest = count(_make(family, style, params, vocab, 64, 1, 64)).total
        how = f"the smallest with vocab {vocab} has {smallest:,}" if smallest > params else "try a size nearby"
        raise UserError(f"no {family} shape has {params:g} parameters to within 2%", "presets new", how)
    _, sizes = min(candidates)
    return _make(family, style, params, vocab, *sizes)


def find_family(like: str) -> str:
    """The family of a short name, or of a preset. Raises UserError for one that has no style."""
    name = SHORT.get(like.lower(), like.lower())
    if name in styles():
        return name
    if name in model_presets() and (family := load_model_spec(name).family) in styles():
        return family
    raise unknown("family", like, styles(), "presets new --like")


def _widths(params: float, style: Style, fine: bool) -> list[int]:
    """Widths from a third to three times the one that 12 hidden^2 parameters a layer would need."""
    moe = style.keys.get("moe")
    dense = params * moe["top_k"] / moe["num_experts"] if moe else params  # active parameters set the width
    middle = (dense * _aspect(dense) / 12) ** (1 / 3)
    step = 32 if fine and middle < 128 else 64 if middle < 384 else 256 if dense < 1.5e9 or moe else 1024
    low = max(step, int(middle / 3) // step * step)
    widths = range(low, int(middle * 3) + step, step)
    return [width for width in widths if width < 128 or width % 64 == 0]  # whole heads


def _aspect(params: float) -> float:
    """The usual hidden / layers: GPT-2's 768/12, Llama's 2048/16 at 1B, 4096/32 at 8B, 8192/80, 16384/126."""
    return min(128.0, max(24.0, 100.0 * math.pow(params / 1e9, 0.2)))


def _candidates(
    family: str, style: Style, params: float, vocab: int, hidden: int, fine: bool
) -> Iterator[tuple[float, tuple[int, int, int]]]:
    """(cost, (hidden, layers, mlp)) of every depth that meets the size at this width."""
    step = 256 if hidden >= 1024 and style.ratio > 1 else 16 if fine and hidden < 256 else 64
    base, per_layer, per_step = _affine(family, style, params, vocab, hidden, step)
    usual = max(1, round(style.ratio * hidden / step))
    aspect = _aspect(params) if "moe" not in style.keys else 64.0
    deepest = int((params - base) / max(1.0, per_layer + 0.7 * usual * per_step)) + 1
    for layers in range(1, max(1, deepest) + 1):
        if layers > 8 and layers % 2:  # even depths cut into pipeline stages
            continue
        steps = usual if style.fixed_mlp else max(1, round((params - base - layers * per_layer) / (layers * per_step)))
        total = base + layers * (per_layer + steps * per_step)
        ratio = abs(math.log(steps / usual))
        if abs(total / params - 1) <= TOLERANCE and ratio < 0.35:
            shape = abs(math.log(hidden / layers / aspect))
            yield shape + 2 * ratio + abs(total / params - 1), (hidden, layers, steps * step)


def _affine(family: str, style: Style, params: float, vocab: int, hidden: int, step: int) -> tuple[float, float, float]:
    """Parameters outside the layers, of a layer without its MLP, and of one step of a layer's MLP."""
    shapes = ((1, step), (2, step), (1, 2 * step))  # layers, and the MLP's size
    base, deeper, wider = (count(_make(family, style, params, vocab, hidden, *shape)).total for shape in shapes)
    per_step = wider - base
    return float(2 * base - deeper), float(deeper - base - per_step), float(per_step)


def _make(family: str, style: Style, params: float, vocab: int, hidden: int, layers: int, mlp: int) -> ModelSpec:
    """The spec of these dims; in a mixture `mlp` is the size of an expert."""
    head_dim = style.head_dim or (128 if params >= 1.5e9 else 64)
    head_dim = 32 if hidden < 2 * head_dim else head_dim
    heads = hidden // head_dim
    keys = {**style.keys, "name": f"{family}-{_short(params)}", "family": family}
    keys |= {"vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": mlp}
    keys |= {"num_attention_heads": heads, "head_dim": head_dim, "num_key_value_heads": _kv_heads(heads, style)}
    keys["tie_word_embeddings"] = params < style.tied_below
    if style.keys.get("norm_type") == "rmsnorm_plus_one":
        keys["embedding_scale"] = math.sqrt(hidden)
    if "mla" in keys:  # the heads' size follows from it
        keys["head_dim"] = None
    if "moe" in keys:
        keys["moe"] = {**style.keys["moe"], "moe_intermediate_size": mlp}
    return ModelSpec.parse(keys, "presets new")


def _kv_heads(heads: int, style: Style) -> int:
    """A divisor of the query heads, a third of them at most, and no more than the family has."""
    if style.kv_heads is None:
        return heads
    most = min(style.kv_heads, max(1, heads // 3))
    return max(n for n in range(1, most + 1) if heads % n == 0)


def _short(params: float) -> str:
    """13e9 as 13b, 1.5e8 as 150m."""
    for unit, size in (("t", 1e12), ("b", 1e9), ("m", 1e6), ("k", 1e3)):
        if params >= size:
            return f"{params / size:.3g}{unit}"
    return f"{params:g}"
