"""Optimizer, learning rate, data and saves in torchtitan's keys, both ways.

cosine, linear        decay_type, no decay_ratio: from the end of the warm-up to the last step
wsd                   decay_ratio = decay_steps / steps, decay_type linear
constant              decay_ratio 0
clip_norm 0           max_norm 1e9: its 0 would make all gradients 0

All of its keys are read here, with layout.py and model.py. A world that the file doesn't name is what a
comment states ("preset for 64 A100 GPUs"), or the smallest for its degrees.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil

from scalewright.emit.emitted import Reading
from scalewright.emit.foreign import ForeignKeys, LayoutKey, LayoutKeys, RunKeys, real, true, whole
from scalewright.emit.rates import decay_length
from scalewright.emit.rules import Pair, inverse, put
from scalewright.emit.settings import Settings
from scalewright.emit.torchtitan.keys import ASIDE, ASIDE_SECTIONS, LAYOUT, TRAINING
from scalewright.emit.torchtitan.layout import CONVERTERS, SCHEDULES, Keys
from scalewright.emit.torchtitan.model import read_model
from scalewright.spec.presets import load_model_spec

UNCLIPPED = 1e9
BETAS = Pair("optimizer.betas", ("optimizer.beta1", "optimizer.beta2"), (0.9, 0.95))
P = "parallelism"
AXES: tuple[LayoutKey, ...] = ("tp", "pp", "cp")


def write_training(s: Settings, release: str) -> Keys:
    """Their keys for everything but the network and the layout."""
    steps = s.take_steps()
    written = {**s.write(TRAINING), "training.steps": steps}
    written["training.max_norm"] = s.take("optimizer.clip_norm") or UNCLIPPED
    if s.run.deterministic:
        written["debug.deterministic"] = s.take("deterministic")
    return written | _optimizer(s, release) | _rates(s, steps) | _data(s, release) | _saves(s, steps)


def _optimizer(s: Settings, release: str) -> Keys:
    written: Keys = {"optimizer.name": "AdamW", **BETAS.write(s)}
    states = {"adamw": "", **({"adamw_bf16": "fused_opt_states_bf16"} if release == "0.3" else {})}
    if kind := s.choose("optimizer.name", states, "torchtitan's optimizer of all tensors is AdamW"):
        written["optimizer.implementation"] = kind
    return written


def _rates(s: Settings, steps: int) -> Keys:
    schedule = s.run.lr_schedule
    s.take_all("lr_schedule.")
    warmup, left = schedule.warmup_steps, max(0, steps - schedule.warmup_steps)
    written: Keys = {"lr_scheduler.warmup_steps": warmup}
    if schedule.kind == "constant":
        return written | {"lr_scheduler.decay_ratio": 0.0}
    shape = "cosine" if schedule.kind == "cosine" else "linear"
    written |= {"lr_scheduler.decay_type": shape, "lr_scheduler.min_lr_factor": schedule.min_ratio}
    if schedule.kind == "wsd":
        share = min(decay_length(schedule, steps), left) / max(1, steps)
        return written | {"lr_scheduler.decay_ratio": float(f"{share:.9g}")}
    if schedule.decay_steps not in (None, left):
        s.nearly("lr_schedule.decay_steps", f"{left}", "torchtitan decays to the last step")
    return written


def _data(s: Settings, release: str) -> Keys:
    train, valid = s.take("data.train"), s.take("data.valid")
    written: Keys = {"training.dataset": "c4", "training.dataset_path": train[0]["path"]}
    s.assume("data are text from a Hugging Face dataset in the form of C4: set dataset and dataset_path")
    if len(train) > 1:
        s.nearly("data.train", train[0]["path"], "one dataset at a time")
    every, batches = s.values["train.valid_every"], s.take("train.valid_batches")
    if every and release == "0.1":
        s.drop("train.valid_every", "0.1 has no validation")
    elif s.take("train.valid_every"):
        written |= {"validation.enable": True, "validation.freq": every, "validation.steps": batches}
        if valid:
            written["validation.dataset_path"] = valid[0]["path"]
    s.assume("its tokenizer is that of hf_assets_path, which has to give the model's vocabulary")
    if s.states("data.document_mask"):
        masked = release == "0.3"
        if s.take("data.document_mask") != masked:
            see = "don't see" if masked else "see"
            why = f"documents of a row {see} each other in {release}"
            s.nearly("data.document_mask", str(masked).lower(), why)
    return written


def _saves(s: Settings, steps: int) -> Keys:
    written: Keys = {"job.dump_folder": str(s.run.folder / "torchtitan"), "metrics.log_freq": 1}
    if (every := s.save_steps()) is not None:
        interval = every or 1
        written |= {"checkpoint.enable": True, "checkpoint.interval": interval}
        written["checkpoint.last_save_model_only"] = False
    return written


def read_training(t: ForeignKeys, run: RunKeys) -> None:
    """Everything but the network and the layout, with their defaults where they are silent."""
    t.read(TRAINING, run)
    optimizer = run.setdefault("optimizer", {})
    name, implementation = str(t.take("optimizer.name", "AdamW")), t.take("optimizer.implementation")
    optimizer["name"] = "adamw_bf16" if implementation == "fused_opt_states_bf16" else "adamw"
    if name != "AdamW":
        t.refuse("optimizer.name", "an optimizer that isn't here: taken as AdamW")
    BETAS.read(t, run)
    clip = real(t.take("training.max_norm", 1.0))
    optimizer["clip_norm"] = 0.0 if clip >= UNCLIPPED else clip
    steps = whole(t.take("training.steps", 10000))
    put(run, "train.steps", steps)
    if t.take("debug.deterministic"):
        run["deterministic"] = True
    _read_rates(t, run, steps)


def _read_rates(t: ForeignKeys, run: RunKeys, steps: int) -> None:
    warmup = min(whole(t.take("lr_scheduler.warmup_steps", 200)), steps)
    ratio, kind = t.take("lr_scheduler.decay_ratio"), str(t.take("lr_scheduler.decay_type", "linear"))
    least, total = t.take("lr_scheduler.min_lr_factor"), t.take("lr_scheduler.total_steps")
    schedule: dict[str, object] = {"kind": kind, "warmup_steps": warmup, "min_ratio": real(least or 0.0)}
    if kind not in ("linear", "cosine"):
        schedule["kind"] = "linear"
        t.refuse("lr_scheduler.decay_type", "taken as linear: this shape isn't here")
    if total is not None and total != steps:
        t.refuse("lr_scheduler.total_steps", "the rate's own length: set lr_schedule.decay_steps")
    decay = round(steps * real(ratio)) if ratio is not None else None
    if decay == 0:
        schedule = {"kind": "constant", "warmup_steps": warmup}
    elif decay is not None and kind == "cosine" and warmup + decay < steps:
        schedule |= {"kind": "wsd", "decay_steps": decay}
        t.refuse("lr_scheduler.decay_type", "taken as linear: a stable rate ends linearly here")
    elif decay is not None and kind != "cosine":
        schedule |= {"kind": "wsd", "decay_steps": min(decay, steps - warmup)}
    run["lr_schedule"] = schedule


def read_values(values: dict[str, object], world: int | None, release: str, notes: list[str]) -> Reading:
    """A run of dotted keys with the names of 0.2; `release`: 0.1 (or older), 0.2 or 0.3."""
    quiet = {key for key in values if key.partition(".")[0] in ASIDE_SECTIONS}
    t = ForeignKeys(values, ASIDE | quiet)
    t.assumed += notes
    if true(values.get("fault_tolerance.enable")):
        for key in [key for key in values if key.startswith("fault_tolerance.")]:
            t.refuse(key, "one group of torchft is read: set layout.dp_replicate, and `diloco` for semi-sync")
    run: RunKeys = {}
    layers = read_model(t, run, release == "0.1")
    _read_layout(t, run, world, release, layers)
    read_training(t, run)
    return replace(t.reading("torchtitan", run), version=release)


def _read_layout(t: ForeignKeys, run: RunKeys, world: int | None, release: str, layers: int | None) -> None:
    t.read(LAYOUT, run)
    layout = run.setdefault("layout", {})
    tp, _, cp = (layout.setdefault(axis, 1) for axis in AXES)
    sequence = t.take(f"{P}.enable_sequence_parallel", True)
    layout["sp"] = tp > 1 and (release != "0.3" or bool(sequence))
    rotates = str(t.take(f"{P}.context_parallel_rotate_method", "allgather"))
    layout["cp_kind"] = "ring" if cp > 1 and rotates == "alltoall" else "allgather"
    _read_experts(t, layout, run)
    _read_sharding(t, layout, world)
    _read_pipeline(t, layout, layers)
    _read_batch(t, layout)
    _read_recompute(t, layout, release)
    _read_precision(t, layout)
    if t.take("training.enable_cpu_offload"):
        layout["offload"] = "parameters"


def _read_experts(t: ForeignKeys, layout: LayoutKeys, run: RunKeys) -> None:
    ep, etp = t.take(f"{P}.expert_parallel_degree", 1), t.take(f"{P}.expert_tensor_parallel_degree", 1)
    model = run.get("model")
    if model is not None and load_model_spec(model).moe is None:
        layout["ep"] = layout["etp"] = 1
        return
    layout["ep"] = whole(ep)
    layout["etp"] = whole(etp) if whole(ep) > 1 else layout["tp"] if model is not None else 1


def _read_sharding(t: ForeignKeys, layout: LayoutKeys, world: int | None) -> None:
    replicas = whole(t.take(f"{P}.data_parallel_replicate_degree", 1))
    shards = whole(t.take(f"{P}.data_parallel_shard_degree", -1))
    policy, kind = t.take(f"{P}.fsdp_reshard_after_forward", "default"), t.take("training.data_parallel_type")
    others, stated = layout["tp"] * layout["pp"] * layout["cp"], shards
    if shards < 0 and world is not None and world % (replicas * others) == 0:
        shards = world // (replicas * others)
    elif shards < 0:
        shards = 1
        while (shards * layout["cp"] * layout["tp"]) % (layout.get("ep", 1) * layout.get("etp", 1)):
            shards += 1
        t.guess("devices", replicas * shards * others, ", the fewest for these degrees: set layout.devices")
    layout["devices"] = replicas * shards * others
    if str(kind) == "ddp" or (stated == 1 and layout["cp"] == 1 and policy == "default"):
        layout["zero_stage"] = 0
        return
    layout["dp_replicate"] = replicas
    kept = policy == "never" or (policy == "default" and layout["pp"] > 1)
    layout["zero_stage"] = 2 if kept else 3
    if kept:
        t.assume("zero_stage 2: parameters stay whole from a forward to its backward")


def _read_pipeline(t: ForeignKeys, layout: LayoutKeys, layers: int | None) -> None:
    pp = layout["pp"]
    name = str(t.take(f"{P}.pipeline_parallel_schedule", "1F1B"))
    csv = t.take(f"{P}.pipeline_parallel_schedule_csv")
    each, parts = t.take(f"{P}.pipeline_parallel_layers_per_stage"), t.take(f"{P}.module_fqns_per_model_part")
    first, last = (t.take(f"{P}.pipeline_parallel_{end}_stage_less_layers") for end in ("first", "last"))
    points = t.take(f"{P}.pipeline_parallel_split_points")
    if pp == 1:
        return
    kinds = {foreign.lower(): ours for ours, foreign in SCHEDULES.items()}
    kind = kinds.get(name.lower(), "1f1b")
    if name.lower() not in kinds:
        t.refuse(f"{P}.pipeline_parallel_schedule", "taken as 1F1B: this order isn't here")
    if csv:
        t.refuse(f"{P}.pipeline_parallel_schedule_csv", "an order of its own")
    virtual = 1 if kind in ("gpipe", "1f1b") else 2
    counts: list[int] = []
    if parts:
        counts = [sum(str(name).startswith("layers.") for name in part) for part in parts]
    elif points and layers:
        names = points.split(",") if isinstance(points, str) else points
        starts = [0, *(int(str(name).rpartition(".")[2]) for name in names if str(name)[-1:].isdecimal()), layers]
        counts = [end - start for start, end in pairwise(starts)]
    elif layers:
        less = (whole(1 if first is None else first), whole(1 if last is None else last))
        stages = ceil((layers + sum(less)) / whole(each)) if each else pp * virtual
        counts = _spread(layers, max(stages, 1), *less)
    if counts and len(counts) % pp == 0 and all(count >= 0 for count in counts):
        layout["stage_layers"], virtual = counts, len(counts) // pp
    if virtual > 1 and kind in ("gpipe", "1f1b"):
        kind = "interleaved"
    layout |= {"schedule": kind, "virtual_stages": virtual}


def _spread(layers: int, stages: int, first: int, last: int) -> list[int]:
    """Their automatic cut: ends weigh as so many layers, and earlier stages take what is left over."""
    each, left = divmod(layers + first + last, stages)
    counts = [each + (index < left) for index in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return counts


def _read_batch(t: ForeignKeys, layout: LayoutKeys) -> None:
    local = whole(t.take("training.local_batch_size", 8))
    total = whole(t.take("training.global_batch_size", -1))
    micro, count = (t.take(f"{P}.pipeline_parallel_microbatch_size"), t.take(f"{P}.pipeline_parallel_microbatches"))
    dp = layout["devices"] // (layout["tp"] * layout["pp"] * layout["cp"])
    layout["micro_batch"] = local
    if layout["pp"] > 1:
        layout["micro_batch"] = max(1, local // whole(count)) if count else whole(micro or 1)
    layout["global_batch"] = total if total > 0 else local * dp
    if total <= 0:
        t.follow("global_batch")


def _read_recompute(t: ForeignKeys, layout: LayoutKeys, release: str) -> None:
    mode = t.take("activation_checkpoint.mode", "selective")
    option = str(t.take("activation_checkpoint.selective_ac_option", "op" if release == "0.3" else "2"))
    budget = t.take("activation_checkpoint.memory_budget", 0.5)
    if mode == "memory_budget":
        layout["recompute"] = {"budget": float(budget)}
        t.assume("recompute: their budget of 0 still keeps what full recomputation keeps")
    elif mode == "selective" and option.isdecimal() and int(option) > 0:
        layout["recompute"] = "full" if option == "1" else {"every": int(option)}
    elif mode in ("selective", "full", "none"):
        layout["recompute"] = mode
        if mode == "selective":
            t.assume("recompute selective: theirs keeps every second matmul's output, ours those of all")
    else:
        t.refuse("activation_checkpoint.mode", "this kind isn't known here")


def _read_precision(t: ForeignKeys, layout: LayoutKeys) -> None:
    kind, stored = t.take("training.mixed_precision_param", "bfloat16"), t.take("training.dtype", "float32")
    layout["precision"] = "fp32" if kind == "float32" else "bf16"
    if stored == "bfloat16":
        layout["precision"] = "bf16"
        t.refuse("training.dtype", "parameters, gradients and states in 2 bytes: taken as bf16 with fp32 masters")
    converters = t.take("model.converters") or []
    names = converters.split(",") if isinstance(converters, str) else converters
    ours = inverse(CONVERTERS)
    known = [ours[part] for name in names if (part := str(name).split(".")[-1]) in ours]
    if known:
        layout["precision"] = known[0]
    elif names:
        t.refuse("model.converters", "none of these is known here")
    if t.take("float8.enable_float8_linear"):
        layout["precision"] = "fp8"
