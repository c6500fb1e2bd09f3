"""training_args.json, train.py, samples.py and config.json for one run.

zero_stage 0       DDP, by torchrun           2, 3     fsdp, with or without resharding
zero_stage 1       deepspeed                  tp, cp, dp_replicate     parallelism_config

The script takes samples in the run's order, and sets the learning rate by the run's formula.
"""

from __future__ import annotations

from typing import Any

from scalewright.emit.arguments import nodes_of
from scalewright.emit.emitted import Emitted
from scalewright.emit.rules import write_rules
from scalewright.emit.scripts.facts import Facts, take_facts, take_precision, take_recompute
from scalewright.emit.scripts.model import CONFIG, masks_refused, write_config
from scalewright.emit.scripts.render import SAMPLES, as_json, render
from scalewright.emit.scripts.sharding import Sharding, take_sharding
from scalewright.emit.settings import Settings
from scalewright.emit.transformers.schedule import write_optimizer, write_schedule
from scalewright.emit.transformers.words import BATCH, COMMON

TITLE, VERSION = "Transformers", "5.23 with accelerate 1.15"
FILE, SCRIPT = "training_args.json", "train.py"
CONTEXTS = {"allgather": ("allgather", True), "ring": ("allgather", False)}
# What the Trainer fills into DeepSpeed's configuration from its own arguments.
FILLED: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
}  # fmt: skip
CPU = {"device": "cpu", "pin_memory": True}


def write(s: Settings) -> Emitted:
    """All files; raises UserError where it would be another layout, or another network."""
    network = write_config(s)
    sharding = take_sharding(s, TITLE, CONTEXTS)
    masks = masks_refused(s) or (
        "context parallelism has no masks but the causal one" if s.layout.cp > 1 else None
    )
    facts = {**take_facts(s, masks), **take_recompute(s)}
    precision = take_precision(s, TITLE)
    arguments = _arguments(s, facts, precision) | write_sharding(s, sharding, facts)
    command = _command(s)
    script = render(
        "transformers", f=facts, command=command, sharding=sharding, precision=precision, **sharding.sizes
    )
    files = {FILE: as_json(arguments), SCRIPT: script, "samples.py": SAMPLES, CONFIG: network}
    return s.emitted(TITLE, "transformers", VERSION, files, command)


def _arguments(s: Settings, facts: Facts, precision: str) -> dict[str, Any]:
    first, second = s.take("optimizer.betas")
    written: dict[str, Any] = {
        "output_dir": f"{s.run.folder}/transformers",
        "max_steps": facts["steps"],
        **write_rules(s, (BATCH,)),
        "gradient_accumulation_steps": facts["accumulation"],
        **write_rules(s, COMMON),
        "adam_beta1": first,
        "adam_beta2": second,
        "optim": write_optimizer(s, TITLE),
        **write_schedule(s, facts),
    }
    if precision != "fp32":
        written[precision] = True
    if facts["deterministic"]:
        written["full_determinism"] = True
    every = facts["save_every"]
    written |= {"save_strategy": "steps", "save_steps": every} if every else {"save_strategy": "no"}
    if facts["valid_every"]:
        written |= {
            "eval_strategy": "steps",
            "eval_steps": facts["valid_every"],
            "per_device_eval_batch_size": s.layout.micro_batch,
            "prediction_loss_only": True,
        }
    return written | {
        "logging_steps": 1, "report_to": "none", "remove_unused_columns": False,
        "use_cpu": s.run.device == "cpu", "ddp_find_unused_parameters": False,
    }  # fmt: skip


def write_sharding(s: Settings, sharding: Sharding, facts: Facts) -> dict[str, Any]:
    """fsdp, deepspeed and parallelism_config; what FSDP recomputes itself leaves the facts."""
    whole_layers = facts["every"] == 1 and not facts["products"]
    written: dict[str, Any] = {}
    if sharding.kind == "fsdp":
        written["fsdp"] = True
        written["fsdp_config"] = {
            "version": 2,
            "reshard_after_forward": sharding.reshard,
            "cpu_offload": sharding.offload,
            "activation_checkpointing": whole_layers,
            "state_dict_type": "SHARDED_STATE_DICT",
        }
        if whole_layers:
            facts["every"] = 0
        if s.layout.offload == "activations":
            s.drop("layout.offload", "the Trainer's FSDP offloads parameters, gradients and states alone")
    elif whole_layers:
        written |= {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
        facts["every"] = 0
    if sharding.kind == "deepspeed":
        written["deepspeed"] = write_deepspeed(s)
    if sharding.kind == "loaded" and s.layout.offload == "activations":
        s.drop("layout.offload", "transformers' own FSDP2 offloads parameters, gradients and states alone")
    if sharding.kind == "fsdp" or s.layout.tp > 1:
        written["parallelism_config"] = {f"{name}_size": size for name, size in sharding.sizes.items()}
    return written


def write_deepspeed(s: Settings) -> dict[str, Any]:
    """ZeRO 1 as the Trainer takes it: "auto" is filled in from its own arguments."""
    zero: dict[str, Any] = {"stage": s.layout.zero_stage}
    config: dict[str, Any] = {**FILLED, "zero_allow_untested_optimizer": True}
    if s.layout.offload == "optimizer":
        s.take("layout.offload")
        zero["offload_optimizer"] = dict(CPU)
        config["zero_force_ds_cpu_optimizer"] = False
    else:
        s.drop("layout.offload", "ZeRO 1 offloads optimizer states alone")
    return {"zero_optimization": zero, **config}


def _command(s: Settings) -> str:
    nodes, each = nodes_of(s.layout.devices)
    if s.layout.devices == 1:
        return f"python {SCRIPT}"
    where = f"--nnodes {nodes} --node-rank $NODE_RANK --master-addr $MASTER_ADDR " if nodes > 1 else ""
    return f"torchrun {where}--nproc-per-node {each} {SCRIPT}"
