"""TrainingArguments both ways: training_args.json, train.py, samples.py and config.json; JSON or YAML read.

zero_stage 0       DDP, by torchrun           2, 3     fsdp, with or without resharding
zero_stage 1       deepspeed                  tp, cp, dp_replicate     parallelism_config

The script takes samples in the run's order, and sets the learning rate by the run's formula. Files are read as
HfArgumentParser takes them: fsdp as true or in words (full_shard, shard_grad_op, hybrid_shard, offload), deepspeed as a
JSON's name or content. Devices aren't in them, but for the sizes of parallelism_config: the launch line has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from scalewright.emit.command_lines import nodes_of
from scalewright.emit.deepspeed.read import BATCH as DEEPSPEED_BATCH
from scalewright.emit.deepspeed.read import fit_batch, read_sections
from scalewright.emit.emitted import Emitted, Reading
from scalewright.emit.foreign import ForeignKeys, LayoutKey, LayoutKeys, RunKeys, real_of, true, whole_of
from scalewright.emit.rules import Pair, Rule, Word, put, words_for
from scalewright.emit.scripts import model as scripts
from scalewright.emit.scripts.facts import (
    Facts,
    Sharding,
    take_facts,
    take_precision,
    take_recompute,
    take_sharding,
    take_states_offload,
)
from scalewright.emit.settings import Settings
from scalewright.emit.tables import keys_for
from scalewright.emit.transformers.schedule import read_optimizer, read_schedule, write_optimizer, write_schedule
from scalewright.spec.common.formatting import flat

NUMBERS = words_for("transformers, numbers")
BETAS = Pair("optimizer.betas", ("adam_beta1", "adam_beta2"), (0.9, 0.999))
COMMON: tuple[Rule, ...] = (*NUMBERS, BETAS)
BATCH = Word("layout.micro_batch", "per_device_train_batch_size")
ASIDE = keys_for("transformers")
SECTIONS = ("gradient_checkpointing_kwargs.", "activation_checkpointing_kwargs.", "accelerator_config.",
            "liger_kernel_config.", "fsdp_config.xla")  # fmt: skip
STAGES = {"full_shard": 3, "shard_grad_op": 2, "hybrid_shard": 3, "hybrid_shard_zero2": 2, "no_shard": 0}
MICRO_BATCH = 8  # theirs where it isn't set
SIZES = ("dp_replicate", "dp_shard", "tp", "cp", "sp")
OURS: Mapping[str, LayoutKey] = {"dp_replicate": "dp_replicate", "tp": "tp", "cp": "cp", "sp": "cp"}
TITLE, VERSION = "Transformers", "5.23 with accelerate 1.15"
FILE = "training_args.json"
CONTEXTS = {"allgather": ("allgather", True), "ring": ("allgather", False)}
# What the Trainer fills into DeepSpeed's configuration from its own arguments.
FILLED: dict[str, object] = {
    "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
}  # fmt: skip
MARKS = {"per_device_train_batch_size", "learning_rate", "max_steps", "num_train_epochs", "gradient_accumulation_steps"}
# A sequence's length in scripts around the Trainer: run_clm.py's, TRL's, FastChat's, LLaMA-Factory's.
LENGTHS = ("block_size", "max_seq_length", "max_seq_len", "model_max_length", "cutoff_len", "max_length", "seq_length")
OTHERS = {"base_model", "finetuning_type", "cutoff_len", "template", "stage", "dataset_dir"}  # Axolotl, LLaMA-Factory


def aside(keys: Iterable[str], besides: frozenset[str] = frozenset()) -> frozenset[str]:
    """Those of these keys that say nothing about a run; `own`: another trainer's beside."""
    return frozenset(key for key in keys if key in ASIDE or key in besides or key.startswith(SECTIONS))


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run."""
    keys = flattened(document)
    foreign = ForeignKeys(keys, aside(keys))
    run: RunKeys = {}
    read_arguments(foreign, run, where)
    layout = run["layout"]
    devices = _read_sizes(foreign, layout)
    fit_batch(foreign, layout, devices)
    scripts.read_model(foreign, "model_name_or_path", where, run)
    if (length := whole_of(foreign.take_first(*LENGTHS))) is not None:
        put(run, "data.seq_len", length)
    return foreign.reading("transformers", run)


def flattened(document: Mapping[str, Any]) -> dict[str, object]:
    """Dotted keys, but of `deepspeed`, which is read as a whole."""
    rest = {key: value for key, value in document.items() if key != "deepspeed"}
    keys = {key.replace("fsdp_config.fsdp_", "fsdp_config."): value for key, value in flat(rest).items()}
    return keys | ({"deepspeed": document["deepspeed"]} if document.get("deepspeed") else {})


def read_arguments(t: ForeignKeys, run: RunKeys, where: str) -> None:
    """What TrainingArguments has, for files that hold it among others; the batch isn't settled."""
    read_numbers(t, run)
    layout = run["layout"]
    layout["micro_batch"] = whole_of(t.take("per_device_train_batch_size", MICRO_BATCH)) or 1
    layout["accumulation"] = whole_of(t.take("gradient_accumulation_steps", 1)) or 1
    steps = read_steps(t, run, "num_train_epochs")
    read_optimizer(t, run)
    read_schedule(t, run, steps)
    read_memory(t, layout)
    layout["zero_stage"] = 0
    _read_fsdp(t, layout)
    read_deepspeed(t, run, where)


def read_numbers(t: ForeignKeys, run: RunKeys) -> None:
    """The optimizer's numbers and the seed, saves and validations; their defaults where they aren't set."""
    run.setdefault("layout", {})
    for word in NUMBERS:
        put(run, word.ours, real_of(t.take(word.foreign, word.absent)))
    run["seed"] = int(run["seed"] or 0)
    run["optimizer"]["betas"] = [real_of(t.take(*key)) for key in zip(BETAS.foreign, BETAS.absent, strict=True)]
    for ours, foreign in (("checkpoint.every", "save_steps"), ("train.valid_every", "eval_steps")):
        if (every := whole_of(t.take(foreign))) is not None:
            put(run, ours, every)


def read_steps(t: ForeignKeys, run: RunKeys, epochs: str) -> int | None:
    """Steps of the run; None where epochs are given, which is reported."""
    steps = whole_of(t.take("max_steps"))
    if steps is None:
        t.refuse(epochs, "how many steps an epoch has isn't in it: set train.steps")
        return None
    put(run, "train.steps", steps)
    t.take(epochs)
    return steps


def read_memory(t: ForeignKeys, layout: LayoutKeys) -> None:
    """Precision and recomputation."""
    bf16, fp16, tf32 = (true(t.take(name)) for name in ("bf16", "fp16", "tf32"))
    layout["precision"] = "bf16" if bf16 else "fp16" if fp16 else "tf32" if tf32 else "fp32"
    if true(t.take("gradient_checkpointing")) | true(t.take("activation_checkpointing")):
        layout["recompute"] = "full"
    t.take("full_determinism")


def _read_fsdp(t: ForeignKeys, layout: LayoutKeys) -> None:
    given = t.take("fsdp")
    words = [str(word).lower() for word in given] if isinstance(given, list) else str(given or "").lower().split()
    if not words or words == ["false"]:
        return
    reshard = t.take("fsdp_config.reshard_after_forward")
    strategies = [STAGES[word] for word in words if word in STAGES]
    layout["zero_stage"] = strategies[0] if strategies else 3
    if str(reshard).lower() == "false":
        layout["zero_stage"] = 2
    if "offload" in words or any(true(t.take(f"fsdp_config.{key}")) for key in ("cpu_offload", "offload_params")):
        layout["offload"] = "parameters"
    if true(t.take("fsdp_config.activation_checkpointing")):
        layout["recompute"] = "full"


def read_deepspeed(t: ForeignKeys, run: RunKeys, where: str) -> None:
    """ZeRO and offload of the JSON that `deepspeed` names or is; the rest of it is the Trainer's own."""
    if (value := t.take("deepspeed")) is None:
        return
    document = scripts.linked(value, where)
    if document is None:
        t.refuse("deepspeed", "the file isn't in this configuration's folder: read it by itself")
        return
    inner: RunKeys = {}
    foreign = read_sections(document, inner)
    kept = ("zero_stage", "offload", "tp", "sp", "cp", "cp_kind")
    for key, value in inner["layout"].items():
        if key in kept:
            put(run, f"layout.{key}", value)
    settled = (*DEEPSPEED_BATCH, "gradient_clipping", "bf16.", "fp16.", "optimizer.", "scheduler.")
    for item in foreign.unread():
        if not (item.value == "auto" and item.key.startswith(settled)):
            t.values[f"deepspeed.{item.key}"] = item.value
            t.refuse(f"deepspeed.{item.key}", item.why)


def _read_sizes(t: ForeignKeys, layout: LayoutKeys) -> int | None:
    """The devices that parallelism_config makes; None where it isn't there."""
    sizes = {name: whole_of(t.take(f"parallelism_config.{name}_size")) for name in SIZES}
    if all(size is None for size in sizes.values()):
        return None
    for name, size in sizes.items():
        if size and size > 1 and name != "dp_shard":
            layout[OURS[name]] = size
    if sizes["dp_shard"] and sizes["dp_shard"] > 1 and not layout["zero_stage"]:
        layout["zero_stage"] = 3  # loaded in shards
    if sizes["sp"] and sizes["sp"] > 1:
        layout["cp_kind"] = "ulysses"
    elif layout.get("cp", 1) > 1:
        layout["cp_kind"] = "allgather"
    if layout.get("tp", 1) > 1:
        layout["sp"] = False
    return prod(size or 1 for size in sizes.values())


def write(s: Settings) -> Emitted:
    """All files; raises UserError where it would be another layout, or another network."""
    network = scripts.write_config(s)
    sharding = take_sharding(s, TITLE, CONTEXTS)
    facts = {**take_facts(s, scripts.masks_refused(s)), **take_recompute(s)}
    precision = take_precision(s, TITLE)
    arguments = _arguments(s, facts, precision) | write_sharding(s, sharding, facts)
    nodes, each = nodes_of(s.layout.devices)
    where = f"--nnodes {nodes} --node-rank $NODE_RANK --master-addr $MASTER_ADDR " if nodes > 1 else ""
    torchrun = f"torchrun {where}--nproc-per-node {each} {scripts.SCRIPT}"
    command = torchrun if s.layout.devices > 1 else f"python {scripts.SCRIPT}"
    script = scripts.render(
        "transformers", f=facts, command=command, sharding=sharding, precision=precision, **sharding.sizes
    )
    files = scripts.with_script({FILE: scripts.as_json(arguments)}, script, network)
    return s.emitted(TITLE, "transformers", VERSION, files, command)


def _arguments(s: Settings, facts: Facts, precision: str) -> dict[str, object]:
    written: dict[str, object] = {
        "output_dir": f"{s.run.folder}/transformers", "max_steps": facts["steps"], **s.write((BATCH,)),
        "gradient_accumulation_steps": facts["accumulation"], **s.write(COMMON), "optim": write_optimizer(s, TITLE),
        **write_schedule(s, facts),
    }  # fmt: skip
    if precision != "fp32":
        written[precision] = True
    if facts["deterministic"]:
        written["full_determinism"] = True
    every = facts["save_every"]
    written |= {"save_strategy": "steps", "save_steps": every} if every else {"save_strategy": "no"}
    if facts["valid_every"]:
        written |= {"eval_strategy": "steps", "eval_steps": facts["valid_every"],
                    "per_device_eval_batch_size": s.layout.micro_batch, "prediction_loss_only": True}  # fmt: skip
    return written | {"logging_steps": 1, "report_to": "none", "remove_unused_columns": False,
                      "use_cpu": s.run.device == "cpu", "ddp_find_unused_parameters": False}  # fmt: skip


def write_sharding(s: Settings, sharding: Sharding, facts: Facts) -> dict[str, object]:
    """fsdp, deepspeed and parallelism_config; what FSDP recomputes itself leaves the facts."""
    whole_layers = facts["every"] == 1 and not facts["products"]
    written: dict[str, object] = {}
    if sharding.kind == "fsdp":
        written["fsdp"] = True
        written["fsdp_config"] = {
            "version": 2, "reshard_after_forward": sharding.reshard, "cpu_offload": sharding.offload,
            "activation_checkpointing": whole_layers, "state_dict_type": "SHARDED_STATE_DICT",
        }  # fmt: skip
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


def write_deepspeed(s: Settings) -> dict[str, object]:
    """ZeRO as the Trainer takes it: "auto" is filled in from its own arguments."""
    zero: dict[str, object] = {"stage": s.layout.zero_stage}
    config: dict[str, object] = {**FILLED, "zero_allow_untested_optimizer": True}
    if take_states_offload(s):
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        config["zero_force_ds_cpu_optimizer"] = False
    return {"zero_optimization": zero, **config}


def recognises(document: Any, text: str) -> bool:
    """TrainingArguments, alone or with those of a script that takes them."""
    if not isinstance(document, dict) or OTHERS & document.keys():
        return False
    return "output_dir" in document and bool(MARKS & document.keys())
