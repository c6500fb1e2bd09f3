"""Accelerate's parser: the file's loader, the launcher's arguments, and the plugins made of them."""

from __future__ import annotations

import contextlib
import io
from importlib import metadata
from pathlib import Path
from unittest import mock

from harness.parsers.words import words
from scalewright.emit.emitted import Emitted
from scalewright.emit.settings import Settings

TITLE = "Accelerate"
NEEDS = "pip install accelerate"
CHECKS = (
    "names of the file's own keys", "distributed_type", "mixed_precision", "FSDP2's reshard_after_forward",
    "cp_comm_strategy", "tp and cp beside shards", "the product of sizes, compared with num_processes",
)  # fmt: skip
UNCHECKED = ("names within fsdp_config and deepspeed_config", "DeepSpeed's own conditions", "the script", "memory")


def prepare() -> str:
    """The version that is asked."""
    return metadata.version("accelerate")


def refusal(folder: Path, emitted: Emitted, settings: Settings) -> str:
    """The parser's words on an emitted configuration."""
    from accelerate import ParallelismConfig
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    path = str(folder / "accelerate_config.yaml")
    try:
        load_config_from_file(path)
        with contextlib.redirect_stderr(io.StringIO()):
            given = launch_command_parser().parse_args(["--config_file", path, str(folder / "train.py")])
            arguments, _, _ = _validate_launch_command(given)
            arguments.main_process_port = 0
            environment = prepare_multi_gpu_env(arguments)
        with mock.patch.dict("os.environ", environment):
            if arguments.use_fsdp:
                FullyShardedDataParallelPlugin()
            if arguments.use_parallelism_config:
                sizes = ParallelismConfig()
                if sizes.total_size != arguments.num_processes:
                    return f"total_size {sizes.total_size} of {arguments.num_processes} processes"
    except Exception as error:
        return words(error)
    return ""
