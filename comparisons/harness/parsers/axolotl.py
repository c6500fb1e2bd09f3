"""Axolotl's parser: its pydantic models, told of Hopper GPUs, with a stand-in for ring_flash_attn."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from importlib import metadata
from pathlib import Path

import yaml

from harness.parsers.words import words
from scalewright.emit.emitted import Emitted
from scalewright.emit.settings import Settings

TITLE = "Axolotl"
NEEDS = "pip install --no-deps axolotl addict trl peft, beside transformers and accelerate"
CHECKS = (
    "types of all values",
    "words of optimizers and schedules",
    "combinations: datasets, saves, evaluations, context parallelism, FSDP and DeepSpeed",
)
UNCHECKED = ("names of keys, which it ignores where it doesn't have them", "sizes by devices", "memory")


def prepare() -> str:
    """Puts the stand-in in place."""
    ring = types.ModuleType("ring_flash_attn")
    ring.__spec__ = importlib.machinery.ModuleSpec("ring_flash_attn", None)
    sys.modules.setdefault("ring_flash_attn", ring)
    return metadata.version("axolotl")


def refusal(folder: Path, emitted: Emitted, settings: Settings) -> str:
    """The parser's words on an emitted configuration."""
    from axolotl.utils.schemas.config import AxolotlConfigWCapabilities

    document = yaml.safe_load((folder / "axolotl.yaml").read_text(encoding="utf-8"))
    gpus = {"bf16": True, "fp8": True, "n_gpu": settings.layout.devices, "n_node": 1,
            "compute_capability": "sm_90", "tf32": True}  # fmt: skip
    try:
        taken = AxolotlConfigWCapabilities(**document, capabilities=gpus, env_capabilities={"torch_version": "2.13.0"})
    except Exception as error:
        return words(error)
    ignored = [key for key in document if not hasattr(taken, key)]
    return f"it has no {', '.join(ignored)}" if ignored else ""
