"""A run as Levanter's file."""

from __future__ import annotations

from scalewright.emit.emitted import Emitted, yaml_text
from scalewright.emit.levanter.words import (
    ACTIVATIONS,
    FILE,
    MIXTURE,
    POLICIES,
    SCALING,
    SCHEDULES,
    TITLE,
    TOKENIZER,
    VERSION,
    WORDS,
)
from scalewright.emit.rates import take_rates
from scalewright.emit.rules import Words, put, write_rules
from scalewright.emit.settings import Settings


def write(s: Settings) -> Emitted:
    """The complete file; raises UserError where it would be another layout."""
    layout = s.layout
    rates = take_rates(s, SCHEDULES, "")
    if not rates.to_the_end:
        s.nearly("lr_schedule.decay_steps", "to the end", "Levanter's decay ends with the run")
    clip = s.take("optimizer.clip_norm")
    keys: Words = {
        **_network(s), **write_rules(s, WORDS), **_layout(s), "trainer.num_train_steps": rates.steps,
        **_optimizer(s), "optimizer.lr_schedule": rates.kind, "optimizer.warmup": rates.warmup,
        "optimizer.min_lr_ratio": float(f"{rates.least / rates.peak:.12g}"),
        "optimizer.max_grad_norm": clip or None, **_saves(s),
        "trainer.tracker.type": "tensorboard", "trainer.tracker.logdir": f"{s.run.folder}/tensorboard",
    }  # fmt: skip
    if s.run.lr_schedule.kind == "wsd":
        keys["optimizer.decay"] = rates.length
    data: Words = {section: {} for section in ("data", "model", "trainer", "optimizer")}
    for key, value in keys.items():
        put(data, key, value)
    data["data"] = _data(s)
    command = f"python -m levanter.main.train_lm --config_path {FILE}"
    comments = (
        f"Written by `scalewright emit levanter`, for Levanter ({VERSION}); on every host:", command,
        f"devices: {layout.devices}",
    )  # fmt: skip
    return s.emitted(TITLE, "levanter", VERSION, {FILE: yaml_text(comments, data)}, command)


def _network(s: Settings) -> Words:
    model = s.model
    why = "Levanter's Llama has SwiGLU or GeGLU"
    name = s.choose("model.mlp_type", ACTIVATIONS, why, "swiglu")
    s.choose("model.norm_type", {"rmsnorm": None}, "Levanter's Llama has RMSNorm")
    s.choose("model.positions", {"rope": None}, "Levanter's Llama has rotary positions")
    if model.context == s.run.seq_len:
        s.take("model.context")
    else:
        s.nearly("model.context", str(s.run.seq_len), "Levanter's seq_len is both the model's and the rows'")
    s.nearly(
        "model.vocab_size", "the tokenizer's", f"{TOKENIZER} is expected to have {model.vocab_size} tokens"
    )
    written: Words = {
        "model.type": _kind(s), "model.intermediate_dim": s.take_dense_width(),
        "model.activation_function": name, "model.use_bias": False, "model.rope.type": "default",
    }  # fmt: skip
    if model.moe or model.dim_per_head * model.num_attention_heads == model.hidden_size:
        s.take_head_dim(TITLE)
    else:
        written["model.head_dim"] = s.take("model.head_dim")
    if (scaling := s.take_scaling(TITLE, "llama3")) is not None:
        written |= {f"model.rope.{theirs}": scaling[ours] for ours, theirs in SCALING.items()}
        written["model.rope.type"] = "llama3"
    if model.moe is None:
        return written
    s.take("model.moe.moe_intermediate_size")
    if not s.is_all_sparse():
        s.drop("model.moe.first_k_dense", "Levanter's Mixtral has experts in every layer")
        why = "Levanter's experts are as wide as its dense MLPs"
        s.nearly("model.moe.moe_intermediate_size", str(model.intermediate_size), why)
    return written | write_rules(s, MIXTURE)


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
    for key in ("devices", "tp"):
        s.take(f"layout.{key}")
    for key, what in (("pp", "pipeline"), ("cp", "context parallelism"), ("ep", "expert parallelism")):
        s.drop(f"layout.{key}", f"it has no {what}")
    s.drop("layout.sp", "its activations are whole on every rank of the model axis")
    s.take_expert_split(TITLE)
    why = "Levanter shards parameters with the states (fsdp_axis), or nothing"
    s.choose("layout.zero_stage", {0: None, 3: None}, why, 3)
    s.take("layout.dp_replicate")
    axis = "embed" if layout.zero_stage else None
    why = "Levanter trains in bf16 or fp32"
    policy = s.choose_precision(POLICIES, why)
    return {
        "trainer.mp": policy, "trainer.fsdp_axis": axis, "trainer.batch_axis": "batch",
        "trainer.tensor_parallel_axes": ["mlp", "heads"] if layout.tp > 1 else None,
        "trainer.model_axis_size": layout.tp, "trainer.replica_dcn_axis_size": 1,
        "trainer.replica_ici_axis_size": layout.dp_replicate if layout.zero_stage else 1,
        "model.gradient_checkpointing": _checkpointing(s),
    }  # fmt: skip


def _checkpointing(s: Settings) -> bool | str:
    why = "its policies of single products aren't written: whole layers"
    full = s.choose("layout.recompute", {"none": False, "full": True}, why, "full") or False
    if s.layout.offload == "activations" and s.layout.recompute == "full":
        s.take("layout.offload")
        return "offload"
    s.drop("layout.offload", "Levanter offloads the inputs of recomputed layers alone")
    return full


def _optimizer(s: Settings) -> Words:
    s.choose("optimizer.name", {"adamw": None}, "written as AdamW: its others have other numbers", "adamw")
    first, second = s.take_adam()
    return {"optimizer.type": "adam", "optimizer.beta1": first, "optimizer.beta2": second,
            "optimizer.epsilon": s.take("optimizer.eps")}  # fmt: skip


def _data(s: Settings) -> Words:
    paths, weights = s.take_sources()
    s.drop("data.valid", "Levanter validates on its sources' validation_urls")
    s.assume(f"tokenizer {TOKENIZER}: put in its name; data are texts (JSONL): set train_urls")
    names = [f"source{index}" for index in range(len(paths))]
    return {
        "tokenizer": TOKENIZER, "cache_dir": f"{s.run.folder}/cache",
        "configs": {name: {"train_urls": [path]} for name, path in zip(names, paths, strict=True)},
        "train_weights": dict(zip(names, weights, strict=True)),
    }  # fmt: skip


def _saves(s: Settings) -> Words:
    every = s.save_steps()
    if not every:
        return {}
    return {
        "trainer.checkpointer.base_path": f"{s.run.folder}/levanter",
        "trainer.checkpointer.keep": [{"every": every}],
    }
