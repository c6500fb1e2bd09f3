"""The Trainer's parser: HfArgumentParser on training_args.json, and the plugins that it makes of it."""

from __future__ import annotations

import contextlib
import io
import json
from importlib import metadata
from pathlib import Path

from harness.parsers.words import words
from scalewright.emit.emitted import Emitted
from scalewright.emit.settings import Settings

TITLE = "Transformers"
NEEDS = "pip install transformers accelerate; deepspeed for runs with zero_stage 1"
CHECKS = (
    "names of all arguments", "words of optimizers, schedules and fsdp", "the schedule's arguments",
    "combinations of precisions, saves and evaluations", "FSDP2's reshard_after_forward",
    "tp and cp beside shards", "config.json, by building the model without weights",
)  # fmt: skip
UNCHECKED = ("names within fsdp_config", "the product of sizes", "the rest of the script", "memory")


def prepare() -> str:
    """The version that is asked."""
    return metadata.version("transformers")


def refusal(folder: Path, emitted: Emitted, settings: Settings) -> str:
    """The parser's words on emitted arguments; they are read as on a CPU, since there may be no GPU."""
    import torch
    from accelerate import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin
    from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, TrainingArguments, get_scheduler

    path = folder / "on_cpu.json"
    arguments = json.loads((folder / "training_args.json").read_text(encoding="utf-8"))
    arguments |= {"use_cpu": True, "tf32": None, "output_dir": str(folder / "out")}
    if arguments.pop("deepspeed", None) and _lacks_deepspeed():
        return "DeepSpeed is not installed"
    path.write_text(json.dumps(arguments), encoding="utf-8")
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            (args,) = HfArgumentParser((TrainingArguments,)).parse_json_file(str(path))
        if args.fsdp_plugin_args:
            FullyShardedDataParallelPlugin(**args.fsdp_plugin_args)
        if args.parallelism_config:
            ParallelismConfig(**args.parallelism_config)
        weight = torch.nn.Parameter(torch.zeros(1))
        get_scheduler(
            args.lr_scheduler_type,
            torch.optim.SGD([weight], lr=args.learning_rate),
            num_warmup_steps=args.get_warmup_steps(args.max_steps),
            num_training_steps=args.max_steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
        with torch.device("meta"):
            AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    except Exception as error:
        return words(error)
    return ""


def _lacks_deepspeed() -> bool:
    try:
        metadata.version("deepspeed")
    except metadata.PackageNotFoundError:
        return True
    return False
