"""TrainingArguments as a run: JSON or YAML, as HfArgumentParser takes them.

fsdp          true, or the words of old files: full_shard, shard_grad_op, hybrid_shard, offload
deepspeed     a JSON that is named, or its content
Devices aren't in it, but for the sizes of parallelism_config: the launch line has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.emit.deepspeed.read import BATCH as DEEPSPEED_BATCH
from scalewright.emit.deepspeed.read import fit_batch, read_sections
from scalewright.emit.emitted import Reading
from scalewright.emit.numbers import real_of, true, whole_of
from scalewright.emit.rules import put
from scalewright.emit.scripts.model import linked, read_model
from scalewright.emit.theirs import Theirs
from scalewright.emit.transformers.schedule import read_optimizer, read_schedule
from scalewright.emit.transformers.words import COMMON, DEFAULTS, aside
from scalewright.spec.text.dotted import flat

STAGES = {"full_shard": 3, "shard_grad_op": 2, "hybrid_shard": 3, "hybrid_shard_zero2": 2, "no_shard": 0}
MICRO_BATCH = 8  # theirs where it isn't set
SIZES = ("dp_replicate", "dp_shard", "tp", "cp", "sp")


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run."""
    keys = flattened(document)
    theirs = Theirs(keys, aside(keys))
    run: dict[str, Any] = {}
    read_arguments(theirs, run, where)
    layout = run["layout"]
    devices = _read_sizes(theirs, layout)
    fit_batch(theirs, layout, devices)
    read_model(theirs, "model_name_or_path", where, run)
    return theirs.reading("transformers", run)


def flattened(document: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys, but of `deepspeed`, which is read as a whole."""
    rest = {key: value for key, value in document.items() if key != "deepspeed"}
    keys = {key.replace("fsdp_config.fsdp_", "fsdp_config."): value for key, value in flat(rest).items()}
    return keys | ({"deepspeed": document["deepspeed"]} if document.get("deepspeed") else {})


def read_arguments(t: Theirs, run: dict[str, Any], where: str) -> None:
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


def read_numbers(t: Theirs, run: dict[str, Any]) -> None:
    """The optimizer's numbers and the seed, saves and validations; their defaults where they aren't set."""
    run.setdefault("layout", {})
    for word in COMMON:
        put(run, word.ours, real_of(t.take(word.theirs, DEFAULTS[word.theirs])))
    run["seed"] = int(run["seed"] or 0)
    run["optimizer"]["betas"] = [real_of(t.take(key, DEFAULTS[key])) for key in ("adam_beta1", "adam_beta2")]
    for ours, theirs in (("checkpoint.every", "save_steps"), ("train.valid_every", "eval_steps")):
        if (every := whole_of(t.take(theirs))) is not None:
            put(run, ours, every)


def read_steps(t: Theirs, run: dict[str, Any], epochs: str) -> int | None:
    """Steps of the run; None where epochs are given, which is reported."""
    steps = whole_of(t.take("max_steps"))
    if steps is None:
        t.refuse(epochs, "how many steps an epoch has isn't in it: set train.steps")
        return None
    put(run, "train.steps", steps)
    t.take(epochs)
    return steps


def read_memory(t: Theirs, layout: dict[str, Any]) -> None:
    """Precision and recomputation."""
    bf16, fp16, tf32 = (true(t.take(name)) for name in ("bf16", "fp16", "tf32"))
    layout["precision"] = "bf16" if bf16 else "fp16" if fp16 else "tf32" if tf32 else "fp32"
    if true(t.take("gradient_checkpointing")) | true(t.take("activation_checkpointing")):
        layout["recompute"] = "full"
    t.take("full_determinism")


def _read_fsdp(t: Theirs, layout: dict[str, Any]) -> None:
    given = t.take("fsdp")
    words = (
        [str(word).lower() for word in given] if isinstance(given, list) else str(given or "").lower().split()
    )
    if not words or words == ["false"]:
        return
    reshard = t.take("fsdp_config.reshard_after_forward")
    strategies = [STAGES[word] for word in words if word in STAGES]
    layout["zero_stage"] = strategies[0] if strategies else 3
    if str(reshard).lower() == "false":
        layout["zero_stage"] = 2
    if "offload" in words or any(
        true(t.take(f"fsdp_config.{key}")) for key in ("cpu_offload", "offload_params")
    ):
        layout["offload"] = "parameters"
    if true(t.take("fsdp_config.activation_checkpointing")):
        layout["recompute"] = "full"


def read_deepspeed(t: Theirs, run: dict[str, Any], where: str) -> None:
    """ZeRO and offload of the JSON that `deepspeed` names or is; the rest of it is the Trainer's own."""
    if (value := t.take("deepspeed")) is None:
        return
    document = linked(value, where)
    if document is None:
        t.refuse("deepspeed", "the file isn't in this configuration's folder: read it by itself")
        return
    inner: dict[str, Any] = {}
    theirs = read_sections(document, inner)
    for key in ("zero_stage", "offload", "tp", "sp", "cp", "cp_kind"):
        if key in inner["layout"]:
            run["layout"][key] = inner["layout"][key]
    settled = (*DEEPSPEED_BATCH, "gradient_clipping", "bf16.", "fp16.", "optimizer.", "scheduler.")
    for item in theirs.unread():
        if not (item.value == "auto" and item.key.startswith(settled)):
            t.values[f"deepspeed.{item.key}"] = item.value
            t.refuse(f"deepspeed.{item.key}", item.why)


def _read_sizes(t: Theirs, layout: dict[str, Any]) -> int | None:
    """The devices that parallelism_config makes; None where it isn't there."""
    sizes = {name: whole_of(t.take(f"parallelism_config.{name}_size")) for name in SIZES}
    if all(size is None for size in sizes.values()):
        return None
    devices = 1
    for name, size in sizes.items():
        devices *= size or 1
        if size and size > 1 and name != "dp_shard":
            layout["cp" if name == "sp" else name] = size
    if sizes["dp_shard"] and sizes["dp_shard"] > 1 and not layout["zero_stage"]:
        layout["zero_stage"] = 3  # loaded in shards
    if sizes["sp"] and sizes["sp"] > 1:
        layout["cp_kind"] = "ulysses"
    elif layout.get("cp", 1) > 1:
        layout["cp_kind"] = "allgather"
    if layout.get("tp", 1) > 1:
        layout["sp"] = False
    return devices
