"""torchtitan's parser: `ConfigManager`, `ParallelDims`, and of 0.3 what its model makes of them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.parsers import stand_ins
from harness.parsers.words import words
from scalewright.emit.emitted import Emitted
from scalewright.emit.settings import Settings
from scalewright.spec.tensors import count

TITLE = "torchtitan"
NEEDS = """torch, and torchtitan: pip install torchtitan==0.3.0; for TOML torchtitan==0.2.2 with --no-deps,
and torchdata, tyro, einops"""
CHECKS = (
    "names and types of all fields", "that the product of all degrees is the world",
    "batches by micro-batches",
    "CUDA graphs with a pipeline or experts", "a memory budget without compilation",
    "of 0.3: heads by tp, length by RoPE's table, layers by stages, the schedule's name",
    "(ours:) that its model, made without memory, has as many parameters as ours",
)  # fmt: skip
UNCHECKED = (
    "global batch by local batch x dp", "rounds of an interleaved schedule",
    "schedule by stages of named modules",
    "ep by the degrees that it is made of", "whether dataset and tokenizer exist", "memory",
)  # fmt: skip

SAME_SIZE = ("model.norm_eps", "model.mtp_layers", "model.context", "model.query_scale")


def prepare() -> str:
    """Imports its parser, as if there were a Hopper: quantized layers ask for one."""
    stand_ins.triton()
    stand_ins.hopper()
    quiet = io.StringIO()
    with contextlib.redirect_stderr(quiet), contextlib.redirect_stdout(quiet):
        for name in ("config.manager", "distributed.parallel_dims"):
            importlib.import_module(f"torchtitan.{name}")
        if importlib.util.find_spec("torchtitan.trainer"):  # 0.3
            importlib.import_module("torchtitan.models.qwen3")
            for name in ("float8", "mx", "nvfp4"):
                module: Any = importlib.import_module(f"torchtitan.components.quantization.{name}")
                module.has_cuda_capability = lambda *_: True
    logging.disable(logging.WARNING)
    return metadata.version("torchtitan")


def refusal(folder: Path, emitted: Emitted, settings: Settings) -> str:
    """The parser's words on an emitted file; meanwhile the working directory is the folder."""
    from torchtitan.config.manager import ConfigManager

    toml = "titan.toml" in emitted.files
    arguments = ["--job.config_file", "titan.toml"] if toml else ["--module", "titan", "--config", "config"]
    before, quiet = Path.cwd(), io.StringIO()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            config: Any = ConfigManager().parse_args(arguments)
            model = (_check_toml if toml else _check_python)(config, settings.layout.devices)
            return _unlike(model, emitted, settings)
    except SystemExit:  # tyro's
        lines = [line.strip("│ ") for line in quiet.getvalue().splitlines()]
        return " ".join(line for line in lines if line and set(line) - set("─╭╮╰╯"))[-300:]
    except Exception as error:
        return words(error)
    finally:
        os.chdir(before)
        sys.path.remove(str(folder))
        for name in ("titan", "own_model"):
            sys.modules.pop(name, None)


def _unlike(model: Any, emitted: Emitted, settings: Settings) -> str:
    """How its model differs from ours in size; "" where it doesn't, or where parts were dropped."""
    lost = {item.key for item in (*emitted.dropped, *emitted.changed) if item.key.startswith("model.")}
    if lost - set(SAME_SIZE):
        return ""
    theirs = sum(parameter.numel() for parameter in set(model.parameters()))
    ours = count(settings.model).total
    return "" if theirs == ours else f"its model has {theirs:,} parameters, ours {ours:,}"


def _check_python(config: Any, devices: int) -> Any:
    """Its checks; the model, without memory."""
    import torch
    from torchtitan.distributed import pipeline_parallel
    from torchtitan.distributed.parallel_dims import ParallelDims

    sizes = ParallelDims.from_config(config.parallelism, devices)
    config.model_spec.model.update_from_config(config=config)
    if sizes.pp > 1:
        pipeline_parallel._get_pipeline_metadata(sizes, config.parallelism, config.model_spec.model)
    with torch.device("meta"):
        return config.model_spec.model.build()


def _check_toml(config: Any, devices: int) -> Any:
    """The same of 0.2."""
    import torch
    from torchtitan.distributed.parallel_dims import ParallelDims
    from torchtitan.protocols import train_spec

    train_spec._extra_train_specs.clear()
    if config.experimental.custom_import:
        importlib.import_module(config.experimental.custom_import)
    spec = train_spec.get_train_spec(config.model.name)
    arguments: Any = spec.model_args[config.model.flavor]
    parallelism = config.parallelism
    ParallelDims(
        dp_replicate=parallelism.data_parallel_replicate_degree,
        dp_shard=parallelism.data_parallel_shard_degree,
        cp=parallelism.context_parallel_degree,
        tp=parallelism.tensor_parallel_degree,
        pp=parallelism.pipeline_parallel_degree,
        ep=parallelism.expert_parallel_degree,
        etp=parallelism.expert_tensor_parallel_degree,
        world_size=devices,
    )
    arguments.update_from_config(config)
    with torch.device("meta"):
        return spec.model_cls(arguments)
