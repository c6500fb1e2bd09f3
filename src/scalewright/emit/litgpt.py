"""litgpt: the YAML of `litgpt pretrain --config`, both ways.

ours                       theirs
zero_stage 3               always, on more than one device: FSDP that shards in a node and replicates
dp_replicate               num_nodes (HYBRID_SHARD is hard-coded, Lightning-AI/litgpt#1731)
steps                      train.max_tokens = steps x global_batch x seq_len
lr_schedule constant       a cosine that ends at the rate where it begins
mlp_type gelu_tanh         mlp_class_name GptNeoxMLP, gelu_approximate tanh

It has no tensor, pipeline, context or expert parallelism in training, and no recomputation. Keys are those of
0.5.13 (litgpt/{pretrain,args,config}.py).
"""

from __future__ import annotations

from typing import Any

from scalewright.emit.command_lines import nodes_of
from scalewright.emit.emitted import Emitted, Reading, yaml_text
from scalewright.emit.foreign import ForeignKeys, RunKeys, read_keys, real, shortest, whole
from scalewright.emit.rates import put_rates, put_saves, put_sources, take_rates
from scalewright.emit.rules import Fixed, Lacks, Pick, Rule, Words, inverse, nested, put, words_for
from scalewright.emit.scripts.model import preset_of
from scalewright.emit.settings import Settings
from scalewright.emit.tables import keys_for

TITLE, VERSION, FILE = "litgpt", "0.5.13", "pretrain.yaml"
CONFIG = "model_config."
WORDS: tuple[Rule, ...] = (
    *words_for("litgpt, words"),
    Lacks("data.valid", "LitData's validation is a folder beside the training data: set split_names"),
)
MIXTURE = words_for("litgpt, mixture")
BLOCK = (
    Pick("model.mlp_type", (CONFIG + "mlp_class_name", CONFIG + "gelu_approximate"), {
        "swiglu": ("LLaMAMLP", "none"), "gelu": ("GptNeoxMLP", "none"), "gelu_tanh": ("GptNeoxMLP", "tanh"),
        "geglu": ("GemmaMLP", "none"), "geglu_tanh": ("GemmaMLP", "tanh"),
    }, "litgpt's MLPs are SwiGLU, GeGLU and GELU", "swiglu", ("GptNeoxMLP", "none"), "swiglu", str),
    Pick("model.norm_type", CONFIG + "norm_class_name", {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"},
         "litgpt's norms are RMSNorm and LayerNorm", "rmsnorm", "LayerNorm", "layernorm"),
    Fixed("model.positions", ("rope",), "litgpt has rotary positions"),
    Pick("model.residual", (CONFIG + "parallel_residual", CONFIG + "shared_attention_norm"), {
        "sequential": (False, False), "parallel": (True, False), "parallel_shared": (True, True),
    }, "", None, (True, False), "sequential", bool),
)  # fmt: skip
POSITIONS = {"pre": (True, False), "post": (False, True), "both": (True, True)}  # norms before, after
PRECISIONS = {"bf16": "bf16-mixed", "auto": "bf16-mixed", "fp32": "32-true"}
RATES = {"cosine": "cosine", "constant": "cosine"}
ADJUSTED = CONFIG + "rope_adjustments."
SCALING = words_for("litgpt, scaling")
UNCLIPPED = 1e9  # its pretrain wants a number
ADAMW, SGD, INIT = "torch.optim.AdamW", "torch.optim.SGD", "optimizer.init_args."
ASIDE = keys_for("litgpt")


def write(s: Settings) -> Emitted:
    """The complete file; raises UserError where it would be another layout."""
    layout = s.layout
    nodes, each = nodes_of(layout.devices)
    s.take("layout.devices")
    rates = take_rates(s, RATES, "litgpt's pretrain has a cosine alone")
    keys: Words = {
        "model_name": s.run.name, **_network(s), **_sharding(s, nodes), "out_dir": f"{s.run.folder}/litgpt",
        **s.write(WORDS), "train.max_tokens": rates.steps * layout.global_batch * s.run.seq_len,
        "train.lr_warmup_steps": rates.warmup, "train.min_lr": rates.least,
        "train.max_norm": s.take("optimizer.clip_norm") or UNCLIPPED, "train.save_interval": s.save_steps(),
        "train.log_interval": 1, "eval.interval": rates.steps + 1, "eval.max_iters": 1,
        "eval.final_validation": False, **_optimizer(s), "devices": each, "num_nodes": nodes, **_data(s),
    }  # fmt: skip
    if not rates.to_the_end:
        s.nearly("lr_schedule.decay_steps", "to the end", "litgpt's cosine ends with the run")
    command = f"litgpt pretrain --config {FILE}"
    if nodes > 1:
        s.assume(f"it is started on each of {nodes} nodes with MASTER_ADDR, MASTER_PORT and NODE_RANK set")
    comments = (f"Written by `scalewright emit litgpt`, for litgpt {VERSION}.", command)
    return s.emitted(TITLE, "litgpt", VERSION, {FILE: yaml_text(comments, nested(keys))}, command)


def _network(s: Settings) -> Words:
    model = s.model
    vocabulary = s.take("model.vocab_size")
    written: Words = {CONFIG + "name": s.run.name, CONFIG + "vocab_size": vocabulary,
                      CONFIG + "padded_vocab_size": vocabulary}  # fmt: skip
    written |= s.write(BLOCK)
    biases = [s.take(f"model.{part}_bias") for part in ("qkv", "o", "mlp")]
    written |= {CONFIG + "bias": all(biases), CONFIG + "attn_bias": biases[0]}
    if any(biases[1:]) and not all(biases):
        s.nearly("model.o_bias", "no bias but of q, k, v", "litgpt has biases on q, k, v or on every matrix")
    if s.take_scaling(TITLE, "llama3"):
        written |= s.write(SCALING)
    written |= _norms(s)
    if model.sliding_window and any(model.window_pattern):
        written[CONFIG + "sliding_window_size"] = s.take("model.sliding_window")
        s.take("model.window_pattern")
        windows = [int(model.window(layer) is not None) for layer in range(model.num_hidden_layers)]
        written[CONFIG + "sliding_window_indices"] = windows
    if model.moe:
        written |= {**s.write(MIXTURE), CONFIG + "mlp_class_name": "LLaMAMoE"}
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
    written |= {CONFIG + place: before for place in ("norm_1", "norm_2")}
    written |= {CONFIG + place: after for place in ("post_attention_norm", "post_mlp_norm")}
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
    return {"precision": s.choose_precision(PRECISIONS, "litgpt's pretrain has bf16-mixed, bf16-true and 32-true")}


def _optimizer(s: Settings) -> Words:
    why = "written as AdamW: litgpt takes classes of torch.optim"
    name = s.choose("optimizer.name", {"adamw": ADAMW, "sgd": SGD}, why, "adamw")
    lr, decay, betas = (s.take(f"optimizer.{key}") for key in ("lr", "weight_decay", "betas"))
    written: Words = {"optimizer.class_path": name, INIT + "lr": lr, INIT + "weight_decay": decay}
    if name == ADAMW:
        written |= {INIT + "betas": betas, INIT + "eps": s.take("optimizer.eps")}
    elif s.take("optimizer.momentum"):
        written[INIT + "momentum"] = s.optimizer.kept_momentum
    return written


def _data(s: Settings) -> Words:
    paths, _ = s.take_sources()
    if len(paths) > 1:
        s.nearly("data.train", paths[0], "LitData reads one folder: mix the data before, or write a DataModule")
    s.assume("data are chunks of litdata: convert ours, or set data.init_args.data_path")
    return {"data.class_path": "LitData", "data.init_args.data_path": paths[0], "data.init_args.seed": s.values["seed"]}


def recognises(document: Any, text: str) -> bool:
    """A document with litgpt's `train` section and its model."""
    train = document.get("train") if isinstance(document, dict) else None
    if not isinstance(train, dict) or not {"model_name", "model_config"} & document.keys():
        return False
    return bool({"micro_batch_size", "max_tokens"} & train.keys())


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run; raises UserError."""
    return read_keys("litgpt", document, ASIDE, where, _read_network, _read_layout, _read_training)


def _read_network(t: ForeignKeys, run: RunKeys) -> None:
    named = not any(key.startswith(CONFIG) for key in t.values)
    t.read([word for word in WORDS if not (named and word.ours.startswith("model."))], run)
    if named:
        name = t.values.get("model_name")
        if known := preset_of(name):
            run["model"] = known
        else:
            t.assume(f"the model {name} of litgpt's list isn't known here: set model=...")
            run.pop("model", None)
        return
    model, moe = run["model"], t.values.get(CONFIG + "mlp_class_name") == "LLaMAMoE"
    if moe:  # of experts that are LLaMAMLPs
        t.values[CONFIG + "mlp_class_name"] = "LLaMAMLP"
    padded, vocabulary = t.take(CONFIG + "padded_vocab_size"), t.take(CONFIG + "vocab_size", 50254)
    model["vocab_size"] = whole(padded if padded is not None else vocabulary)
    t.read(BLOCK, run)
    bias, attention = bool(t.take(CONFIG + "bias", True)), bool(t.take(CONFIG + "attn_bias"))
    model |= {"qkv_bias": bias or attention, "o_bias": bias, "mlp_bias": bias}
    model.setdefault("intermediate_size", 4 * model.get("hidden_size", 4096))
    if ADJUSTED + "factor" in t:
        put(run, "model.rope.scaling.kind", "llama3")
        t.read(SCALING, run)
    if (window := t.take(CONFIG + "sliding_window_size")) is not None:
        marks = t.take(CONFIG + "sliding_window_indices")
        pattern = shortest([bool(mark) for mark in marks]) if marks else [True]
        model |= {"sliding_window": whole(window), "window_pattern": pattern}
    if t.take(CONFIG + "norm_qk"):
        model["qk_norm"] = "full" if t.take(CONFIG + "norm_qk_type") == "olmo2" else "head"
    before, after = t.take(CONFIG + "norm_1", True), t.take(CONFIG + "post_mlp_norm")
    t.take(CONFIG + "norm_2"), t.take(CONFIG + "post_attention_norm")
    model["norm_position"] = inverse(POSITIONS).get((bool(before), bool(after)), "pre")
    if t.take(CONFIG + "scale_embeddings"):
        model["embedding_scale"] = float(model["hidden_size"]) ** 0.5
    if moe:
        t.read(MIXTURE, run)
        model["moe"].setdefault("moe_intermediate_size", model["intermediate_size"])


def _read_layout(t: ForeignKeys, run: RunKeys) -> None:
    layout = run["layout"]
    given, nodes = t.take("devices", "auto"), whole(t.take("num_nodes", 1))
    if not str(given).isdecimal():
        t.guess("devices", 8, " of each node: set layout.devices")
    each = int(given) if str(given).isdecimal() else 8
    layout |= {"devices": each * nodes, "zero_stage": 3 if each * nodes > 1 else 0, "dp_replicate": nodes}
    precision = str(t.take("precision", "bf16-true"))
    layout["precision"] = {"32": "fp32", "16": "fp16"}.get(precision[:2], "bf16")
    if precision == "bf16-true":
        t.assume("precision bf16 has fp32 master weights: theirs (bf16-true) doesn't")


def _read_training(t: ForeignKeys, run: RunKeys) -> None:
    optimizer = run.setdefault("optimizer", {})
    path = str(t.take("optimizer.class_path") or t.take("optimizer", "AdamW"))
    optimizer["name"] = "sgd" if path.endswith("SGD") else "adamw"
    if not path.endswith(("AdamW", "SGD")):
        t.refuse("optimizer.class_path", "taken as AdamW: this optimizer isn't here")
    for key in ("lr", "weight_decay", "eps", "momentum"):
        if (value := t.take(INIT + key)) is not None:
            optimizer[key] = real(value)
    if (betas := t.take(INIT + "betas")) is not None:
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
    put_saves(run, t.take("train.save_interval"))
    kind = str(t.take("data.class_path", ""))
    if kind.endswith("LitData") and (path := t.take("data.init_args.data_path")):
        put(run, "data.train", put_sources(path))
    elif kind:
        t.refuse("data.class_path", "a data module of litgpt: make token shards, and set data.train")
    t.refuse_weights("initial_checkpoint_dir")
