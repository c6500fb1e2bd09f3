"""DeepSpeed's JSON as a run: batch, precision, ZeRO, optimizer, schedule; the model isn't in it.

train_batch_size    micro-batch x accumulation x data-parallel ranks, among which it counts AutoTP's
zero_optimization   {"stage": 2}, and of old files 2 or true
"auto"              what the Hugging Face Trainer fills in from its own arguments: reported, not read
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.emit.deepspeed.write import write
from scalewright.emit.emitted import Reading
from scalewright.emit.foreign import ForeignKeys, LayoutKey, LayoutKeys, RunKeys, real_of, true, whole_of
from scalewright.emit.rules import put
from scalewright.emit.scripts.model import read_beside
from scalewright.emit.tables import keys_for
from scalewright.spec.common.formatting import flat

__all__ = ["read", "recognises", "write"]
AUTO = "filled in by the Hugging Face Trainer from its own arguments: read those"
SECTIONS = ("bf16", "bfloat16", "fp16", "zero_optimization", "activation_checkpointing")
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
READ_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "fusedadam": "adamw", "sgd": "sgd", "lion": "lion",
                   "muon": "muon"}  # fmt: skip
SCHEDULERS = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
OFFLOADS = ("cpu", "nvme")
# Top-level keys and whole sections (ending in a dot) of logs, profiles, buffers and communication.
ASIDE = keys_for("deepspeed")
NEOX = {"num-layers", "num_layers", "hidden-size", "hidden_size", "pipe-parallel-size", "pipe_parallel_size"}


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run."""
    run: RunKeys = {}
    foreign = read_sections(document, run)
    fit_batch(foreign, run["layout"], None)
    read_beside(where, run)
    return foreign.reading("deepspeed", run)


def read_sections(document: Mapping[str, Any], run: RunKeys) -> ForeignKeys:
    """Puts a JSON's settings into a run; `fit_batch` settles the batch then."""
    keys = flat(_in_sections(document))
    foreign = ForeignKeys(keys, frozenset(key for key in keys if is_aside(key)))
    layout = run.setdefault("layout", {})
    for key, value in keys.items():
        if value == "auto" and not is_aside(key):
            foreign.refuse(key, AUTO)
    _read_batch(foreign, layout)
    _read_precision(foreign, layout)
    _read_zero(foreign, layout)
    _read_axes(foreign, layout)
    if any(key.startswith("activation_checkpointing.") for key in keys):
        layout["recompute"] = "full"
        foreign.assume("recompute full: the script decides which layers use activation_checkpointing")
        if true(keys.get("activation_checkpointing.cpu_checkpointing")):
            layout["offload"] = "all" if "offload" in layout else "activations"
    _read_optimizer(foreign, run)
    _read_scheduler(foreign, run)
    return foreign


def _in_sections(document: Mapping[str, Any]) -> dict[str, object]:
    """Old files have `"fp16": true` and `"zero_optimization": 2` in place of sections."""
    keys: dict[str, object] = {}
    for name, value in document.items():
        if name in SECTIONS and not isinstance(value, Mapping):
            staged = name == "zero_optimization" and value != "auto"
            value = {"stage": int(value or 0)} if staged else {"enabled": value}
        keys["bf16" if name == "bfloat16" else str(name)] = value
    return keys


def given(t: ForeignKeys, key: str) -> Any:
    """A key's value; None where it is "auto", which stays reported."""
    return None if t.values.get(key) == "auto" else t.take(key)


def _read_batch(t: ForeignKeys, layout: LayoutKeys) -> None:
    names: tuple[LayoutKey, ...] = ("global_batch", "micro_batch", "accumulation")
    for ours, foreign in zip(names, BATCH, strict=True):
        if (size := whole_of(given(t, foreign))) is not None:
            layout[ours] = size


def fit_batch(t: ForeignKeys, layout: LayoutKeys, devices: int | None) -> None:
    """Devices, micro-batch and global batch, from those of them that are given; the fewest devices else.

    `accumulation` leaves the layout.
    """
    parts = layout.get("tp", 1) * layout.get("cp", 1) * layout.get("pp", 1)
    accumulation, micro = layout.pop("accumulation", None), layout.get("micro_batch")
    whole_batch = layout.get("global_batch")
    if devices is None and whole_batch and micro and accumulation:
        devices = max(1, whole_batch // (micro * accumulation)) * parts
    if devices is None or devices % parts:
        fewest = parts * layout.get("dp_replicate", 1)
        t.guess_devices(fewest)
        devices = fewest
    dp = devices // parts
    if micro is None:
        micro = max(1, (whole_batch or dp) // (dp * (accumulation or 1)))
        t.guess("micro_batch", micro)
    if whole_batch is None:
        whole_batch = micro * dp * (accumulation or 1)
        if accumulation is None:
            t.guess("global_batch", whole_batch, ": one micro-batch of each data-parallel rank")
        t.follow("global_batch")
    layout |= {"devices": devices, "micro_batch": micro, "global_batch": whole_batch}


def _read_precision(t: ForeignKeys, layout: LayoutKeys) -> None:
    bf16, fp16 = (given(t, f"{name}.enabled") for name in ("bf16", "fp16"))
    autocast, dtype = given(t, "torch_autocast.enabled"), given(t, "torch_autocast.dtype")
    if true(bf16) or (true(autocast) and "bfloat16" in str(dtype)):
        layout["precision"] = "bf16"
    elif true(fp16) or true(autocast):
        layout["precision"] = "fp16"
    elif "auto" not in (t.values.get("bf16.enabled"), t.values.get("fp16.enabled")):
        layout["precision"] = "fp32"


def _read_zero(t: ForeignKeys, layout: LayoutKeys) -> None:
    section = "zero_optimization."
    stage = real_of(given(t, f"{section}stage"))
    given(t, f"{section}enabled")
    layout["zero_stage"] = int(stage) if stage in (0, 1, 2, 3) else 0
    if stage not in (None, 0, 1, 2, 3):
        t.refuse(f"{section}stage", "stages are 0 to 3")
    read_offload(t, layout, section)
    for key in ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients"):
        if t.values.get(f"{section}{key}") in (1, False):
            given(t, f"{section}{key}")
        t.refuse(f"{section}{key}", "ZeRO++ isn't here")
    t.refuse(f"{section}mics_shard_size", "set layout.dp_replicate = data-parallel ranks / this size")


def read_offload(t: ForeignKeys, layout: LayoutKeys, section: str, device: str = ".device") -> None:
    """What goes to host memory: parameters take their gradients and states along, in every trainer."""
    devices = {name: t.take(f"{section}offload_{name}{device}") for name in ("optimizer", "param")}
    old = {name: true(given(t, f"{section}{name}")) for name in ("cpu_offload", "cpu_offload_params")}
    if devices["param"] in OFFLOADS or old["cpu_offload_params"]:
        layout["offload"] = "parameters"
    elif devices["optimizer"] in OFFLOADS or old["cpu_offload"]:
        layout["offload"] = "optimizer"


def _read_axes(t: ForeignKeys, layout: LayoutKeys) -> None:
    tp = whole_of(t.take_first("tensor_parallel.autotp_size", "tensor_parallel.tp_size", "tensor_parallel.tp.tp_size"))
    if tp is not None and tp > 1:
        layout |= {"tp": tp, "sp": False}
        if (rows := layout.get("global_batch")) and rows % tp == 0:
            layout["global_batch"] = rows // tp  # AutoTP's ranks count as data-parallel there
    if (ranks := whole_of(given(t, "sequence_parallel_size"))) is not None and ranks > 1:
        layout |= {"cp": ranks, "cp_kind": "ulysses"}
    if (stages := whole_of(given(t, "pipeline.stages"))) is not None and stages > 1:
        layout |= {"pp": stages, "schedule": "1f1b"}


def _read_optimizer(t: ForeignKeys, run: RunKeys) -> None:
    clip = real_of(given(t, "gradient_clipping"))
    if clip is not None or "gradient_clipping" not in t:
        put(run, "optimizer.clip_norm", clip or 0.0)
    kind = given(t, "optimizer.type")
    if kind is None:
        return
    optimizer = run["optimizer"] = run.get("optimizer", {})
    name = READ_OPTIMIZERS.get(str(kind).lower())
    if name is None:
        t.refuse("optimizer.type", "an optimizer that isn't here: taken as AdamW")
    optimizer["name"] = name or "adamw"
    for key, why in (("bias_correction", "AdamW corrects its moments' bias here"),
                     ("adam_w_mode", "weights decay by themselves here, not by the gradient")):  # fmt: skip
        if (value := given(t, f"optimizer.params.{key}")) is not None and not true(value):
            t.refuse(f"optimizer.params.{key}", why)
    for key, default in (("lr", 1e-3), ("eps", 1e-8), ("weight_decay", 0.0)):
        value = real_of(given(t, f"optimizer.params.{key}"))
        if value is not None or f"optimizer.params.{key}" not in t:
            optimizer[key] = default if value is None else value
    betas = given(t, "optimizer.params.betas")
    if isinstance(betas, list) and len(betas) == 2:
        optimizer["betas"] = betas
    elif "optimizer.params.betas" not in t:
        optimizer["betas"] = [0.9, 0.999]
    if (momentum := real_of(given(t, "optimizer.params.momentum"))) is not None:
        optimizer["momentum"] = momentum


def _read_scheduler(t: ForeignKeys, run: RunKeys) -> None:
    kind = given(t, "scheduler.type")
    if kind is None:
        return
    section = "scheduler.params."
    if kind not in SCHEDULERS:
        t.refuse("scheduler.type", "a schedule that isn't here")
        return
    schedule: dict[str, object] = {"kind": SCHEDULERS[kind]}
    given(t, f"{section}warmup_type"), given(t, f"{section}warmup_min_ratio")
    warmup, total = (whole_of(given(t, f"{section}warmup_num_steps")), whole_of(given(t, f"{section}total_num_steps")))
    if warmup is not None or f"{section}warmup_num_steps" not in t:
        schedule["warmup_steps"] = warmup or (1000 if f"{section}warmup_num_steps" not in t else 0)
    if schedule["kind"] != "constant":
        ratio = real_of(given(t, f"{section}cos_min_ratio"))
        schedule["min_ratio"] = (0.0001 if ratio is None else ratio) if schedule["kind"] == "cosine" else 0.0
    if total is not None:
        put(run, "train.steps", total)
    highest, lowest = (real_of(given(t, f"{section}warmup_max_lr")), real_of(given(t, f"{section}warmup_min_lr")))
    if highest:
        put(run, "optimizer.lr", highest)
    if lowest:
        t.refuse(f"{section}warmup_min_lr", "a warm-up starts at 0 here")
    run["lr_schedule"] = schedule


def is_aside(key: str) -> bool:
    """Whether a dotted key changes neither the layout nor the numbers of a run."""
    return any(key.startswith(name) if name.endswith(".") else key == name for name in ASIDE)


def recognises(document: Any, text: str) -> bool:
    """A DeepSpeed JSON (or YAML); GPT-NeoX's files have its keys beside their own."""
    if not isinstance(document, dict) or NEOX & document.keys() or "output_dir" in document:
        return False
    return any(key in document for key in ("zero_optimization", *BATCH[:2]))
