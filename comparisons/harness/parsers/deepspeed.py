"""DeepSpeed's parser: `DeepSpeedConfig`, told how many data-parallel ranks there are."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

from harness.parsers.words import words
from scalewright.emit.emitted import Emitted
from scalewright.emit.settings import Settings

TITLE = "DeepSpeed"
NEEDS = """torch, and deepspeed without its compiled parts:
pip install setuptools wheel ninja
DS_BUILD_OPS=0 DS_ACCELERATOR=cpu pip install --no-build-isolation deepspeed"""
CHECKS = (
    "batch = micro-batch x accumulation x data-parallel ranks", "names and types within zero_optimization",
    "stages", "keys that were removed",
)  # fmt: skip
UNCHECKED = ("names of its sections (gradient_cliping passes)", "AutoTP's sizes", "the script", "memory")


def prepare() -> str:
    """The version that is asked; on a machine without a GPU it takes the CPU for one."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    return metadata.version("deepspeed")


def refusal(folder: Path, emitted: Emitted, settings: Settings) -> str:
    """The parser's words on an emitted configuration."""
    from deepspeed.runtime import config

    class Ranks:
        """The groups of a run; AutoTP's ranks count as data-parallel."""

        def get_data_parallel_world_size(self) -> int:
            return settings.layout.dp * settings.layout.tp

        def get_sequence_parallel_world_size(self) -> int:
            return settings.layout.cp

    before = config.dist.get_rank
    config.dist.get_rank = lambda *_: 0
    try:
        config.DeepSpeedConfig(str(folder / "ds_config.json"), mpu=Ranks())
    except Exception as error:
        return words(error)
    finally:
        config.dist.get_rank = before
    return ""
