"""Megatron-Bridge's files: a recipe, written as a function that returns a ConfigContainer and a call of its
`pretrain`; and what is recognised as its own or as NeMo's.
"""

from __future__ import annotations

import re
from typing import Any

from scalewright.emit.bridge.fields import DTYPES, FIELDS, fields_of
from scalewright.emit.bridge.nemo import read_nemo
from scalewright.emit.bridge.read import read_overrides, read_recipe, read_test
from scalewright.emit.command_lines import nodes_of, torchrun_by_variables
from scalewright.emit.emitted import Emitted, Reading
from scalewright.emit.megatron.layout import write_layout
from scalewright.emit.megatron.model import Arguments, write_model
from scalewright.emit.megatron.training import write_training
from scalewright.emit.python_code import Call, Name, spelled
from scalewright.emit.settings import Settings

MARKS = {field for field in FIELDS.values() if field.startswith(("train.", "ddp.")) or "parallel_size" in field}
NEMO = ("encoder_seq_length", "megatron_amp_O2", "activations_checkpoint_granularity", "mcore_gpt")
RECIPE = re.compile(r"\bmegatron\.bridge\b|\bConfigContainer\b")
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


def recognises(document: Any, text: str) -> bool:
    """Overrides, a NeMo configuration or test, or a Python recipe."""
    if isinstance(document, dict):
        return _is_test(document) or _is_nemo(document) or _is_override(document)
    return document is None and bool(RECIPE.search(text)) and "def " in text


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run; raises UserError."""
    if not isinstance(document, dict):
        return read_recipe(text, where)
    if _is_test(document):
        return read_test(document)
    return read_nemo(document) if _is_nemo(document) else read_overrides(document)


def _is_test(document: dict[Any, Any]) -> bool:
    arguments = document.get("MODEL_ARGS")
    return isinstance(arguments, dict) and any(str(key).startswith(("trainer.", "model.config.")) for key in arguments)


def _is_nemo(document: dict[Any, Any]) -> bool:
    model = document.get("model")
    return isinstance(model, dict) and isinstance(document.get("trainer"), dict) and any(key in model for key in NEMO)


def _is_override(document: dict[Any, Any]) -> bool:
    if "model_name" in document or "model_config" in document:
        return False  # litgpt's: its `train` has some of the same keys
    sections = [(name, values) for name, values in document.items() if isinstance(values, dict)]
    return any(f"{name}.{key}" in MARKS for name, values in sections for key in values)


def write(s: Settings) -> Emitted:
    """The complete recipe; raises UserError where it would be another layout."""
    arguments = {**write_model(s), **write_layout(s), **write_training(s)}
    if s.model.context != s.run.seq_len:
        why = "positions are as many as the sequence is long; RoPE's don't depend on it"
        s.nearly("model.context", f"model.seq_length {s.run.seq_len}", why)
    container = _container(s, arguments)
    nodes, _ = nodes_of(s.layout.devices)
    fsdp = bool(arguments.get("use-megatron-fsdp"))
    order = "" if fsdp else "CUDA_DEVICE_MAX_CONNECTIONS=1 "  # as Megatron-LM's script has it
    command = order + torchrun_by_variables(s.layout.devices, FILE)
    text = f'''"""Written by `scalewright emit megatron-bridge`: a recipe for Megatron-Bridge {VERSION}.

On each of {nodes} nodes, with NODE_RANK=<0..{nodes - 1}> and MASTER_ADDR=<the first node>:
  {command}
"""

{_imports(container)}

def config() -> ConfigContainer:
    return {spelled(container, 4)}


if __name__ == "__main__":
    pretrain(config(), forward_step)
'''
    return s.emitted(TITLE, "megatron-bridge", VERSION, {FILE: text}, command)


def _container(s: Settings, arguments: Arguments) -> Call:
    """The sections with their fields, and what ConfigContainer wants beside them."""
    fields = fields_of(arguments)
    if (window := fields.get("model.window_size")) is not None:
        fields["model.window_size"] = tuple(int(size) for size in str(window).split(","))
    train, valid = arguments.get("train-data-path"), arguments.get("valid-data-path")
    if isinstance(train, list):
        held_out = _blend(valid if isinstance(valid, list) else [])
        fields["dataset.blend_per_split"] = [_blend(train), held_out, None]
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


def _precision(arguments: Arguments) -> dict[str, object]:
    """Types of the parameters and of messages between stages, which their named recipes set too."""
    kind = next((name for name in ("bf16", "fp16") if arguments.get(name)), None)
    dtype = DTYPES[kind] if kind else Name("torch.float32")
    keys = {**({} if kind else {"fp32": True}), "params_dtype": dtype, "pipeline_dtype": dtype}
    return {f"mixed_precision.{key}": value for key, value in {**keys, "grad_reduce_in_fp32": True}.items()}


def _imports(container: Call) -> str:
    provider = container.values["model"].name
    skip = ("GPTModelProvider", "MixedPrecisionConfig")
    names = sorted({"ConfigContainer", *(cls for cls in CLASSES.values() if cls not in skip)})
    squared = container.at("model.activation_func") == Name("squared_relu")
    activation = "from megatron.core.activations import squared_relu\n" if squared else ""
    module = "mla_provider" if provider.startswith("MLA") else "gpt_provider"
    configs = "\n".join(f"    {name}," for name in names)
    return IMPORTS.format(activation=activation, module=module, provider=provider, configs=configs)
