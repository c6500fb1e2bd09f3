"""Megatron-Bridge's files: the recipe that is written, and what is recognised as its own or as NeMo's."""

from __future__ import annotations

import re
from typing import Any

from scalewright.emit.bridge.fields import FIELDS
from scalewright.emit.bridge.nemo import read_nemo
from scalewright.emit.bridge.read import read_overrides, read_recipe, read_test
from scalewright.emit.bridge.write import write
from scalewright.emit.emitted import Reading

__all__ = ["read", "recognises", "write"]
MARKS = frozenset(
    field for field in FIELDS.values() if field.startswith(("train.", "ddp.")) or "parallel_size" in field
)
NEMO = ("encoder_seq_length", "megatron_amp_O2", "activations_checkpoint_granularity", "mcore_gpt")
RECIPE = re.compile(r"\bmegatron\.bridge\b|\bConfigContainer\b")


def recognises(document: Any, text: str) -> bool:
    """Overrides, a NeMo configuration or test, or a Python recipe."""
    if isinstance(document, dict):
        return _is_test(document) or _is_nemo(document) or _is_override(document)
    return document is None and bool(RECIPE.search(text)) and "def " in text


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run; raises UserError."""
    if not isinstance(document, dict):
        return read_recipe(text, where)
    if _is_test(document):
        return read_test(document)
    return read_nemo(document) if _is_nemo(document) else read_overrides(document)


def _is_test(document: dict[Any, Any]) -> bool:
    arguments = document.get("MODEL_ARGS")
    return isinstance(arguments, dict) and any(
        str(key).startswith(("trainer.", "model.config.")) for key in arguments
    )


def _is_nemo(document: dict[Any, Any]) -> bool:
    model = document.get("model")
    return (
        isinstance(model, dict)
        and isinstance(document.get("trainer"), dict)
        and any(key in model for key in NEMO)
    )


def _is_override(document: dict[Any, Any]) -> bool:
    if "model_name" in document or "model_config" in document:
        return False  # litgpt's: its `train` has some of the same keys
    return any(
        f"{section}.{key}" in MARKS
        for section, values in document.items()
        if isinstance(values, dict)
        for key in values
    )
