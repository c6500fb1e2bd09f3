"""Levanter's file as a run."""

from __future__ import annotations

from functools import partial
from typing import Any

from scalewright.emit.emitted import Reading
from scalewright.emit.levanter.words import (
    ACTIVATIONS,
    ASIDE,
    DEVICES,
    MIXTURE,
    SCALING,
    SECTIONS,
    WHOLE,
    WORDS,
)
from scalewright.emit.numbers import real, whole
from scalewright.emit.rates import put_rates
from scalewright.emit.rules import Words, inverse, put, read_rules
from scalewright.emit.theirs import FEWEST, Theirs, read_keys


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


def _read_network(t: Theirs, run: Words) -> None:
    kind = str(t.take("model.type", "gpt2"))
    if kind not in ("llama", "mixtral", "mistral", "qwen"):
        t.refuse("model.type", "a Llama or a Mixtral is read: set model")
        read_rules(t, [word for word in WORDS if not word.ours.startswith("model.")], run)
        return
    read_rules(t, WORDS, run)
    model = run.setdefault("model", {})
    sizes = {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    }
    for key, size in sizes.items():
        model.setdefault(key, size)
    model["intermediate_size"] = whole(t.take("model.intermediate_dim", 11008))
    model["mlp_type"] = inverse(ACTIVATIONS).get(str(t.take("model.activation_function", "silu")), "swiglu")
    if (size := t.take("model.head_dim")) is not None:
        model["head_dim"] = whole(size)
    bias = bool(t.take("model.use_bias")) or kind == "qwen"
    model |= {"norm_type": "rmsnorm", "qkv_bias": bias}
    if t.values.get("model.use_bias"):
        t.assume("use_bias is read as a bias of q, k, v")
    length = run.setdefault("data", {}).setdefault("seq_len", 2048)
    model["context"] = length
    if t.values.get("model.rope.type") == "llama3":
        scaling = {ours: t.take(f"model.rope.{theirs}") for ours, theirs in SCALING.items()}
        given = {key: value for key, value in scaling.items() if value is not None}
        model.setdefault("rope", {})["scaling"] = {"kind": "llama3", **given}
    model["vocab_size"] = 128256
    t.assume("vocab_size 128256: its tokenizer's isn't in the file, set model.vocab_size")
    if kind == "mixtral":
        read_rules(t, MIXTURE, run)
        moe = model.setdefault("moe", {})
        moe.setdefault("num_experts", 8), moe.setdefault("top_k", 2)
        moe["moe_intermediate_size"] = model["intermediate_size"]


def _read_layout(t: Theirs, run: Words, noted: int | None) -> None:
    layout = run.setdefault("layout", {})
    tp = whole(t.take("trainer.model_axis_size", 1))
    t.take("trainer.tensor_parallel_axes")
    replicas = whole(t.take("trainer.replica_ici_axis_size", 1)) * whole(
        t.take("trainer.replica_dcn_axis_size", 1)
    )
    batch, micro = layout.setdefault("global_batch", 512), layout.get("micro_batch", -1)
    devices = noted if noted is not None else tp * replicas
    if noted is None:
        t.guess("devices", devices, FEWEST)
    layout |= {"devices": devices, "tp": tp, "sp": False}
    if micro < 1:
        layout["micro_batch"] = max(1, batch * tp // devices)
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
    layout["precision"] = (
        "bf16" if "bfloat16" in policy or "bf16" in policy else "fp16" if "16" in policy else "fp32"
    )


def _read_training(t: Theirs, run: Words) -> None:
    optimizer = run.setdefault("optimizer", {})
    name = str(t.take("optimizer.type", "adam"))
    optimizer["name"] = "adamw"
    if name != "adam":
        t.refuse("optimizer.type", "taken as AdamW: this optimizer isn't here")
    optimizer["betas"] = [real(t.take("optimizer.beta1", 0.9)), real(t.take("optimizer.beta2", 0.95))]
    optimizer["eps"] = real(t.take("optimizer.epsilon", 1e-8))
    clip = t.take("optimizer.max_grad_norm")
    optimizer["clip_norm"] = real(clip) if clip is not None else 0.0
    optimizer.setdefault("lr", 6e-4), optimizer.setdefault("weight_decay", 0.0)
    steps = whole(t.take("trainer.num_train_steps", 400_000))
    put(run, "train.steps", steps)
    warmup = _steps(t.take("optimizer.warmup", 0.01), steps)
    decay = t.take("optimizer.decay")
    least = real(t.take("optimizer.min_lr_ratio", 0.1)) * optimizer["lr"]
    kind = str(t.take("optimizer.lr_schedule", "cosine"))
    if kind not in ("constant", "linear", "cosine"):
        t.refuse("optimizer.lr_schedule", "taken as cosine: this shape isn't here")
        kind = "cosine"
    length = None if decay is None else _steps(decay, steps)
    if length is not None and length < steps - warmup:
        if kind == "cosine":
            t.assume("the decay of lr_schedule wsd is a line: theirs is a cosine")
        kind = "wsd"
    put_rates(run, kind, warmup, length if kind == "wsd" else None, least)
    configs = sorted({key.split(".")[2] for key in t.values if key.startswith("data.configs.")})
    train = [
        (t.take(f"data.configs.{name}.train_urls"), t.take(f"data.train_weights.{name}", 1.0))
        for name in configs
    ]
    sources = [(urls[0], real(weight)) for urls, weight in train if isinstance(urls, list) and urls]
    if (urls := t.take("data.train_urls")) is not None:
        sources = [(str(url), 1.0) for url in (urls if isinstance(urls, list) else [urls])]
    if sources:
        put(
            run,
            "data.train",
            [{"path": str(path), "weight": weight} for path, weight in sources if weight > 0],
        )
    keep = t.take("trainer.checkpointer.keep")
    every = keep[0].get("every") if isinstance(keep, list) and keep and isinstance(keep[0], dict) else None
    if every is not None and whole(every) < steps:
        put(run, "checkpoint.every", whole(every))
    for key in ("trainer.initialize_from", "initialize_from_hf", "trainer.load_checkpoint_path"):
        t.refuse(key, "weights to start from aren't read: give `init`")


def _steps(value: Any, steps: int) -> int:
    """Steps of a number of them, or of a share of the run."""
    number = real(value)
    return int(number * steps) if isinstance(value, float) and number < 1 else int(number)
