"""A run as litgpt's file."""

from __future__ import annotations

from scalewright.emit.arguments import nodes_of
from scalewright.emit.emitted import Emitted, yaml_text
from scalewright.emit.litgpt.words import (
    ADAMW,
    ADJUSTED,
    CONFIG,
    FILE,
    MIXTURE,
    MLPS,
    NORMS,
    POSITIONS,
    PRECISIONS,
    RATES,
    RESIDUALS,
    SCALING,
    SGD,
    TITLE,
    UNCLIPPED,
    VERSION,
    WORDS,
)
from scalewright.emit.rates import take_rates
from scalewright.emit.rules import Words, put, write_rules
from scalewright.emit.settings import Settings


def write(s: Settings) -> Emitted:
    """The complete file; raises UserError where it would be another layout."""
    layout = s.layout
    nodes, each = nodes_of(layout.devices)
    s.take("layout.devices")
    rates = take_rates(s, RATES, "litgpt's pretrain has a cosine alone")
    keys: Words = {
        "model_name": s.run.name, **_network(s), **_sharding(s, nodes), "out_dir": f"{s.run.folder}/litgpt",
        **write_rules(s, WORDS), "train.max_tokens": rates.steps * layout.global_batch * s.run.seq_len,
        "train.lr_warmup_steps": rates.warmup, "train.min_lr": rates.least,
        "train.max_norm": s.take("optimizer.clip_norm") or UNCLIPPED, "train.save_interval": s.save_steps(),
        "train.log_interval": 1, "eval.interval": rates.steps + 1, "eval.max_iters": 1,
        "eval.final_validation": False, **_optimizer(s), "devices": each, "num_nodes": nodes, **_data(s),
    }  # fmt: skip
    if not rates.to_the_end:
        s.nearly("lr_schedule.decay_steps", "to the end", "litgpt's cosine ends with the run")
    data: Words = {}
    for key, value in keys.items():
        put(data, key, value)
    command = f"litgpt pretrain --config {FILE}"
    if nodes > 1:
        s.assume(f"it is started on each of {nodes} nodes with MASTER_ADDR, MASTER_PORT and NODE_RANK set")
    comments = (f"Written by `scalewright emit litgpt`, for litgpt {VERSION}.", command)
    return s.emitted(TITLE, "litgpt", VERSION, {FILE: yaml_text(comments, data)}, command)


def _network(s: Settings) -> Words:
    model = s.model
    vocabulary = s.take("model.vocab_size")
    written: Words = {CONFIG + "name": s.run.name, CONFIG + "vocab_size": vocabulary,
                      CONFIG + "padded_vocab_size": vocabulary}  # fmt: skip
    name, approximate = s.choose(
        "model.mlp_type", MLPS, "litgpt's MLPs are SwiGLU, GeGLU and GELU", "swiglu"
    ) or ("", "")
    written |= {CONFIG + "mlp_class_name": name, CONFIG + "gelu_approximate": approximate}
    written[CONFIG + "norm_class_name"] = s.choose(
        "model.norm_type", NORMS, "litgpt's norms are RMSNorm and LayerNorm", "rmsnorm"
    )
    s.choose("model.positions", {"rope": None}, "litgpt has rotary positions")
    parallel, shared = s.choose("model.residual", RESIDUALS, "") or (False, False)
    written |= {CONFIG + "parallel_residual": parallel, CONFIG + "shared_attention_norm": shared}
    biases = [s.take(f"model.{part}_bias") for part in ("qkv", "o", "mlp")]
    written |= {CONFIG + "bias": all(biases), CONFIG + "attn_bias": biases[0]}
    if any(biases[1:]) and not all(biases):
        s.nearly("model.o_bias", "no bias but of q, k, v", "litgpt has biases on q, k, v or on every matrix")
    if (scaling := s.take_scaling(TITLE, "llama3")) is not None:
        written |= {ADJUSTED + theirs: scaling[ours] for ours, theirs in SCALING.items()}
    written |= _norms(s)
    if model.sliding_window and any(model.window_pattern):
        written[CONFIG + "sliding_window_size"] = s.take("model.sliding_window")
        s.take("model.window_pattern")
        windows = [int(model.window(layer) is not None) for layer in range(model.num_hidden_layers)]
        written[CONFIG + "sliding_window_indices"] = windows
    if model.moe:
        written |= {**write_rules(s, MIXTURE), CONFIG + "mlp_class_name": "LLaMAMoE"}
        s.take_expert_split(TITLE)
        if not s.is_all_sparse():
            s.drop("model.moe.first_k_dense", "litgpt's LLaMAMoE is in every layer")
    return written


def _norms(s: Settings) -> Words:
    """Norms of q and k, norms after the parts of a block, and Gemma's scale of embeddings."""
    written: Words = {}
    kinds = {None: None, "head": "default", "full": "olmo2"}
    kind = s.choose("model.qk_norm", kinds, "litgpt norms heads of q and k, or all of them")
    if kind is not None:
        written |= {CONFIG + "norm_qk": True, CONFIG + "norm_qk_type": kind}
    before, after = POSITIONS[s.take("model.norm_position")]
    for place in ("norm_1", "norm_2"):
        written[CONFIG + place] = before
    for place in ("post_attention_norm", "post_mlp_norm"):
        written[CONFIG + place] = after
    scale = s.values["model.embedding_scale"]
    if scale is not None and abs(scale - s.model.hidden_size**0.5) < 1e-6 * scale:
        s.take("model.embedding_scale")
        written[CONFIG + "scale_embeddings"] = True
    return written


def _sharding(s: Settings, nodes: int) -> Words:
    layout = s.layout
    if layout.devices > 1:
        s.choose("layout.zero_stage", {3: None}, "litgpt shards parameters, gradients and states (FSDP)", 3)
    else:
        s.take("layout.zero_stage")
    if layout.dp_replicate == nodes:
        s.take("layout.dp_replicate")
    else:
        s.nearly("layout.dp_replicate", str(nodes), "litgpt shards in a node and replicates over nodes")
    for key in ("tp", "pp", "cp", "ep"):
        s.drop(f"layout.{key}", "its training has FSDP alone")
    s.choose("layout.recompute", {"none": None}, "litgpt's pretrain keeps all activations")
    s.drop("layout.offload", "litgpt's pretrain offloads nothing")
    why = "litgpt's pretrain has bf16-mixed, bf16-true and 32-true"
    return {"precision": s.choose_precision(PRECISIONS, why)}


def _optimizer(s: Settings) -> Words:
    words, spec = {"adamw": ADAMW, "sgd": SGD}, s.optimizer
    name = s.choose("optimizer.name", words, "written as AdamW: litgpt takes classes of torch.optim", "adamw")
    lr, decay, betas = s.take("optimizer.lr"), s.take("optimizer.weight_decay"), s.take_adam()
    arguments: Words = {"lr": lr, "weight_decay": decay}
    momentum = s.take("optimizer.momentum") if name == SGD else None
    if name == ADAMW:
        arguments |= {"betas": list(betas), "eps": s.take("optimizer.eps")}
    elif momentum:
        arguments["momentum"] = spec.kept_momentum
    return {
        "optimizer.class_path": name,
        **{f"optimizer.init_args.{key}": value for key, value in arguments.items()},
    }


def _data(s: Settings) -> Words:
    paths, _ = s.take_sources()
    if len(paths) > 1:
        s.nearly(
            "data.train", paths[0], "LitData reads one folder: mix the data before, or write a DataModule"
        )
    s.drop("data.valid", "LitData's validation is a folder beside the training data: set split_names")
    s.assume("data are chunks of litdata: convert ours, or set data.init_args.data_path")
    return {
        "data.class_path": "LitData",
        "data.init_args.data_path": paths[0],
        "data.init_args.seed": s.values["seed"],
    }
