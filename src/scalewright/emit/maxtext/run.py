"""MaxText's file, both ways: everything but the layout."""

from __future__ import annotations

from math import nextafter
from typing import Any

from scalewright.emit.emitted import Emitted, Reading, yaml_text
from scalewright.emit.foreign import ForeignKeys, RunKeys, read_keys, real, whole
from scalewright.emit.maxtext.layout import TITLE, hardware_of, read_layout, write_layout
from scalewright.emit.rates import put_rates, put_saves, put_sources, take_rates
from scalewright.emit.rules import Fixed, Pair, Word, Words, put, words_for
from scalewright.emit.scripts.model import preset_of
from scalewright.emit.settings import Settings
from scalewright.emit.tables import keys_for

VERSION, FILE = "0.2.5", "maxtext.yml"
WORDS = words_for("maxtext, words")
MIXTURE = words_for("maxtext, mixture")
FIXED = (
    Fixed("model.norm_type", ("rmsnorm",), "MaxText's llama2 block has RMSNorm"),
    Fixed("model.positions", ("rope",), "MaxText's llama2 block has rotary positions"),
)
ADAM = (
    Pair("optimizer.betas", ("adam_b1", "adam_b2"), (0.9, 0.95)),
    Word("optimizer.eps", "adam_eps", back=real, absent=1e-8),
)
MLPS = {"swiglu": ["silu", "linear"], "geglu_tanh": ["gelu", "linear"], "gelu_tanh": ["gelu"], "relu": ["relu"]}
BLOCKS = {  # norms of q and k, experts
    (False, False): "llama2", (True, False): "qwen3", (False, True): "mixtral", (True, True): "qwen3_moe",
}  # fmt: skip
KINDS = {"constant": "cosine", "cosine": "cosine", "linear": "wsd", "wsd": "wsd"}
MODELS = {  # model_name -> presets whose names are others
    "mistral-7b": "mistral-7b-v0.1",
    "deepseek3-671b": "deepseek-v3",
}
TOKENIZER = "TOKENIZER"
ASIDE = keys_for("maxtext")


def write(s: Settings) -> Emitted:
    """The complete file; raises UserError where it would be another layout."""
    rates = take_rates(s, KINDS, "")
    total = rates.start + rates.length
    if not rates.to_the_end:
        s.nearly("lr_schedule.decay_steps", str(total), "MaxText's rate is 0 after the decay")
    hardware = hardware_of(s)
    data: Words = {
        "base_config": "base.yml", "run_name": s.run.name, "base_output_directory": f"{s.run.folder}/maxtext",
        "hardware": hardware, **_network(s), **s.write(WORDS), **write_layout(s), "steps": rates.steps,
        "lr_schedule_type": rates.kind, "learning_rate_schedule_steps": total,
        "learning_rate_final_fraction": float(f"{rates.least / rates.peak:.12g}"),
        "warmup_steps_fraction": _fraction(rates.warmup, total), **_optimizer(s), **_data(s),
    }  # fmt: skip
    every = s.save_steps()
    data |= {"enable_checkpointing": bool(every), **({"checkpoint_period": every} if every else {})}
    if rates.kind == "wsd":
        data |= {"wsd_decay_steps_fraction": _fraction(rates.length, total), "wsd_decay_style": "linear"}
    s.assume(f"hardware {hardware}; all devices are one slice: with several, move an axis from ici_ to dcn_")
    command = f"python3 -m maxtext.trainers.pre_train.train {FILE}"
    comments = (f"Written by `scalewright emit maxtext`, for MaxText ({VERSION}); on every host:", command)
    return s.emitted(TITLE, "maxtext", VERSION, {FILE: yaml_text(comments, data)}, command)


def _fraction(part: int, whole_: int) -> float:
    """A share that, times the steps and cut to a whole number, is the part again."""
    share = part / max(whole_, 1)
    while int(share * whole_) < part:
        share = nextafter(share, 2.0)  # not more: warm-up and decay together may be 1 at most
    return share


def _network(s: Settings) -> Words:
    model = s.model
    normed = model.qk_norm == "head"
    if normed:
        s.take("model.qk_norm")
    block = BLOCKS[normed, model.moe is not None]
    s.write(FIXED)
    instead = "geglu_tanh" if model.gated else "gelu_tanh"
    mlp = s.choose("model.mlp_type", MLPS, "MaxText's GELU is the tanh form", instead)
    written: Words = {"decoder_block": block, "mlp_activations": list(mlp or ()), "base_mlp_dim": _width(s),
                      "normalize_embedding_logits": False, "enable_dropout": False, "use_qk_norm": normed}  # fmt: skip
    if s.take_scaling(TITLE, "llama3") is not None:
        written["rope_type"] = "llama3.1"
    if model.moe:
        written |= {**s.write(MIXTURE), "norm_topk_prob": True}
        if not s.is_all_sparse():
            s.drop("model.moe.first_k_dense", "MaxText's mixtral block has experts in every layer")
    return written


def _width(s: Settings) -> int:
    """The width of its MLPs: with experts in every layer, theirs."""
    moe = s.model.moe
    if moe is None or s.is_all_sparse():
        return s.take_dense_width()
    s.nearly("model.intermediate_size", str(moe.moe_intermediate_size), "its dense MLPs are as wide as experts")
    return moe.moe_intermediate_size


def _optimizer(s: Settings) -> Words:
    spec = s.optimizer
    decay = s.take("optimizer.weight_decay")
    if spec.name == "sgd" and not s.take("optimizer.momentum"):
        s.take("optimizer.name")
        return {"opt_type": "sgd", "adam_weight_decay": decay}
    why = "MaxText has AdamW, Muon and SGD without momentum"
    name = s.choose("optimizer.name", {"adamw": "adamw", "muon": "muon"}, why, "adamw")
    written: Words = {"opt_type": name, **s.write(ADAM), "adam_weight_decay": decay,
                      "adamw_mask": [".*norm.*", ".*bias.*"]}  # fmt: skip
    if name == "muon":
        s.take("optimizer.momentum")
        written |= {"muon_beta": spec.kept_momentum, "muon_weight_decay": decay}
    return written


def _data(s: Settings) -> Words:
    paths, weights = s.take_sources()
    valid = [source["path"] for source in s.take("data.valid")]
    every, batches = s.take("train.valid_every"), s.values["train.valid_batches"]
    s.assume(f"tokenizer {TOKENIZER}: put in its path; data are ArrayRecord files: convert ours, or set them")
    mixed = [f"{path},{weight:g}" for path, weight in zip(paths, weights, strict=True)]
    written: Words = {
        "dataset_type": "grain", "grain_file_type": "arrayrecord",
        "grain_train_files": ";".join(mixed) if len(paths) > 1 else paths[0], "tokenizer_path": TOKENIZER,
        "tokenizer_type": "huggingface", "data_shuffle_seed": s.values["seed"],
    }  # fmt: skip
    if valid and every:
        written |= {"grain_eval_files": ";".join(valid), "eval_interval": every, "eval_steps": batches}
    return written


def recognises(document: Any, text: str) -> bool:
    """A document with MaxText's sizes."""
    sizes = {"base_emb_dim", "per_device_batch_size", "max_target_length"}
    return isinstance(document, dict) and any(key in sizes or str(key).startswith(("ici_", "dcn_")) for key in document)


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run; what base.yml fills in is filled in, too."""
    return read_keys("maxtext", document, ASIDE, where, _read_network, read_layout, _read_training)


def _read_network(t: ForeignKeys, run: RunKeys) -> None:
    name = t.take("model_name", "default")
    if "base_emb_dim" not in t and name != "default":
        if known := MODELS.get(name) or preset_of(name):
            run["model"] = known
        else:
            t.refuse("model_name", "a model that isn't known here by this name: set model")
        t.read([word for word in WORDS if not word.ours.startswith("model.")], run)
        return
    t.read(WORDS, run)
    model = run["model"]
    model["intermediate_size"] = whole(t.take("base_mlp_dim", 7168))
    doubled, rest = divmod(whole(t.take("global_parameter_scale", 1)).bit_length() - 1, 3)  # get_individual_scales
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"):
        model[key] <<= doubled + (rest > {"hidden_size": 1, "num_hidden_layers": 2}.get(key, 0))
    activations = t.take("mlp_activations", MLPS["swiglu"])
    model["mlp_type"] = next((ours for ours, foreign in MLPS.items() if foreign == list(activations)), "swiglu")
    model["norm_type"] = "rmsnorm"
    if "context" not in model and (length := run.get("data", {}).get("seq_len")):
        model["context"] = length
    if t.values.get("rope_type") == "llama3.1":
        model["rope"]["scaling"] = {"kind": "llama3", "factor": 8.0, "original_context": 8192}
    block = str(t.values.get("decoder_block", "llama2"))
    if t.take("use_qk_norm") and block.startswith("qwen3"):
        model["qk_norm"] = "head"
    elif block not in ("llama2", "mixtral", "mistral"):
        t.assume(f"the network is a Llama's: theirs is {block}")
    if whole(t.values.get("num_experts", 1)) > 1:
        t.read(MIXTURE, run)
        model["moe"].setdefault("moe_intermediate_size", model["intermediate_size"])
    else:
        t.take("num_experts"), t.take("num_experts_per_tok"), t.take("base_moe_mlp_dim")


def _read_training(t: ForeignKeys, run: RunKeys) -> None:
    optimizer = run.setdefault("optimizer", {})
    name = str(t.take("opt_type", "adamw"))
    optimizer["name"] = name if name in ("adamw", "sgd", "muon") else "adamw"
    if name != optimizer["name"]:
        t.refuse("opt_type", "taken as AdamW: this optimizer isn't here")
    t.read(ADAM, run)
    decays = {key: t.take(f"{key}_weight_decay", 0.1) for key in ("adam", "muon")}
    optimizer["weight_decay"] = real(decays["muon" if name == "muon" else "adam"])
    if (beta := t.take("muon_beta")) is not None and name == "muon":
        optimizer["momentum"] = real(beta)
    steps = whole(t.take("steps", 150_001))
    put(run, "train.steps", steps)
    total = int(t.take("learning_rate_schedule_steps", -1))
    total = total if total > 0 else steps
    warmup = int(real(t.take("warmup_steps_fraction", 0.1)) * total)
    least = real(t.take("learning_rate_final_fraction", 0.1)) * optimizer["lr"]
    kind, length = str(t.take("lr_schedule_type", "cosine")), max(1, total - warmup)
    late = int(real(t.take("wsd_decay_steps_fraction", 0.1)) * total)
    if kind == "wsd":
        kind, length = ("linear", length) if late >= total - warmup else ("wsd", late)
    put_rates(run, kind, warmup, length, least)
    if (files := t.take("grain_train_files")) is not None:
        parts = [part.rpartition(",") if "," in part else (part, "", "1") for part in str(files).split(";")]
        put(run, "data.train", put_sources([part[0] for part in parts], [part[2] for part in parts]))
    if (held := t.take("grain_eval_files")) is not None and int(t.values.get("eval_interval", -1)) > 0:
        put(run, "data.valid", put_sources(str(held).split(";")))
        put(run, "train.valid_every", whole(t.take("eval_interval")))
    put_saves(run, t.take("checkpoint_period", 10_000))
    t.refuse_weights("load_parameters_path", "load_full_state_path")
