"""Megatron-LM's files: the run script that is written, and what is recognised as its own."""

from __future__ import annotations

import re
from typing import Any

from scalewright.emit.emitted import Reading
from scalewright.emit.megatron.read import PRINTED, read_printed, read_test, read_text
from scalewright.emit.megatron.write import write

__all__ = ["read", "recognises", "write"]
FLAG = re.compile(r"--(?:tensor-model-parallel-size|num-layers|micro-batch-size)\b|pretrain_\w+\.py")


def recognises(document: Any, text: str) -> bool:
    """A script or command line, a functional test's YAML, or arguments as they are printed."""
    if isinstance(document, dict):
        return any(str(key).startswith("--") for key in document.get("MODEL_ARGS") or ())
    return document is None and bool(FLAG.search(text) or _is_printed(text))


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run; raises UserError."""
    if isinstance(document, dict):
        return read_test(document)
    return read_printed(text) if _is_printed(text) else read_text(text, where)


def _is_printed(text: str) -> bool:
    return any(name == "tensor_model_parallel_size" for name, _ in PRINTED.findall(text))
