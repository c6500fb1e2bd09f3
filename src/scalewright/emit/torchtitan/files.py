"""torchtitan's files: a Python module for 0.3, TOML before; and what is recognised as one of them."""

from __future__ import annotations

import re
from typing import Any

from scalewright.emit.emitted import Emitted, Reading
from scalewright.emit.settings import Settings
from scalewright.emit.torchtitan import python, toml

CODE = re.compile(r"\btorchtitan\b|\bTrainer\.Config\b")
MARKS = {
    "model": ("flavor",),
    "training": ("local_batch_size", "batch_size", "data_parallel_degree"),
    "parallelism": ("data_parallel_shard_degree", "tensor_parallel_degree"),
}


def write(settings: Settings) -> Emitted:
    """The configuration for the asked release, 0.3 where none is; raises UserError."""
    release = ".".join((settings.version or "0.3").split(".")[:2])
    return toml.write(settings, release) if release in ("0.1", "0.2") else python.write(settings)


def recognises(document: Any, text: str) -> bool:
    """TOML with its sections, or a Python file that names it."""
    if isinstance(document, dict):
        return any(
            isinstance(document.get(section), dict) and any(key in document[section] for key in keys)
            for section, keys in MARKS.items()
        )
    return document is None and "def " in text and bool(CODE.search(text))


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run; raises UserError."""
    return toml.read(document, text) if isinstance(document, dict) else python.read(text, where)
