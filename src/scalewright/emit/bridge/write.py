"""A recipe for Megatron-Bridge: a function that returns a ConfigContainer, and a call of its `pretrain`."""

from __future__ import annotations

from typing import Any

from scalewright.emit.arguments import nodes_of, torchrun_by_variables
from scalewright.emit.bridge.fields import DTYPES, fields_of
from scalewright.emit.emitted import Emitted
from scalewright.emit.megatron.layout import write_layout
from scalewright.emit.megatron.model import Arguments, write_model
from scalewright.emit.megatron.training import write_training
from scalewright.emit.python_code import Call, Name, spelled
from scalewright.emit.settings import Settings

TITLE, VERSION = "Megatron-Bridge", "0.6"
FILE = "recipe.py"
CLASSES = {
    "model": "GPTModelProvider", "train": "TrainingConfig", "validation": "ValidationConfig",
    "optimizer": "OptimizerConfig", "scheduler": "SchedulerConfig", "ddp": "DistributedDataParallelConfig",
    "dist": "DistributedInitConfig", "dataset": "GPTDatasetConfig", "tokenizer": "TokenizerConfig",
    "checkpoint": "CheckpointConfig", "logger": "LoggerConfig", "rng": "RNGConfig",
    "mixed_precision": "MixedPrecisionConfig",
}  # fmt: skip
IMPORTS = """\
import torch
import torch.nn.functional as F
{activation}from megatron.bridge.models.{module} import {provider}
from megatron.bridge.training.config import (
{configs}
)
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
from megatron.bridge.training.pretrain import pretrain
"""


def write(s: Settings) -> Emitted:
    """The complete recipe; raises UserError where it would be another layout."""
    arguments = {**write_model(s), **write_layout(s), **write_training(s)}
    _context(s)
    container = _container(s, arguments)
    nodes, _ = nodes_of(s.layout.devices)
    fsdp = bool(arguments.get("use-megatron-fsdp"))
    order = "" if fsdp else "CUDA_DEVICE_MAX_CONNECTIONS=1 "  # as Megatron-LM's script has it
    command = order + torchrun_by_variables(s.layout.devices, FILE)
    text = "\n".join([
        f'"""Written by `scalewright emit megatron-bridge`: a recipe for Megatron-Bridge {VERSION}.',
        "",
        f"On each of {nodes} nodes, with NODE_RANK=<0..{nodes - 1}> and MASTER_ADDR=<the first node>:",
        f"  {command}",
        '"""',
        "",
        _imports(container),
        "",
        "def config() -> ConfigContainer:",
        f"    return {spelled(container, 4)}",
        "",
        "",
        'if __name__ == "__main__":',
        "    pretrain(config(), forward_step)",
        "",
    ])  # fmt: skip
    return s.emitted(TITLE, "megatron-bridge", VERSION, {FILE: text}, command)


def _context(s: Settings) -> None:
    """Their providers have no positions beside the sequence length."""
    if s.model.context != s.run.seq_len:
        why = "positions are as many as the sequence is long; RoPE's don't depend on it"
        s.nearly("model.context", f"model.seq_length {s.run.seq_len}", why)


def _container(s: Settings, arguments: Arguments) -> Call:
    """The sections with their fields, and what ConfigContainer wants beside them."""
    fields = fields_of(arguments)
    if (window := fields.get("model.window_size")) is not None:
        fields["model.window_size"] = tuple(int(size) for size in window.split(","))
    train, valid = arguments.get("train-data-path"), arguments.get("valid-data-path")
    if train is not None:
        fields["dataset.blend_per_split"] = [_blend(train), _blend(valid or []), None]
    fields |= {
        "dataset.seq_length": s.run.seq_len, "dataset.random_seed": s.values["seed"],
        "dataset.reset_attention_mask": "reset-attention-mask" in arguments,
        "dataset.reset_position_ids": "reset-position-ids" in arguments, "dataset.eod_mask_loss": False,
        "optimizer.use_distributed_optimizer": bool(arguments.get("use-distributed-optimizer")),
        "dist.use_megatron_fsdp": bool(arguments.get("use-megatron-fsdp")),
        "model.vocab_size": s.model.vocab_size, "model.should_pad_vocab": True,
    }  # fmt: skip
    fields |= _precision(arguments)
    sections = {name: Call(cls) for name, cls in CLASSES.items()}
    if s.model.mla:
        sections["model"].name = "MLAModelProvider"
    for name, value in fields.items():
        section, _, field = name.partition(".")
        sections[section].values[field] = value
    return Call("ConfigContainer", {**sections})


def _blend(paths: list[str]) -> tuple[list[str], list[float] | None]:
    """Paths and their weights, as their datasets take them."""
    if len(paths) > 1 and all(item.replace(".", "", 1).isdecimal() for item in paths[::2]):
        return paths[1::2], [float(item) for item in paths[::2]]
    return paths, None


def _precision(arguments: Arguments) -> dict[str, Any]:
    """Types of the parameters and of messages between stages, which their named recipes set too."""
    kind = next((name for name in ("bf16", "fp16") if arguments.get(name)), None)
    dtype = DTYPES[kind] if kind else Name("torch.float32")
    return {
        **({} if kind else {"mixed_precision.fp32": True}),
        "mixed_precision.params_dtype": dtype, "mixed_precision.pipeline_dtype": dtype,
        "mixed_precision.grad_reduce_in_fp32": True,
    }  # fmt: skip


def _imports(container: Call) -> str:
    provider = container.values["model"].name
    skip = ("GPTModelProvider", "MixedPrecisionConfig")
    names = sorted({"ConfigContainer", *(cls for cls in CLASSES.values() if cls not in skip)})
    return IMPORTS.format(
        activation="from megatron.core.activations import squared_relu\n"
        if container.at("model.activation_func") == Name("squared_relu")
        else "",
        module="mla_provider" if provider.startswith("MLA") else "gpt_provider",
        provider=provider,
        configs="\n".join(f"    {name}," for name in names),
    )
