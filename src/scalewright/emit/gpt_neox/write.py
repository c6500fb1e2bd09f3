"""A run as GPT-NeoX's file."""

from __future__ import annotations

from scalewright.emit.arguments import nodes_of
from scalewright.emit.emitted import Emitted, yaml_text
from scalewright.emit.gpt_neox.words import (
    ACTIVATIONS,
    EPSILONS,
    FILE,
    NORMS,
    OPTIMIZERS,
    POSITIONS,
    PRECISIONS,
    RESIDUALS,
    STYLES,
    TITLE,
    TOKENIZER,
    VERSION,
    WORDS,
)
from scalewright.emit.rates import take_rates
from scalewright.emit.rules import Words, write_rules
from scalewright.emit.settings import Settings
from scalewright.spec.errors import UserError


def write(s: Settings) -> Emitted:
    """The complete file; raises UserError where it would be another layout, or a mixture."""
    if s.model.moe:
        how = "emit it for megatron, which has them"
        raise UserError("mixtures of experts aren't written for GPT-NeoX", "model.moe", how)
    s.take("layout.devices")
    rates = take_rates(s, STYLES, "GPT-NeoX decays by a line, a cosine or not at all")
    data: Words = {
        **write_rules(s, WORDS), **_network(s), **_layout(s), **_optimizer(s), "train_iters": rates.steps,
        "lr_decay_iters": rates.start + rates.length, "lr_decay_style": rates.kind, "min_lr": rates.least,
        "warmup": rates.warmup / (rates.start + rates.length), **_data(s), **_saves(s),
    }  # fmt: skip
    nodes, each = nodes_of(s.layout.devices)
    data |= {"num_gpus": each, **({"num_nodes": nodes, "hostfile": "hostfile"} if nodes > 1 else {})}
    if nodes > 1:
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
    written: Words = {
        "activation": name,
        "intermediate_size": width * (3 if model.gated else 1),
        "mlp_multiple_of": 1,
    }
    norm, bias = s.choose(
        "model.norm_type", NORMS, "GPT-NeoX's norms are RMSNorm and LayerNorm", "rmsnorm"
    ) or ("", False)
    written |= {
        "norm": norm,
        "use_bias_in_norms": bias,
        EPSILONS[norm == "layernorm"]: s.take("model.norm_eps"),
    }
    written["pos_emb"] = s.choose("model.positions", POSITIONS, "GPT-NeoX has no such positions", "rope")
    s.take("model.learned_positions")
    s.take_scaling(TITLE, "")
    parallel, tied = s.choose("model.residual", RESIDUALS, "") or (False, False)
    written |= {"gpt_j_residual": parallel, "gpt_j_tied": tied}
    qkv, out, mlp = (s.take(f"model.{part}_bias") for part in ("qkv", "o", "mlp"))
    written |= {"use_bias_in_attn_linear": qkv or out, "use_bias_in_mlp": mlp}
    if qkv != out:
        s.nearly("model.o_bias", str(not out).lower(), "GPT-NeoX has one switch for attention's biases")
    s.drop("model.qk_norm", "GPT-NeoX norms all heads of q and of k by the same weights")
    if model.sliding_window and model.window_pattern == (True,):
        s.take("model.window_pattern")
        written["sliding_window_width"] = s.take("model.sliding_window") - 1  # tokens before the query's own
    why = f"it is its tokenizer's, padded to a multiple of 128: {model.vocab_size} tokens are expected"
    s.nearly("model.vocab_size", f"that of {TOKENIZER}", why)
    return written | {
        "tokenizer_type": "HFTokenizer", "vocab_file": TOKENIZER, "make_vocab_size_divisible_by": 128,
        "attention_config": [[["flash"], model.num_hidden_layers]], "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }  # fmt: skip


def _layout(s: Settings) -> Words:
    layout = s.layout
    pp, offload = s.take("layout.pp"), s.take("layout.offload")
    for key in ("cp", "ep", "etp"):
        s.drop(f"layout.{key}", "it has tensor, pipeline and data parallelism")
    s.drop("layout.dp_replicate", "its ZeRO shards over all of dp")
    stage = s.take("layout.zero_stage")
    if pp > 1:
        why = f"DeepSpeed has no {layout.schedule}: the same numbers, other bubbles and memory"
        s.choose("layout.schedule", {"1f1b": None}, why, "1f1b")
        s.drop("layout.virtual_stages", "a rank of DeepSpeed's pipeline has one stage")
        s.drop("layout.stage_layers", "DeepSpeed cuts stages by kinds of layers")
        s.assume("stages are cut by numbers of transformer layers (pipe_partition_method)")
        if stage > 1:
            stage = 1
            s.nearly("layout.zero_stage", "1", "DeepSpeed's pipeline engine refuses ZeRO-2 and 3")
    zero: Words = {"stage": stage, "allgather_partitions": True, "overlap_comm": True, "reduce_scatter": True,
                   "contiguous_gradients": True}  # fmt: skip
    if offload == "optimizer" and stage:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    elif offload != "none":
        s.nearly(
            "layout.offload", "none", "GPT-NeoX's own files offload optimizer states of ZeRO-1 to 3 alone"
        )
    why = "DeepSpeed recomputes whole layers, or none"
    recompute = s.choose("layout.recompute", {"none": False, "full": True}, why)
    precision = s.choose_precision(PRECISIONS, "GPT-NeoX has bf16, fp16 and fp32")
    return {
        "pipe_parallel_size": pp if pp > 1 else 0, "gradient_accumulation_steps": layout.accumulation,
        "zero_optimization": zero, "checkpoint_activations": bool(recompute), "checkpoint_num_layers": 1,
        **(precision or {}),
    }  # fmt: skip


def _optimizer(s: Settings) -> Words:
    name = s.choose("optimizer.name", OPTIMIZERS, "written as Adam: GPT-NeoX has no such optimizer", "adamw")
    parameters: Words = {"lr": s.take("optimizer.lr"), "betas": list(s.take_adam())}
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
    return {
        "train_data_paths": paths, "train_data_weights": weights, "valid_data_paths": list(held),
        "test_data_paths": list(held), "data_impl": "mmap", **checks,
    }  # fmt: skip


def _saves(s: Settings) -> Words:
    every = s.save_steps()
    logs = {"log_interval": 1, "steps_per_print": 1}
    folder = f"{s.run.folder}/neox"
    return {"save": folder, "load": folder, "checkpoint_factor": every, **logs} if every else logs
