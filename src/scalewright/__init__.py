"""Scalewright plans, runs and explains the training of large language models.

>>> import scalewright as sw
>>> spec = sw.load_model_spec("llama-3.1-8b")

Names are looked up when they are used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

_HOME = {
    "load_model_spec": "scalewright.spec.presets",
    "load_cluster": "scalewright.machine.local",
    "Layout": "scalewright.spec.layout",
    "ModelSpec": "scalewright.spec.model",
    "RunSpec": "scalewright.spec.run",
    "load_run": "scalewright.spec.run",
    "predict": "scalewright.api",
    "read": "scalewright.api",
    "plan": "scalewright.api",
    "goodput": "scalewright.api",
    "budget": "scalewright.api",
    "inference": "scalewright.api",
    "explain": "scalewright.api",
    "lab": "scalewright.api",
    "train": "scalewright.api",
    "diagnose": "scalewright.api",
    "load_model": "scalewright.serve.load",
    "UserError": "scalewright.spec.errors",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'scalewright' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)  # see packages.py for `plan` and `train`


def __dir__() -> list[str]:
    return sorted(__all__)
