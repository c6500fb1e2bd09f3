"""A real model of the size that a law asks for: a preset of the family within 5%, else the family scaled.

    N of the law (its own count) ──► total parameters ──► spec/shapes.py: heads, layers and widths that divide
                  ▲                                             │
                  └───────── its exact count ◄──────────────────┘   until both agree

A law that leaves embeddings out asks for a larger total; of a mixture a token meets only the active parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from scalewright.spec.errors import UserError
from scalewright.spec.huggingface import why_not_running
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import is_preset, load_model_spec, model_presets
from scalewright.spec.shapes import find_family, new_preset, styles
from scalewright.spec.tensors import count

NEAR = 0.05  # a preset so close is taken: the loss along a budget is flat, its shape and its vocabulary are well known
GIVEN = 0.01  # the same of a size that the user gave
FAMILY, MIXTURE = "llama", "total of a mixture"
SMALLEST, LARGEST = 1e4, 1e14
# Usual vocabularies by parameters: the embedding stays a small part of a model.
VOCABULARIES = ((1e9, 65536), (1e8, 32768), (1e7, 8192), (2e6, 2048), (0.0, 512))


def shape_keys(like: str) -> Mapping[str, Any]:
    """The keys that shapes of a family (or of a preset's) share. Raises UserError for an unknown one."""
    return styles()[find_family(like)].keys


def size_of(spec: ModelSpec, counts: str) -> int:
    """The parameters of a model as a law counts them."""
    sizes = count(spec)
    if counts == MIXTURE:
        return sizes.total - sizes.embedding - sizes.head
    if counts == "non-embedding":
        return sizes.active - sizes.embedding - sizes.head
    return sizes.active


def make_shape(
    params: float, counts: str = "total", like: str | None = None, vocab: int | None = None, near: float = NEAR
) -> ModelSpec:
    """A model with about so many parameters, by `counts`; a preset within `near`. Raises UserError for none."""
    if not SMALLEST <= params <= LARGEST:
        how = f"sizes from {SMALLEST:g} to {LARGEST:g} have shapes: give another budget, or --params"
        raise UserError(f"{params:.3g} parameters are no size of a language model", "budget", how)
    if vocab is None and like is not None and is_preset(like):
        vocab = load_model_spec(like).vocab_size
    if vocab is None and (preset := _nearest_preset(params, counts, like or FAMILY, near)) is not None:
        return preset
    vocab = vocab or next(size for least, size in VOCABULARIES if params >= least)
    total, best = float(params), None
    for _ in range(6):
        spec = scaled(total, like or FAMILY, vocab)
        size = size_of(spec, counts)
        if best is None or abs(math.log(max(size, 1) / params)) < abs(math.log(max(size_of(best, counts), 1) / params)):
            best = spec
        if abs(size / params - 1) < 0.01:
            break
        total *= min(max(params / max(size, 1), 0.1), 50.0)
    assert best is not None
    return best


def scaled(total: float, like: str, vocab: int) -> ModelSpec:
    """A family's shape of this size; small ones, whose steps are coarse, up to 25% beside it. Raises UserError."""
    for percent in (0, 2, -2, 5, -5, 9, -9, 14, -14, 20, -20, 25):
        with suppress(UserError):
            return new_preset(total * (1 + percent / 100), like, vocab, fine=True)
    return new_preset(total, like, vocab)


@lru_cache(maxsize=8)
def _presets(family: str) -> tuple[ModelSpec, ...]:
    """The family's models that `train` runs."""
    return tuple(spec for spec in model_presets().values() if spec.family == family and why_not_running(spec) is None)


def _nearest_preset(params: float, counts: str, family: str, near: float) -> ModelSpec | None:
    by_distance = [(abs(size_of(spec, counts) / params - 1), at, spec) for at, spec in enumerate(_presets(family))]
    distance, _, spec = min(by_distance, default=(1.0, 0, None))
    return spec if distance <= near else None
