"""litgpt's file as a run."""

from __future__ import annotations

from typing import Any

from scalewright.emit.emitted import Reading
from scalewright.emit.litgpt.words import (
    ADJUSTED,
    ASIDE,
    CONFIG,
    MIXTURE,
    MLPS,
    NORMS,
    POSITIONS,
    RESIDUALS,
    SCALING,
    UNCLIPPED,
    WORDS,
)
from scalewright.emit.numbers import real, whole
from scalewright.emit.rates import put_rates
from scalewright.emit.rules import Words, inverse, put, read_rules
from scalewright.emit.theirs import Theirs, put_sources, read_keys, shortest


def recognises(document: Any, text: str) -> bool:
    """A document with litgpt's `train` section and its model."""
    train = document.get("train") if isinstance(document, dict) else None
    if not isinstance(train, dict) or not {"model_name", "model_config"} & document.keys():
        return False
    return "micro_batch_size" in train or "max_tokens" in train


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run; raises UserError."""
    return read_keys("litgpt", document, ASIDE, where, _read_network, _read_layout, _read_training)


def _read_network(t: Theirs, run: Words) -> None:
    named = not any(key.startswith(CONFIG) for key in t.values)
    read_rules(t, [word for word in WORDS if not (named and word.ours.startswith("model."))], run)
    if named:
        t.assume(f"the model {t.values.get('model_name')} of litgpt's list isn't known here: set model=...")
        run.pop("model", None)
        return
    model = run["model"]
    padded, vocabulary = t.take(CONFIG + "padded_vocab_size"), t.take(CONFIG + "vocab_size", 50254)
    model["vocab_size"] = whole(padded if padded is not None else vocabulary)
    name, approximate = (
        str(t.take(CONFIG + "mlp_class_name", "GptNeoxMLP")),
        t.take(CONFIG + "gelu_approximate", "none"),
    )
    kind = name.replace("LLaMAMoE", "LLaMAMLP")
    model["mlp_type"] = inverse(MLPS).get((kind, "none" if kind == "LLaMAMLP" else approximate), "swiglu")
    model["norm_type"] = inverse(NORMS).get(t.take(CONFIG + "norm_class_name", "LayerNorm"), "layernorm")
    residual = (
        bool(t.take(CONFIG + "parallel_residual", True)),
        bool(t.take(CONFIG + "shared_attention_norm")),
    )
    model["residual"] = inverse(RESIDUALS).get(residual, "sequential")
    bias, attention = bool(t.take(CONFIG + "bias", True)), bool(t.take(CONFIG + "attn_bias"))
    model |= {"qkv_bias": bias or attention, "o_bias": bias, "mlp_bias": bias}
    model.setdefault("rope", {}).setdefault("fraction", 0.25)
    model.setdefault("intermediate_size", 4 * model.get("hidden_size", 4096))
    model.setdefault("norm_eps", 1e-5)
    if ADJUSTED + "factor" in t:
        scaling = {ours: t.take(ADJUSTED + theirs) for ours, theirs in SCALING.items()}
        model["rope"]["scaling"] = {
            "kind": "llama3",
            **{key: value for key, value in scaling.items() if value is not None},
        }
    if (window := t.take(CONFIG + "sliding_window_size")) is not None:
        marks = t.take(CONFIG + "sliding_window_indices")
        model |= {
            "sliding_window": whole(window),
            "window_pattern": shortest([bool(mark) for mark in marks]) if marks else [True],
        }
    if t.take(CONFIG + "norm_qk"):
        model["qk_norm"] = "full" if t.take(CONFIG + "norm_qk_type") == "olmo2" else "head"
    norms = [t.take(CONFIG + key, before) for key, before in (("norm_1", True), ("post_mlp_norm", False))]
    t.take(CONFIG + "norm_2"), t.take(CONFIG + "post_attention_norm")
    model["norm_position"] = inverse(POSITIONS).get((bool(norms[0]), bool(norms[1])), "pre")
    if t.take(CONFIG + "scale_embeddings"):
        model["embedding_scale"] = float(model["hidden_size"]) ** 0.5
    if name == "LLaMAMoE":
        read_rules(t, MIXTURE, run)
        model["moe"].setdefault("moe_intermediate_size", model["intermediate_size"])


def _read_layout(t: Theirs, run: Words) -> None:
    layout = run.setdefault("layout", {})
    given, nodes = t.take("devices", "auto"), whole(t.take("num_nodes", 1))
    if not str(given).isdecimal():
        t.guess("devices", 8, " of each node: set layout.devices")
    each = int(given) if str(given).isdecimal() else 8
    layout |= {"devices": each * nodes, "zero_stage": 3 if each * nodes > 1 else 0, "dp_replicate": nodes}
    layout.setdefault("micro_batch", 4)
    precision = str(t.take("precision", "bf16-true"))
    layout["precision"] = (
        "fp32" if precision.startswith("32") else "fp16" if precision.startswith("16") else "bf16"
    )
    if precision == "bf16-true":
        t.assume("precision bf16 has fp32 master weights: theirs (bf16-true) doesn't")


def _read_training(t: Theirs, run: Words) -> None:
    optimizer = run.setdefault("optimizer", {})
    path = str(t.take("optimizer.class_path") or t.take("optimizer", "AdamW"))
    optimizer["name"] = "sgd" if path.endswith("SGD") else "adamw"
    if not path.endswith(("AdamW", "SGD")):
        t.refuse("optimizer.class_path", "taken as AdamW: this optimizer isn't here")
    for key in ("lr", "weight_decay", "eps", "momentum"):
        if (value := t.take(f"optimizer.init_args.{key}")) is not None:
            optimizer[key] = real(value)
    if (betas := t.take("optimizer.init_args.betas")) is not None:
        optimizer["betas"] = [real(beta) for beta in betas]
    optimizer.setdefault("weight_decay", 0.01)  # torch's
    clip = real(t.take("train.max_norm", UNCLIPPED))
    optimizer["clip_norm"] = clip if clip < UNCLIPPED else 0.0
    tokens, length = t.take("train.max_tokens"), run.get("data", {}).get("seq_len")
    batch = run["layout"].get("global_batch", 1)
    if tokens is not None and length:
        put(run, "train.steps", max(1, whole(tokens) // (batch * length)))
    elif tokens is not None:
        put(run, "train.tokens", real(tokens))
    warmup, least = whole(t.take("train.lr_warmup_steps", 0)), t.take("train.min_lr", 6e-5)
    put_rates(run, "cosine", warmup, None, real(least))
    every = t.take("train.save_interval")
    if every is not None and whole(every) < run.get("train", {}).get("steps", 0):
        put(run, "checkpoint.every", whole(every))
    kind = str(t.take("data.class_path", ""))
    if kind.endswith("LitData") and (path := t.take("data.init_args.data_path")):
        put(run, "data.train", put_sources(path))
    elif kind:
        t.refuse("data.class_path", "a data module of litgpt: make token shards, and set data.train")
    t.refuse("initial_checkpoint_dir", "weights to start from aren't read: give `init`")
