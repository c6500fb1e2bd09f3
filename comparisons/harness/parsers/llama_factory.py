"""LLaMA-Factory's parser: `get_train_args` on the emitted YAML, read as on a CPU."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import yaml

from harness.parsers.words import words
from scalewright.emit.emitted import Emitted
from scalewright.emit.settings import Settings

TITLE = "LLaMA-Factory"
NEEDS = "pip install --no-deps llamafactory omegaconf, beside transformers, datasets, accelerate, trl and peft"
CHECKS = ("names of all keys", "TrainingArguments' own conditions", "combinations of stages, datasets and evaluations")
UNCHECKED = ("DeepSpeed's section, which is left out where DeepSpeed is missing", "the data", "memory")


def prepare() -> str:
    """It refuses releases of transformers that it wasn't tried with."""
    os.environ["DISABLE_VERSION_CHECK"] = "1"
    return metadata.version("llamafactory")


def refusal(folder: Path, emitted: Emitted, settings: Settings) -> str:
    """The parser's words on an emitted configuration."""
    from llamafactory.hparams import get_train_args

    document = yaml.safe_load((folder / "llama_factory.yaml").read_text(encoding="utf-8"))
    document |= {"use_cpu": True, "tf32": None, "output_dir": str(folder / "out")}
    document.pop("deepspeed", None)
    try:
        get_train_args(document)
    except Exception as error:
        return words(error)
    return ""
