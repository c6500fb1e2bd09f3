"""Accelerate's files: those that are written, and what is recognised as its own."""

from __future__ import annotations

from typing import Any

from scalewright.emit.accelerate.read import read
from scalewright.emit.accelerate.write import write

__all__ = ["read", "recognises", "write"]


def recognises(document: Any, text: str) -> bool:
    """A configuration that `accelerate config` writes."""
    return isinstance(document, dict) and "distributed_type" in document
