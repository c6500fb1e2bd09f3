"""GPT-NeoX: the YAML of deepy.py, both ways; dense models (its mixtures aren't written).

ours                          theirs
mlp width of SwiGLU, GeGLU    intermediate_size / 3: transformer.py halves two thirds of it
pp 1                          pipe_parallel_size 0, without DeepSpeed's pipeline engine
warmup_steps                  warmup, a share of lr_decay_iters, which counts the warm-up in
zero_stage 2, 3 with pp       1: DeepSpeed's pipeline engine refuses more
vocab_size                    its tokenizer's, padded

Keys with `-` are the same as with `_`. They are those of its main branch of May 2026
(megatron/neox_arguments/{neox_args,deepspeed_args}.py).
"""

from __future__ import annotations

from typing import Any

from scalewright.emit.command_lines import nodes_of
from scalewright.emit.deepspeed.read import read_offload
from scalewright.emit.emitted import Emitted, Reading, yaml_text
from scalewright.emit.foreign import ForeignKeys, RunKeys, read_keys, real, whole
from scalewright.emit.rates import put_rates, put_saves, put_sources, take_rates
from scalewright.emit.rules import Lacks, Pick, Rule, Words, inverse, put, words_for
from scalewright.emit.settings import Settings
from scalewright.emit.tables import keys_for
from scalewright.spec.errors import UserError
from scalewright.spec.model import GATED

TITLE, VERSION, FILE = "GPT-NeoX", "main, May 2026", "neox.yml"
WORDS: tuple[Rule, ...] = (
    *words_for("gpt-neox, words"),
    Lacks("model.qk_norm", "GPT-NeoX norms all heads of q and of k by the same weights"),
)
POSITIONS = Pick("model.positions", "pos_emb", {
    "rope": "rotary", "learned": "learned", "alibi": "alibi", "none": "none",
}, "GPT-NeoX has no such positions", "rope", "learned", "learned")  # fmt: skip
RESIDUAL = Pick("model.residual", ("gpt_j_residual", "gpt_j_tied"), {
    "sequential": (False, False), "parallel": (True, False), "parallel_shared": (True, True),
}, "", None, (False, False), "sequential", bool)  # fmt: skip
ACTIVATIONS = {"swiglu": "swiglu", "geglu": "geglu", "gelu": "gelu", "relu": "relu"}
NORMS = {  # the norm, whether it has a bias
    "rmsnorm": ("rmsnorm", False), "layernorm": ("layernorm", True), "layernorm_nobias": ("layernorm", False),
}  # fmt: skip
PRECISIONS: dict[str, Words] = {
    "bf16": {"precision": "bfloat16", "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}},
    "fp16": {"precision": "fp16", "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 1000,
                                           "hysteresis": 2, "min_loss_scale": 1}},
    "fp32": {"precision": "fp32"},
}  # fmt: skip
PRECISIONS["auto"] = PRECISIONS["bf16"]
OPTIMIZERS = {"adamw": "Adam", "lion": "Lion"}
STYLES = {"constant": "constant", "linear": "linear", "cosine": "cosine"}
EPSILONS = ("rms_norm_epsilon", "layernorm_epsilon")
TOKENIZER = "tokenizer.json"
ASIDE = keys_for("gpt-neox")


def write(s: Settings) -> Emitted:
    """The complete file; raises UserError where it would be another layout, or a mixture."""
    if s.model.moe:
        how = "emit it for megatron, which has them"
        raise UserError("mixtures of experts aren't written for GPT-NeoX", "model.moe", how)
    s.take("layout.devices")
    rates = take_rates(s, STYLES, "GPT-NeoX decays by a line, a cosine or not at all")
    data: Words = {
        **s.write(WORDS), **_network(s), **_layout(s), **_optimizer(s), "train_iters": rates.steps,
        "lr_decay_iters": rates.start + rates.length, "lr_decay_style": rates.kind, "min_lr": rates.least,
        "warmup": rates.warmup / (rates.start + rates.length), **_data(s),
    }  # fmt: skip
    if every := s.save_steps():
        folder = f"{s.run.folder}/neox"
        data |= {"save": folder, "load": folder, "checkpoint_factor": every}
    nodes, each = nodes_of(s.layout.devices)
    data |= {"log_interval": 1, "steps_per_print": 1, "num_gpus": each}
    if nodes > 1:
        data |= {"num_nodes": nodes, "hostfile": "hostfile"}
        s.assume(f"`hostfile` lists {nodes} nodes, as `worker-1 slots={each}`")
    s.assume("NEOX is the folder of its checkout; default: where it is started")
    command = f"python ${{NEOX:-.}}/deepy.py ${{NEOX:-.}}/train.py {FILE}"
    comments = (f"Written by `scalewright emit gpt-neox`, for GPT-NeoX ({VERSION}).", command)
    return s.emitted(TITLE, "gpt-neox", VERSION, {FILE: yaml_text(comments, data)}, command)


def _network(s: Settings) -> Words:
    model = s.model
    s.take_head_dim(TITLE)
    width = s.take("model.intermediate_size")
    why = "GPT-NeoX's MLPs are SwiGLU, GeGLU, GELU and ReLU"
    name = s.choose("model.mlp_type", ACTIVATIONS, why, "swiglu" if model.gated else "gelu")
    why = "GPT-NeoX's norms are RMSNorm and LayerNorm"
    norm, bias = s.choose("model.norm_type", NORMS, why, "rmsnorm") or ("", False)
    written: Words = {
        "activation": name, "intermediate_size": width * (3 if model.gated else 1), "mlp_multiple_of": 1, "norm": norm,
        "use_bias_in_norms": bias, EPSILONS[norm == "layernorm"]: s.take("model.norm_eps"), **POSITIONS.write(s),
    }  # fmt: skip
    s.take("model.learned_positions")
    s.take_scaling(TITLE, "")
    written |= RESIDUAL.write(s)
    qkv, out, mlp = (s.take(f"model.{part}_bias") for part in ("qkv", "o", "mlp"))
    written |= {"use_bias_in_attn_linear": qkv or out, "use_bias_in_mlp": mlp}
    if qkv != out:
        s.nearly("model.o_bias", str(not out).lower(), "GPT-NeoX has one switch for attention's biases")
    if model.sliding_window and model.window_pattern == (True,):
        s.take("model.window_pattern")
        written["sliding_window_width"] = s.take("model.sliding_window") - 1  # tokens before the query's own
    why = f"it is its tokenizer's, padded to a multiple of 128: {model.vocab_size} tokens are expected"
    s.nearly("model.vocab_size", f"that of {TOKENIZER}", why)
    return written | {
        "tokenizer_type": "HFTokenizer", "vocab_file": TOKENIZER, "make_vocab_size_divisible_by": 128,
        "attention_config": [[["flash"], model.num_hidden_layers]], "hidden_dropout": 0.0, "attention_dropout": 0.0,
    }  # fmt: skip


def _layout(s: Settings) -> Words:
    layout = s.layout
    pp, offload = s.take("layout.pp"), s.take("layout.offload")
    stage = s.take("layout.zero_stage")
    if pp > 1:
        why = f"DeepSpeed has no {layout.schedule}: the same numbers, other bubbles and memory"
        s.choose("layout.schedule", {"1f1b": None}, why, "1f1b")
        s.assume("stages are cut by numbers of transformer layers (pipe_partition_method)")
        if stage > 1:
            stage = 1
            s.nearly("layout.zero_stage", "1", "DeepSpeed's pipeline engine refuses ZeRO-2 and 3")
    zero: Words = {"stage": stage, "allgather_partitions": True, "overlap_comm": True, "reduce_scatter": True,
                   "contiguous_gradients": True}  # fmt: skip
    if offload == "optimizer" and stage:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    elif offload != "none":
        s.nearly("layout.offload", "none", "GPT-NeoX's own files offload optimizer states of ZeRO-1 to 3 alone")
    recompute = s.choose("layout.recompute", {"none": False, "full": True})
    precision = s.choose_precision(PRECISIONS, "GPT-NeoX has bf16, fp16 and fp32")
    return {
        "pipe_parallel_size": pp if pp > 1 else 0, "gradient_accumulation_steps": layout.accumulation,
        "zero_optimization": zero, "checkpoint_activations": bool(recompute), "checkpoint_num_layers": 1,
        **(precision or {}),
    }  # fmt: skip


def _optimizer(s: Settings) -> Words:
    name = s.choose("optimizer.name", OPTIMIZERS, "written as Adam: GPT-NeoX has no such optimizer", "adamw")
    parameters: Words = {"lr": s.take("optimizer.lr"), "betas": s.take("optimizer.betas")}
    if name == "Adam":
        parameters["eps"] = s.take("optimizer.eps")
    offloads = s.layout.offload == "optimizer" and s.layout.zero_stage
    return {"optimizer": {"type": "cpu_adam" if offloads and name == "Adam" else name, "params": parameters}}


def _data(s: Settings) -> Words:
    paths, weights = s.take_sources()
    valid = [source["path"] for source in s.take("data.valid")]
    every, batches = s.take("train.valid_every"), s.values["train.valid_batches"]
    s.assume("data paths are prefixes of Megatron's .bin and .idx files: convert ours, or set them")
    checks = {"eval_interval": every or 10**9, "eval_iters": batches if valid and every else 0}
    if len(paths) == 1 and not valid:
        return {"data_path": paths[0], "split": "100,0,0", "data_impl": "mmap", **checks}
    held = valid or paths[:1]  # it wants all three, or none
    return {"train_data_paths": paths, "train_data_weights": weights, "valid_data_paths": list(held),
            "test_data_paths": list(held), "data_impl": "mmap", **checks}  # fmt: skip


def recognises(document: Any, text: str) -> bool:
    """A document with GPT-NeoX's names of parallelism or of its batch beside a network's."""
    names = {str(key).replace("-", "_") for key in document} if isinstance(document, dict) else set()
    layout = {"pipe_parallel_size", "model_parallel_size", "zero_optimization"}
    return bool(names & layout) and "num_layers" in names


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run; raises UserError."""
    keys = {str(key).replace("-", "_"): value for key, value in document.items()}
    return read_keys("gpt-neox", keys, ASIDE, where, _read_network, _read_layout, _read_training)


def _read_network(t: ForeignKeys, run: RunKeys) -> None:
    t.read(WORDS, run)
    model = run["model"]
    hidden, name = model["hidden_size"], str(t.take("activation", "gelu"))
    model["mlp_type"] = inverse(ACTIVATIONS).get(name, "swiglu" if name == "silu" else "gelu")
    width = t.take("intermediate_size")
    factor = t.take("expansion_factor", 4)
    size = whole(width) if width is not None else int(real(factor) * hidden)
    model["intermediate_size"] = _third(t, size) if model["mlp_type"] in GATED else size
    norm, bias = str(t.take("norm", "layernorm")), bool(t.take("use_bias_in_norms", True))
    kind = "layernorm" if bias else "layernorm_nobias"
    model["norm_type"] = "rmsnorm" if norm.endswith("rmsnorm") else kind
    rms, layer = t.take(EPSILONS[0], 1e-8), t.take(EPSILONS[1], 1e-5)
    model["norm_eps"] = real(rms if model["norm_type"] == "rmsnorm" else layer)
    t.read((POSITIONS, RESIDUAL), run)
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


def _third(t: ForeignKeys, size: int) -> int:
    """The width of a gated MLP, rounded up as ParallelMLP does."""
    multiple = whole(t.take("mlp_multiple_of", 1))
    return -(-(int(size * 2 / 3) // 2) // multiple) * multiple


def _read_layout(t: ForeignKeys, run: RunKeys) -> None:
    layout = run["layout"]
    tp, pp = layout["tp"], max(1, whole(t.take("pipe_parallel_size", 0)))
    layout["sp"] = bool(layout.get("sp")) and tp > 1
    each, nodes = t.take("num_gpus"), whole(t.take("num_nodes", 1))
    total = t.take("global_num_gpus")
    micro, batch = layout["micro_batch"], layout.get("global_batch")
    accumulation = whole(t.values.get("gradient_accumulation_steps") or 1)
    if total is None and each is None and batch is not None and "gradient_accumulation_steps" in t:
        devices = tp * pp * batch // (micro * accumulation)
    elif total is not None or each is not None:
        devices = whole(total) if total is not None else whole(each) * max(nodes, 1)
    else:
        devices = tp * pp
        t.guess_devices(devices)
    layout |= {"devices": devices, "pp": pp, "schedule": "1f1b"}
    if batch is None:
        layout["global_batch"] = micro * accumulation * max(1, devices // (tp * pp))
        t.follow("global_batch")
    layout["zero_stage"] = whole(t.take("zero_optimization.stage", t.take("zero_stage", 0)))
    read_offload(t, layout, "zero_optimization.")
    layout["recompute"] = "full" if t.take("checkpoint_activations") else "none"
    if whole(t.take("checkpoint_num_layers", 1)) > 1 and layout["recompute"] == "full":
        t.assume("recompute full: theirs keeps the input of a group of layers alone")
    half = t.values.get("fp16.type") or ("fp16" if t.values.get("fp16.enabled") else "fp32")
    name = str(t.take("precision") or half)
    layout["precision"] = {"bfloat16": "bf16", "fp16": "fp16"}.get(name, "fp32")


def _read_training(t: ForeignKeys, run: RunKeys) -> None:
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
    steps = t.take("train_iters")
    if steps is not None:
        put(run, "train.steps", whole(steps))
    length = whole(t.take("lr_decay_iters", steps or 0))
    warmup = round(real(t.take("warmup", 0.01)) * length)
    style = t.shape("lr_decay_style", STYLES, "linear")
    put_rates(run, style, warmup, max(1, length - warmup), real(t.take("min_lr", 0.0)))
    train, valid = t.take_first("train_data_paths", "data_path"), t.take("valid_data_paths")
    if train is not None:
        put(run, "data.train", put_sources(train, t.take("train_data_weights")))
    if valid and whole(t.values.get("eval_iters", 100)) > 0:
        put(run, "data.valid", put_sources(valid))
        put(run, "train.valid_every", whole(t.values.get("eval_interval", 1000)))
    put_saves(run, t.take_first("checkpoint_factor", "save_interval"))
