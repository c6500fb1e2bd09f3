"""Megatron-LM's parser: `parse_args`, `validate_args` and the making of its TransformerConfig.

Transformer Engine, Triton and a GPU are needed by none of these checks, only by imports and by questions for
the device: `prepare` gives them a Hopper.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import sys
import typing
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.parsers import stand_ins
from harness.parsers.words import words
from scalewright.emit.command_lines import read_script, split_launch
from scalewright.emit.emitted import Emitted
from scalewright.emit.settings import Settings

TITLE = "Megatron-LM"
NEEDS = """torch, numpy, packaging, and megatron-core 0.17 or newer, whose wheel has megatron.training too:
pip download --no-deps --python-version 3.12 --only-binary :all: megatron-core==0.19.2; unzip it, put it on
PYTHONPATH"""
CHECKS = (
    "names and types of all arguments", "world size by tp x pp x cp", "global batch by micro-batch x dp",
    "heads and groups by tp", "layers by stages", "the layers of a pipeline layout", "experts by ep",
    "the sequence by 2 cp", "sequence length by positions", "combinations with Megatron FSDP",
    "CUDA_DEVICE_MAX_CONNECTIONS", "TransformerConfig's and OptimizerConfig's own conditions",
)  # fmt: skip
UNCHECKED = (
    "micro-batches by pp with interleaving", "experts with tp but without sp",
    "the word after --cp-comm-type", "whether data paths exist", "anything of Transformer Engine", "memory",
)  # fmt: skip


def prepare() -> str:
    """Imports Megatron under stand-ins."""
    if not hasattr(typing, "override"):  # the wheel is for Python 3.12; this is all that 3.11 lacks
        import typing_extensions

        typing.override = typing_extensions.override  # type: ignore[attr-defined,unused-ignore]
    stand_ins.triton()
    stand_ins.hopper()
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    warnings.simplefilter("ignore")  # of what isn't installed
    import megatron.core.utils
    import megatron.training.arguments
    from packaging.version import Version

    megatron.core.utils._te_version = Version("2.9.0")  # conditions ask for its version alone
    logging.disable(logging.INFO)
    try:
        return metadata.version("megatron-core")
    except metadata.PackageNotFoundError:
        return str(megatron.core.__version__)


def refusal(folder: Path, emitted: Emitted, settings: Settings) -> str:
    """The parser's words on an emitted script's arguments."""
    from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args

    text = (folder / "pretrain.sh").read_text(encoding="utf-8")
    script = read_script(text)
    _, _, arguments = split_launch(max(script.commands, key=len))
    os.environ["WORLD_SIZE"] = str(settings.layout.devices)
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    if "export CUDA_DEVICE_MAX_CONNECTIONS=1" in text:
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    before = sys.argv
    sys.argv = ["pretrain_gpt.py", *arguments, "--no-rope-fusion"]  # its kernel is Transformer Engine's
    quiet = io.StringIO()
    try:
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            args: Any = parse_args()
            validate_args(args)
            core_transformer_config_from_args(args)
            _optimizer(args)
    except SystemExit:  # argparse's: an unknown argument, a wrong type
        return quiet.getvalue().strip().splitlines()[-1]
    except Exception as error:
        return words(error)
    finally:
        sys.argv = before
    return ""


def _optimizer(args: Any) -> None:
    """The optimizer's configuration, as its training makes it of the arguments."""
    from megatron.core.optimizer import OptimizerConfig

    names = {item.name for item in dataclasses.fields(OptimizerConfig)}
    OptimizerConfig(**{name: value for name, value in vars(args).items() if name in names})
