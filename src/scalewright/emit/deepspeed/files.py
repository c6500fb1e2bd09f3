"""DeepSpeed's files: those that are written, and what is recognised as its own."""

from __future__ import annotations

from typing import Any

from scalewright.emit.deepspeed.read import BATCH, read
from scalewright.emit.deepspeed.write import write

__all__ = ["read", "recognises", "write"]
MARKS = ("zero_optimization", "scheduler", *BATCH)
NEOX = {"num-layers", "num_layers", "hidden-size", "hidden_size", "pipe-parallel-size", "pipe_parallel_size"}


def recognises(document: Any, text: str) -> bool:
    """A DeepSpeed JSON (or YAML); GPT-NeoX's files have its keys beside their own."""
    if not isinstance(document, dict) or NEOX & document.keys() or "output_dir" in document:
        return False
    own = {"fp16", "bf16", "optimizer", "gradient_clipping", *MARKS}
    return any(key in document for key in BATCH[:2]) or (
        "zero_optimization" in document and len(own & document.keys()) > 0
    )
