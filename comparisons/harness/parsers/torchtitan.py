"""torchtitan's parser: `ConfigManager`, `ParallelDims`, and of 0.3 what its model makes of them."""

from __future__ import annotations

import contextlib
import dataclasses
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
    "names of all fields", "that the product of all degrees is the world",
    "local batch by micro-batch with a pipeline", "CUDA graphs with a pipeline or experts",
    "a memory budget without compilation",
    "of 0.3: heads by tp, length by RoPE's table, layers by stages, the schedule's name",
    "(ours:) that its model, made without memory, has as many parameters as ours",
)  # fmt: skip
UNCHECKED = (
    "types of fields", "global batch by local batch x dp", "rounds of an interleaved schedule",
    "the stages of named modules", "ep by the degrees that it is made of",
    "of 0.2: the schedule's name, the length", "whether dataset and tokenizer exist", "memory",
)  # fmt: skip

DEGREES = {
    "dp_replicate": "data_parallel_replicate_degree", "dp_shard": "data_parallel_shard_degree",
    "cp": "context_parallel_degree", "tp": "tensor_parallel_degree", "pp": "pipeline_parallel_degree",
    "ep": "expert_parallel_degree", "etp": "expert_tensor_parallel_degree",
}  # fmt: skip
SAME_SIZE = ("model.norm_eps", "model.mtp_layers", "model.context", "model.query_scale", "model.rope.scaling.factor")


def prepare() -> str:
    """Imports its parser, as if there were a Hopper: quantized layers ask for one."""
    stand_ins.triton()
    stand_ins.hopper()
    quiet = io.StringIO()
    with contextlib.redirect_stderr(quiet), contextlib.redirect_stdout(quiet):
        _manager()
        importlib.import_module("torchtitan.distributed.parallel_dims")
        if importlib.util.find_spec("torchtitan.trainer"):  # 0.3
            importlib.import_module("torchtitan.models.qwen3")
            for name in ("float8", "mx", "nvfp4"):
                module: Any = importlib.import_module(f"torchtitan.components.quantization.{name}")
                module.has_cuda_capability = lambda *_: True
    logging.disable(logging.WARNING)
    return metadata.version("torchtitan")


def refusal(folder: Path, emitted: Emitted, settings: Settings) -> str:
    """The parser's words on an emitted file; meanwhile the working directory is the folder."""
    ConfigManager = _manager().ConfigManager
    toml = "titan.toml" in emitted.files
    arguments = ["--job.config_file", "titan.toml"] if toml else ["--module", "titan", "--config", "config"]
    before, quiet = Path.cwd(), io.StringIO()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            config: Any = ConfigManager().parse_args(arguments)
            model = (_check_toml if toml else _check_python)(config, settings)
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
    theirs += sum(values.numel() for name, values in model.named_buffers() if "expert_bias" in name)
    ours = count(settings.model).total
    return "" if theirs == ours else f"its model has {theirs:,} parameters, ours {ours:,}"


def _manager() -> Any:
    """The module of its ConfigManager, which moved after 0.1."""
    try:
        return importlib.import_module("torchtitan.config.manager")
    except ImportError:
        return importlib.import_module("torchtitan.config_manager")


def _check_python(config: Any, settings: Settings) -> Any:
    """Its checks; the model, without memory."""
    import torch
    from torchtitan.distributed import pipeline_parallel
    from torchtitan.distributed.parallel_dims import ParallelDims

    sizes = ParallelDims.from_config(config.parallelism, settings.layout.devices)
    config.model_spec.model.update_from_config(config=config)
    if sizes.pp > 1:
        pipeline_parallel._get_pipeline_metadata(sizes, config.parallelism, config.model_spec.model)
    with torch.device("meta"):
        return config.model_spec.model.build()


def _check_toml(config: Any, settings: Settings) -> Any:
    """The same of 0.1 and 0.2."""
    import torch
    from torchtitan.distributed.parallel_dims import ParallelDims
    from torchtitan.protocols import train_spec

    importlib.import_module("torchtitan.models")  # 0.1 registers its own when they are imported
    if hasattr(train_spec, "_extra_train_specs"):
        train_spec._extra_train_specs.clear()
    if config.experimental.custom_import:
        importlib.import_module(config.experimental.custom_import)
    spec: Any = train_spec.get_train_spec(config.model.name)
    sizes = {name: getattr(config.parallelism, key, 1) for name, key in DEGREES.items()}
    wanted = {item.name for item in dataclasses.fields(ParallelDims)}
    given = {"world_size": settings.layout.devices, "enable_loss_parallel": True, **sizes}
    ParallelDims(**{name: value for name, value in given.items() if name in wanted})
    if hasattr(spec, "config"):  # 0.1, whose vocabulary is the tokenizer's
        arguments = dataclasses.replace(spec.config[config.model.flavor], vocab_size=settings.model.vocab_size)
    else:
        arguments = spec.model_args[config.model.flavor]
        arguments.update_from_config(config)
    with torch.device("meta"):
        return (spec.cls if hasattr(spec, "cls") else spec.model_cls)(arguments)
