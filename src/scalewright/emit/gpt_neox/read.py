"""GPT-NeoX's file as a run."""

from __future__ import annotations

from typing import Any

from scalewright.emit.emitted import Reading
from scalewright.emit.gpt_neox.words import ACTIVATIONS, ASIDE, EPSILONS, POSITIONS, STYLES, WORDS
from scalewright.emit.numbers import real, whole
from scalewright.emit.rates import put_rates
from scalewright.emit.rules import Words, inverse, put, read_rules
from scalewright.emit.theirs import FEWEST, Theirs, put_sources, read_keys
from scalewright.spec.model import GATED


def recognises(document: Any, text: str) -> bool:
    """A document with GPT-NeoX's names of parallelism or of its batch beside a network's."""
    if not isinstance(document, dict):
        return False
    names = {str(key).replace("-", "_") for key in document}
    return (
        bool(names & {"pipe_parallel_size", "model_parallel_size", "zero_optimization"})
        and "num_layers" in names
    )


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run; raises UserError."""
    keys = {str(key).replace("-", "_"): value for key, value in document.items()}
    return read_keys("gpt-neox", keys, ASIDE, where, _read_network, _read_layout, _read_training)


def _read_network(t: Theirs, run: Words) -> None:
    read_rules(t, WORDS, run)
    model = run["model"]
    hidden, name = model["hidden_size"], str(t.take("activation", "gelu"))
    model["mlp_type"] = inverse(ACTIVATIONS).get(name, "swiglu" if name == "silu" else "gelu")
    width = t.take("intermediate_size")
    factor = t.take("expansion_factor", 4)
    size = whole(width) if width is not None else int(real(factor) * hidden)
    model["intermediate_size"] = _third(t, size) if model["mlp_type"] in GATED else size
    norm, bias = str(t.take("norm", "layernorm")), bool(t.take("use_bias_in_norms", True))
    model["norm_type"] = (
        "rmsnorm" if norm.endswith("rmsnorm") else "layernorm" if bias else "layernorm_nobias"
    )
    rms, layer = t.take(EPSILONS[0], 1e-8), t.take(EPSILONS[1], 1e-5)
    model["norm_eps"] = real(rms if model["norm_type"] == "rmsnorm" else layer)
    model["positions"] = inverse(POSITIONS).get(t.take("pos_emb", "learned"), "learned")
    parallel, tied = bool(t.take("gpt_j_residual")), bool(t.take("gpt_j_tied"))
    model["residual"] = "parallel_shared" if parallel and tied else "parallel" if parallel else "sequential"
    attention, mlp = bool(t.take("use_bias_in_attn_linear", True)), bool(t.take("use_bias_in_mlp", True))
    model |= {"qkv_bias": attention, "o_bias": attention, "mlp_bias": mlp}
    model.setdefault("tie_word_embeddings", True)
    t.refuse("use_qk_layernorm", "its norm is over all heads, by the same weights for q and k")
    if (window := t.take("sliding_window_width")) is not None:
        model |= {"sliding_window": whole(window) + 1, "window_pattern": [True]}
    model["vocab_size"] = whole(t.take("padded_vocab_size", 50304))
    t.assume(f"vocab_size {model['vocab_size']}: its tokenizer's isn't in the file, set model.vocab_size")
    for key in ("hidden_dropout", "attention_dropout"):
        if real(t.take(key, 0.0)) > 0:
            t.assume(f"{key} is left out: models here train without dropout")
    if whole(t.values.get("moe_num_experts", 1)) > 1:
        t.refuse("moe_num_experts", "its mixtures aren't read: taken as dense")


def _third(t: Theirs, size: int) -> int:
    """The width of a gated MLP, rounded up as ParallelMLP does."""
    multiple = whole(t.take("mlp_multiple_of", 1))
    return -(-(int(size * 2 / 3) // 2) // multiple) * multiple


def _read_layout(t: Theirs, run: Words) -> None:
    layout = run["layout"] = run.get("layout", {})
    tp, pp = layout.setdefault("tp", 1), max(1, whole(t.take("pipe_parallel_size", 0)))
    layout["sp"] = bool(layout.get("sp")) and tp > 1
    each, nodes = t.take("num_gpus"), whole(t.take("num_nodes", 1))
    total = t.take("global_num_gpus")
    micro, batch = layout.setdefault("micro_batch", 1), layout.get("global_batch")
    accumulation = whole(t.values.get("gradient_accumulation_steps") or 1)
    if total is None and each is None and batch is not None and "gradient_accumulation_steps" in t:
        devices = tp * pp * batch // (micro * accumulation)
    elif total is not None or each is not None:
        devices = whole(total) if total is not None else whole(each) * max(nodes, 1)
    else:
        devices = tp * pp
        t.guess("devices", devices, FEWEST)
    layout |= {"devices": devices, "pp": pp, "schedule": "1f1b"}
    if batch is None:
        layout["global_batch"] = micro * accumulation * max(1, devices // (tp * pp))
        t.follow("global_batch")
    layout["zero_stage"] = whole(t.take("zero_optimization.stage", t.take("zero_stage", 0)))
    if t.take("zero_optimization.offload_optimizer.device") == "cpu":
        layout["offload"] = "optimizer"
    layout["recompute"] = "full" if t.take("checkpoint_activations") else "none"
    if whole(t.take("checkpoint_num_layers", 1)) > 1 and layout["recompute"] == "full":
        t.assume("recompute full: theirs keeps the input of a group of layers alone")
    name = str(
        t.take("precision")
        or t.values.get("fp16.type")
        or ("fp16" if t.values.get("fp16.enabled") else "fp32")
    )
    layout["precision"] = {"bfloat16": "bf16", "fp16": "fp16"}.get(name, "fp32")


def _read_training(t: Theirs, run: Words) -> None:
    optimizer = run.setdefault("optimizer", {})
    name = str(t.take("optimizer.type", "Adam")).lower()
    optimizer["name"] = "lion" if name == "lion" else "adamw"
    if name not in ("lion", "adam", "adamw", "cpu_adam", "cpu_torch_adam"):
        t.refuse("optimizer.type", "taken as AdamW: this optimizer isn't here")
    for key in ("lr", "eps"):
        if (value := t.take(f"optimizer.params.{key}")) is not None:
            optimizer[key] = real(value)
    if (betas := t.take("optimizer.params.betas")) is not None:
        optimizer["betas"] = [real(beta) for beta in betas]
    optimizer.setdefault("weight_decay", 0.1)
    steps = t.take("train_iters")
    if steps is not None:
        put(run, "train.steps", whole(steps))
    length = whole(t.take("lr_decay_iters", steps or 0))
    warmup = round(real(t.take("warmup", 0.01)) * length)
    style = str(t.take("lr_decay_style", "linear"))
    if style not in STYLES:
        t.refuse("lr_decay_style", "taken as cosine: this shape isn't here")
        style = "cosine"
    put_rates(run, style, warmup, max(1, length - warmup), real(t.take("min_lr", 0.0)))
    train, valid = t.take_first("train_data_paths", "data_path"), t.take("valid_data_paths")
    if train is not None:
        put(run, "data.train", put_sources(train, t.take("train_data_weights")))
    if valid and whole(t.values.get("eval_iters", 100)) > 0:
        put(run, "data.valid", put_sources(valid))
        put(run, "train.valid_every", whole(t.values.get("eval_interval", 1000)))
    every = t.take_first("checkpoint_factor", "save_interval")
    if every is not None and whole(every) < run.get("train", {}).get("steps", 0):
        put(run, "checkpoint.every", whole(every))
