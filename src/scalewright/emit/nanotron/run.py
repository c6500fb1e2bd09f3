"""nanotron's YAML, both ways: everything but the network.

ours                        theirs
devices                     dp x tp x pp: dp is written, devices aren't
global_batch                batch_accumulation_per_replica x micro_batch_size x dp
schedule 1f1b, gpipe        pp_engine 1f1b, afab
sp                          tp_mode REDUCE_SCATTER, else ALL_REDUCE
wsd                         lr_decay_starting_step, later than the warm-up's end

Its expert ranks are ranks of their own (world = ep x pp x dp x tp, parallel/context.py), which take the samples of the
same dp rank, and its MoE layer sends no tokens between them (huggingface/nanotron#373 is open): `ep` has no word. Its
ring attention is on the README's roadmap; `context_parallel_size` runs on the smollm3 branch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from scalewright.emit.command_lines import torchrun
from scalewright.emit.emitted import Emitted, Reading, yaml_text
from scalewright.emit.foreign import ForeignKeys, RunKeys, read_keys, real, whole
from scalewright.emit.nanotron.model import TITLE, read_model, write_model
from scalewright.emit.rates import put_rates, put_saves, put_sources, take_rates
from scalewright.emit.rules import Lacks, Rule, Words, inverse, nested, put, words_for
from scalewright.emit.settings import Settings
from scalewright.emit.tables import keys_for
from scalewright.spec.errors import UserError

ENGINES = {"1f1b": "1f1b", "gpipe": "afab"}
DTYPES = {"bf16": "bfloat16", "auto": "bfloat16", "fp32": "float32"}
STYLES = {"constant": "linear", "linear": "linear", "cosine": "cosine", "wsd": "linear"}
RATES, FACTORY = "optimizer.learning_rate_scheduler.", "optimizer.optimizer_factory."
NOT_DECAYED = [".*norm.*", ".*bias.*"]
TOKENIZER = "TOKENIZER"
LAYOUT = words_for("nanotron, layout")
TRAINING: tuple[Rule, ...] = (
    *words_for("nanotron, training"),
    Lacks("data.valid", "nanotron's data stages have no validation set"),
)
# Sections of logs, evaluation, profiles and uploads.
SECTIONS = ("lighteval", "logging", "metrics_logging", "profiler", "s3_upload", "slurm")
# What is logged, where saves lie, which kernels run, and values that nanotron doesn't use.
ASIDE = keys_for("nanotron")
VERSION = "main, April 2026"
FILE = "nanotron.yaml"
ORDER = ("general", "model", "parallelism", "tokens", "optimizer", "data_stages", "checkpoints", "tokenizer")


def write_layout(s: Settings) -> Words:
    """Dotted keys of parallelism, batch, precision and recomputation."""
    layout = s.layout
    written = s.write(LAYOUT)
    s.take_each("layout", "devices", "global_batch")
    if layout.tp > s.model.kv_heads:
        what = f"nanotron can't run tp {layout.tp}: it asserts num_key_value_heads >= tp"
        raise UserError(what, "layout.tp", f"set layout.tp={s.model.kv_heads}")
    s.take_expert_split(TITLE)
    engine = "1f1b"
    if layout.pp > 1:
        s.assume("stages are cut by nanotron's own costs of blocks")
        why = f"nanotron has no {layout.schedule}: the same numbers, other bubbles and memory"
        engine = s.choose("layout.schedule", ENGINES, why, "1f1b") or "1f1b"
    sharding = s.choose("layout.zero_stage", {0: 0, 1: 1}, instead=1)
    recompute = s.choose("layout.recompute", {"none": False, "full": True})
    dtype = s.choose_precision(DTYPES, "nanotron trains in bf16 or fp32")
    sp = s.take("layout.sp")
    return {
        **written, "parallelism.dp": layout.dp, "parallelism.pp_engine": engine,
        "parallelism.tp_mode": "REDUCE_SCATTER" if sp else "ALL_REDUCE",
        "parallelism.tp_linear_async_communication": sp, "parallelism.recompute_layer": bool(recompute),
        "parallelism.expert_parallel_size": 1, "parallelism.context_parallel_size": 1,
        "tokens.batch_accumulation_per_replica": layout.accumulation, "optimizer.zero_stage": sharding,
        "model.dtype": dtype,
    }  # fmt: skip


def write_training(s: Settings) -> Words:
    """Dotted keys of the optimizer, the learning rate, data and saves."""
    rates = take_rates(s, STYLES, "")
    written: Words = {
        "general.project": "scalewright", "general.run": s.run.name, "general.ignore_sanity_checks": True,
        **s.write(TRAINING), "tokens.train_steps": rates.steps,
        "tokens.val_check_interval": -1, "tokens.limit_val_batches": 0, "tokens.limit_test_batches": 0,
        RATES + "lr_warmup_steps": rates.warmup,
        RATES + "lr_warmup_style": "linear" if rates.warmup else "constant",  # linear starts at 0
        RATES + "lr_decay_style": rates.kind, RATES + "lr_decay_steps": rates.length,
        RATES + "lr_decay_starting_step": rates.start if rates.start != rates.warmup else None,
        RATES + "min_decay_lr": rates.least, "optimizer.clip_grad": s.take("optimizer.clip_norm") or None,
        "optimizer.accumulate_grad_in_fp32": True, "optimizer.weight_decay_exclude_named_params": NOT_DECAYED,
        **_optimizer(s),
    }  # fmt: skip
    s.assume("weights start from a normal distribution of std 0.02, output projections narrower by depth")
    return written | _saves(s)


def _optimizer(s: Settings) -> Words:
    name = s.optimizer.name
    if name == "sgd" and not s.take("optimizer.momentum"):
        s.take("optimizer.name")
        return {FACTORY + "name": "sgd"}
    s.choose("optimizer.name", {"adamw": "adamW"}, "nanotron has AdamW, and SGD without momentum", "adamw")
    first, second = s.take("optimizer.betas")
    return {FACTORY + "name": "adamW", FACTORY + "adam_beta1": first, FACTORY + "adam_beta2": second,
            FACTORY + "adam_eps": s.take("optimizer.eps"), FACTORY + "torch_adam_is_fused": True}  # fmt: skip


def _saves(s: Settings) -> Words:
    keys = {
        "checkpoints_path": f"{s.run.folder}/nanotron", "checkpoint_interval": s.save_steps() or 10**9,
        "save_initial_state": False, "save_final_state": s.run.checkpoint.at_end, "resume_checkpoint_path": None,
        "checkpoints_path_is_shared_file_system": False,
    }  # fmt: skip
    return {f"checkpoints.{key}": value for key, value in keys.items()}


def write_stage(s: Settings) -> Words:
    """The one data stage, of Nanosets: folders of token files."""
    paths, weights = s.take_sources()
    vocabulary = s.model.vocab_size
    s.assume(f"tokenizer {TOKENIZER}: its name, as in the data's .metadata files")
    s.assume("data folders are Nanosets: convert ours, or set dataset_folder")
    dataset = {"dataset_folder": paths, "dataset_weights": weights, "tokenizer_name": TOKENIZER,
               "vocab_size": vocabulary, "token_size_in_bytes": 2 if vocabulary <= 1 << 16 else 4}  # fmt: skip
    data = {"dataset": dataset, "num_loading_workers": 1, "seed": s.values["seed"]}
    return {"name": "training", "start_training_step": 1, "data": data}


def read_layout(t: ForeignKeys, run: RunKeys) -> None:
    """Parallelism, batch, precision and recomputation; expert ranks are taken as data-parallel ones."""
    t.read(LAYOUT, run)
    layout = run["layout"]
    tp, pp = layout["tp"], layout["pp"]
    dp, cp, ep = (whole(t.take(f"parallelism.{k}", 1)) for k in ("dp", "context_parallel_size", "expert_parallel_size"))
    accumulation = whole(t.take("tokens.batch_accumulation_per_replica", 1))
    layout["global_batch"] = layout["micro_batch"] * accumulation * dp
    t.follow("global_batch")
    if ep > 1 and accumulation % ep == 0:
        t.assume(f"expert ranks share the samples of a dp rank, so that dp is {dp * ep}: theirs repeat them")
        dp *= ep
    elif ep > 1:
        t.refuse("parallelism.expert_parallel_size", "its ranks repeat the samples of a dp rank")
        ep = 1
    layout |= {"devices": dp * cp * tp * pp, "ep": ep}
    if "moe" in run.get("model", {}):
        layout["etp"] = tp
    if cp > 1:
        kind = str(t.values.get("model.model_config._attn_implementation"))
        layout |= {"cp": cp, "cp_kind": "allgather" if kind.startswith("llama3") else "ring"}
    layout["sp"] = t.take("parallelism.tp_mode", "ALL_REDUCE") == "REDUCE_SCATTER" and tp > 1
    engine = t.take("parallelism.pp_engine", "afab")
    layout["schedule"] = inverse(ENGINES).get(engine, "1f1b")
    layout["zero_stage"] = whole(t.take("optimizer.zero_stage", 0))
    layout["recompute"] = "full" if t.take("parallelism.recompute_layer") else "none"
    why = "taken as bfloat16: this type isn't here"
    layout["precision"] = t.choose("model.dtype", inverse(DTYPES), "bfloat16", "bf16", why)


def read_training(t: ForeignKeys, run: RunKeys) -> None:
    """The optimizer, the learning rate and saves."""
    t.read(TRAINING, run)
    optimizer = run.setdefault("optimizer", {})
    name = str(t.take(FACTORY + "name", "adamW"))
    optimizer["name"] = "sgd" if name == "sgd" else "adamw"
    first, second, eps = (
        t.take_first(FACTORY + key, f"optimizer.{key}") for key in ("adam_beta1", "adam_beta2", "adam_eps")
    )
    if first is not None and second is not None:
        optimizer["betas"] = [real(first), real(second)]
    if eps is not None:
        optimizer["eps"] = real(eps)
    optimizer["clip_norm"] = real(t.take("optimizer.clip_grad", 0.0))
    if (steps := t.take("tokens.train_steps")) is not None:
        put(run, "train.steps", whole(steps))
    _read_rates(t, run)
    put_saves(run, t.take("checkpoints.checkpoint_interval") or None)
    t.refuse_weights("checkpoints.resume_checkpoint_path")
    if whole(t.take("tokens.val_check_interval", -1)) > 0:
        t.refuse("tokens.val_check_interval", "validation needs data.valid, which nanotron's file doesn't name")


def _read_rates(t: ForeignKeys, run: RunKeys) -> None:
    warmup = whole(t.take(RATES + "lr_warmup_steps", 0))
    t.take(RATES + "lr_warmup_style")
    start, length = t.take(RATES + "lr_decay_starting_step"), t.take(RATES + "lr_decay_steps")
    style, least = str(t.take(RATES + "lr_decay_style", "linear")), t.take(RATES + "min_decay_lr")
    late = start is not None and whole(start) > warmup
    if late and style != "linear":
        t.assume(f"the decay of lr_schedule wsd is a line: theirs is {style}")
    kind = "wsd" if late else style
    if kind not in ("wsd", "linear", "cosine"):
        t.refuse(RATES + "lr_decay_style", "taken as a line: this shape isn't here")
        kind = "linear"
    least = real(least if least is not None else run["optimizer"].get("lr", 0.0))
    put_rates(run, kind, warmup, whole(length) if length is not None else None, least)


def read_stages(t: ForeignKeys, run: RunKeys, stages: list[Any]) -> None:
    """Data of the first stage; those of later ones are reported."""
    for index, stage in enumerate(stages):
        data = (stage.get("data") or {}) if isinstance(stage, dict) else {}
        dataset = data.get("dataset") or {}
        folder = dataset.get("dataset_folder")
        if index == 0 and folder:
            put(run, "data.train", put_sources(folder, dataset.get("dataset_weights")))
            continue
        key = f"data_stages[{index}]"
        t.values[key] = folder or dataset.get("hf_dataset_or_datasets") or dataset or None
        if index and t.values[key]:
            t.refuse(key, "a run has one mixture: later stages aren't read")
        elif t.values[key]:
            t.refuse(key, "texts, not tokens: `scalewright prepare` makes shards of them")
        else:
            del t.values[key]


def write(s: Settings) -> Emitted:
    """The complete file; raises UserError where it would be another layout."""
    keys = {**write_training(s), **write_model(s), **write_layout(s), "model.ddp_bucket_cap_mb": 25,
            "model.init_method": {"std": 0.02}, "model.make_vocab_size_divisible_by": 1}  # fmt: skip
    data = nested(keys, *ORDER)
    data["data_stages"] = [write_stage(s)]
    data["tokenizer"] = {"tokenizer_name_or_path": TOKENIZER}
    data["logging"] = {"iteration_step_info_interval": 1, "log_level": "info", "log_level_replica": "info"}
    s.assume("NANOTRON is the folder of its checkout; default: where it is started")
    launch = torchrun(s.layout.devices, f"${{NANOTRON:-.}}/run_train.py --config-file {FILE}")
    command = f"CUDA_DEVICE_MAX_CONNECTIONS=1 {launch}"
    comments = (f"Written by `scalewright emit nanotron`, for nanotron ({VERSION}).", command)
    return s.emitted(TITLE, "nanotron", VERSION, {FILE: yaml_text(comments, data)}, command)


def recognises(document: Any, text: str) -> bool:
    """A document with nanotron's sections."""
    sections = document if isinstance(document, dict) else {}
    parallelism, model = (sections.get(name) for name in ("parallelism", "model"))
    return isinstance(parallelism, dict) and isinstance(model, dict) and "dp" in parallelism and "model_config" in model


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run; raises UserError for one whose sections aren't keys and values."""
    stages = document.get("data_stages") or [{"data": document.get("data")}]
    if not isinstance(stages, list):
        raise UserError("it holds no list", f"{where}: data_stages", "give the stages as a list")
    apart = (*SECTIONS, "data_stages", "data")
    sections = {key: value for key, value in document.items() if key not in apart}
    data = partial(read_stages, stages=stages)
    return read_keys("nanotron", sections, ASIDE, where, read_model, read_layout, read_training, data)
