"""Levanter: the YAML of `python -m levanter.main.train_lm --config_path`, both ways.

ours                       theirs
zero_stage 3, 0            trainer.fsdp_axis embed, null
dp_replicate               trainer.replica_ici_axis_size
tp                         trainer.tensor_parallel_axes [mlp, heads], model_axis_size
micro_batch                trainer.per_device_parallelism
recompute full, none       model.gradient_checkpointing true, false; `offload` keeps its inputs in host memory
wsd                        optimizer.lr_schedule linear, with `decay` steps

It has no pipeline and no context parallelism; its trainer takes all devices of its hosts. Keys are those of
September 2025 (src/levanter/{trainer,models/llama,models/mixtral,optim/config}.py), before it moved to marin.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from scalewright.emit.emitted import Emitted, Reading, yaml_text
from scalewright.emit.foreign import ForeignKeys, RunKeys, read_keys, real, whole
from scalewright.emit.rates import put_rates, put_saves, take_rates
from scalewright.emit.rules import Fixed, Lacks, Pair, Pick, Rule, Word, Words, inverse, nested, put, words_for
from scalewright.emit.settings import Settings
from scalewright.emit.tables import keys_for

TITLE, VERSION, FILE = "Levanter", "main, September 2025", "levanter.yaml"
WORDS: tuple[Rule, ...] = (
    *words_for("levanter, words"),
    Lacks("data.valid", "Levanter validates on its sources' validation_urls"),
)
MIXTURE = words_for("levanter, mixture")
OPTIMIZER = (
    Pick("optimizer.name", "optimizer.type", {"adamw": "adam"}, "written as AdamW: its others have other numbers",
         "adamw", "adam", "adamw", str, "taken as AdamW: this optimizer isn't here"),
    Pair("optimizer.betas", ("optimizer.beta1", "optimizer.beta2"), (0.9, 0.95)),
    Word("optimizer.eps", "optimizer.epsilon", back=real, absent=1e-8),
)  # fmt: skip
POLICIES = {"bf16": "p=f32,c=bfloat16", "auto": "p=f32,c=bfloat16", "fp32": "f32"}
SCHEDULES = {"constant": "constant", "linear": "linear", "cosine": "cosine", "wsd": "linear"}
SCALING = words_for("levanter, scaling")
BLOCK = (
    Pick("model.mlp_type", "model.activation_function", {
        "swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_new",
    }, "Levanter's Llama has SwiGLU or GeGLU", "swiglu", "silu", "swiglu", str),
    Fixed("model.norm_type", ("rmsnorm",), "Levanter's Llama has RMSNorm"),
    Fixed("model.positions", ("rope",), "Levanter's Llama has rotary positions"),
)  # fmt: skip
TOKENIZER = "TOKENIZER"
WHOLE = "none"  # stands for an axis that is null
DEVICES = re.compile(r"^# devices: (\d{1,7})$", re.MULTILINE)
ASIDE = keys_for("levanter")
SECTIONS = ("tracker", "wandb", "ray", "distributed", "jax_config")  # of trainer


def write(s: Settings) -> Emitted:
    """The complete file; raises UserError where it would be another layout."""
    layout = s.layout
    rates = take_rates(s, SCHEDULES, "")
    if not rates.to_the_end:
        s.nearly("lr_schedule.decay_steps", "to the end", "Levanter's decay ends with the run")
    clip, every = s.take("optimizer.clip_norm"), s.save_steps()
    kept = {"base_path": f"{s.run.folder}/levanter", "keep": [{"every": every}]}
    keys: Words = {
        **_network(s), **s.write(WORDS), **_layout(s), "trainer.num_train_steps": rates.steps, **s.write(OPTIMIZER),
        "optimizer.lr_schedule": rates.kind, "optimizer.warmup": rates.warmup,
        "optimizer.min_lr_ratio": float(f"{rates.least / rates.peak:.12g}"), "optimizer.max_grad_norm": clip or None,
        **({"trainer.checkpointer": kept} if every else {}), "trainer.tracker.type": "tensorboard",
        "trainer.tracker.logdir": f"{s.run.folder}/tensorboard",
    }  # fmt: skip
    if s.run.lr_schedule.kind == "wsd":
        keys["optimizer.decay"] = rates.length
    data = nested(keys, "data", "model", "trainer", "optimizer") | {"data": _data(s)}
    command = f"python -m levanter.main.train_lm --config_path {FILE}"
    note = f"Written by `scalewright emit levanter`, for Levanter ({VERSION}); on every host:"
    comments = (note, command, f"devices: {layout.devices}")
    return s.emitted(TITLE, "levanter", VERSION, {FILE: yaml_text(comments, data)}, command)


def _network(s: Settings) -> Words:
    model = s.model
    block = s.write(BLOCK)
    if model.context == s.run.seq_len:
        s.take("model.context")
    else:
        s.nearly("model.context", str(s.run.seq_len), "Levanter's seq_len is both the model's and the rows'")
    s.nearly("model.vocab_size", "the tokenizer's", f"{TOKENIZER} is expected to have {model.vocab_size} tokens")
    written: Words = {"model.type": _kind(s), "model.intermediate_dim": s.take_dense_width(), **block,
                      "model.use_bias": False, "model.rope.type": "default"}  # fmt: skip
    if model.moe or model.dim_per_head * model.num_attention_heads == model.hidden_size:
        s.take_head_dim(TITLE)
    else:
        written["model.head_dim"] = s.take("model.head_dim")
    if s.take_scaling(TITLE, "llama3"):
        written |= s.write(SCALING) | {"model.rope.type": "llama3"}
    if model.moe is None:
        return written
    s.take("model.moe.moe_intermediate_size")
    if not s.is_all_sparse():
        s.drop("model.moe.first_k_dense", "Levanter's Mixtral has experts in every layer")
        width = str(model.intermediate_size)
        s.nearly("model.moe.moe_intermediate_size", width, "Levanter's experts are as wide as its dense MLPs")
    return written | s.write(MIXTURE)


def _kind(s: Settings) -> str:
    """Llama, or Qwen with its biases of q, k and v; Mixtral."""
    if s.model.moe:
        return "mixtral"
    if not s.model.qkv_bias:
        return "llama"
    s.take("model.qkv_bias")
    return "qwen"


def _layout(s: Settings) -> Words:
    layout = s.layout
    s.take_each("layout", "devices", "tp")
    s.take_expert_split(TITLE)
    s.choose("layout.zero_stage", {0: None, 3: None}, instead=3)
    s.take("layout.dp_replicate")
    axis = "embed" if layout.zero_stage else None
    policy = s.choose_precision(POLICIES, "Levanter trains in bf16 or fp32")
    recompute = s.choose("layout.recompute", {"none": False, "full": True}, instead="full")
    if offloads := layout.offload == "activations" and layout.recompute == "full":
        s.take("layout.offload")
    return {
        "trainer.mp": policy, "trainer.fsdp_axis": axis, "trainer.batch_axis": "batch",
        "trainer.tensor_parallel_axes": ["mlp", "heads"] if layout.tp > 1 else None,
        "trainer.model_axis_size": layout.tp, "trainer.replica_dcn_axis_size": 1,
        "trainer.replica_ici_axis_size": layout.dp_replicate if layout.zero_stage else 1,
        "model.gradient_checkpointing": "offload" if offloads else recompute,
    }  # fmt: skip


def _data(s: Settings) -> Words:
    paths, weights = s.take_sources()
    s.assume(f"tokenizer {TOKENIZER}: put in its name; data are texts (JSONL): set train_urls")
    names = [f"source{index}" for index in range(len(paths))]
    return {
        "tokenizer": TOKENIZER, "cache_dir": f"{s.run.folder}/cache",
        "configs": {name: {"train_urls": [path]} for name, path in zip(names, paths, strict=True)},
        "train_weights": dict(zip(names, weights, strict=True)),
    }  # fmt: skip


def recognises(document: Any, text: str) -> bool:
    """A document with Levanter's trainer."""
    trainer = document.get("trainer") if isinstance(document, dict) else None
    return isinstance(trainer, dict) and bool({"num_train_steps", "train_batch_size", "mp"} & trainer.keys())


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run; its comment has the devices, where it was written here."""
    noted = DEVICES.search(text)
    trainer = {key: value for key, value in document["trainer"].items() if key not in SECTIONS}
    trainer["fsdp_axis"] = trainer.get("fsdp_axis", "embed") or WHOLE  # null: no shards
    layout = partial(_read_layout, noted=int(noted[1]) if noted else None)
    sections = {**document, "trainer": trainer}
    return read_keys("levanter", sections, ASIDE, where, _read_network, layout, _read_training)


def _read_network(t: ForeignKeys, run: RunKeys) -> None:
    kind = str(t.take("model.type", "gpt2"))
    if kind not in ("llama", "mixtral", "mistral", "qwen"):
        t.refuse("model.type", "a Llama or a Mixtral is read: set model")
        t.read([word for word in WORDS if not word.ours.startswith("model.")], run)
        return
    t.read(WORDS, run)
    model = run["model"]
    model["intermediate_size"] = whole(t.take("model.intermediate_dim", 11008))
    t.read(BLOCK, run)
    if (size := t.take("model.head_dim")) is not None:
        model["head_dim"] = whole(size)
    if biased := bool(t.take("model.use_bias")):
        t.assume("use_bias is read as a bias of q, k, v")
    model |= {"norm_type": "rmsnorm", "qkv_bias": biased or kind == "qwen"}
    model["context"] = run.setdefault("data", {}).setdefault("seq_len", 2048)
    if t.values.get("model.rope.type") == "llama3":
        put(run, "model.rope.scaling.kind", "llama3")
        t.read(SCALING, run)
    model["vocab_size"] = 128256
    t.assume("vocab_size 128256: its tokenizer's isn't in the file, set model.vocab_size")
    if kind == "mixtral":
        t.read(MIXTURE, run)
        model["moe"]["moe_intermediate_size"] = model["intermediate_size"]


def _read_layout(t: ForeignKeys, run: RunKeys, noted: int | None) -> None:
    layout = run["layout"]
    tp = whole(t.take("trainer.model_axis_size", 1))
    t.take("trainer.tensor_parallel_axes")
    within, between = (whole(t.take(f"trainer.replica_{net}_axis_size", 1)) for net in ("ici", "dcn"))
    replicas = within * between
    devices = noted if noted is not None else tp * replicas
    if noted is None:
        t.guess_devices(devices)
    layout |= {"devices": devices, "tp": tp, "sp": False}
    if layout.get("micro_batch", -1) < 1:
        layout["micro_batch"] = max(1, layout["global_batch"] * tp // devices)
        t.follow("micro_batch")
    sharded = t.take("trainer.fsdp_axis") != WHOLE
    layout["zero_stage"] = 3 if sharded else 0
    if sharded:
        layout["dp_replicate"] = replicas
    if "moe" in (run.get("model") or {}):
        layout["etp"] = tp
    kept = t.take("model.gradient_checkpointing", True)
    layout["recompute"] = "none" if kept is False else "full"
    if kept == "offload":
        layout["offload"] = "activations"
    elif not isinstance(kept, bool):
        t.assume("recompute full: theirs is another policy")
    policy = str(t.take("trainer.mp", "f32"))
    half = "bf16" if "bfloat16" in policy or "bf16" in policy else "fp16"
    layout["precision"] = half if "16" in policy else "fp32"


def _read_training(t: ForeignKeys, run: RunKeys) -> None:
    t.read(OPTIMIZER, run)
    optimizer = run["optimizer"]
    optimizer["clip_norm"] = real(t.take("optimizer.max_grad_norm", 0.0))
    steps = whole(t.take("trainer.num_train_steps", 400_000))
    put(run, "train.steps", steps)
    warmup = _steps(t.take("optimizer.warmup", 0.01), steps)
    decay = t.take("optimizer.decay")
    least = real(t.take("optimizer.min_lr_ratio", 0.1)) * optimizer["lr"]
    kind = t.shape("optimizer.lr_schedule", inverse(SCHEDULES), "cosine")
    length = None if decay is None else _steps(decay, steps)
    if length is not None and length < steps - warmup:
        if kind == "cosine":
            t.assume("the decay of lr_schedule wsd is a line: theirs is a cosine")
        kind = "wsd"
    put_rates(run, kind, warmup, length if kind == "wsd" else None, least)
    configs = sorted({key.split(".")[2] for key in t.values if key.startswith("data.configs.")})
    train = [(t.take(f"data.configs.{n}.train_urls"), t.take(f"data.train_weights.{n}", 1.0)) for n in configs]
    sources = [(urls[0], real(weight)) for urls, weight in train if isinstance(urls, list) and urls]
    if (urls := t.take("data.train_urls")) is not None:
        sources = [(str(url), 1.0) for url in (urls if isinstance(urls, list) else [urls])]
    if sources:
        put(run, "data.train", [{"path": str(path), "weight": weight} for path, weight in sources if weight > 0])
    keep = t.take("trainer.checkpointer.keep")
    put_saves(run, keep[0].get("every") if isinstance(keep, list) and keep and isinstance(keep[0], dict) else None)
    t.refuse_weights("trainer.initialize_from", "initialize_from_hf", "trainer.load_checkpoint_path")


def _steps(value: Any, steps: int) -> int:
    """Steps of a number of them, or of a share of the run."""
    number = real(value)
    return int(number * steps) if isinstance(value, float) and number < 1 else int(number)
