"""A run as MaxText's file."""

from __future__ import annotations

from math import nextafter

from scalewright.emit.emitted import Emitted, yaml_text
from scalewright.emit.maxtext.layout import hardware_of, write_layout
from scalewright.emit.maxtext.words import (
    BLOCKS,
    FILE,
    KINDS,
    MIXTURE,
    MLPS,
    TITLE,
    TOKENIZER,
    VERSION,
    WORDS,
)
from scalewright.emit.rates import take_rates
from scalewright.emit.rules import Words, write_rules
from scalewright.emit.settings import Settings


def write(s: Settings) -> Emitted:
    """The complete file; raises UserError where it would be another layout."""
    rates = take_rates(s, KINDS, "")
    total = rates.start + rates.length
    if not rates.to_the_end:
        s.nearly("lr_schedule.decay_steps", str(total), "MaxText's rate is 0 after the decay")
    hardware = hardware_of(s)
    data: Words = {
        "base_config": "base.yml", "run_name": s.run.name, "base_output_directory": f"{s.run.folder}/maxtext",
        "hardware": hardware, **_network(s), **write_rules(s, WORDS), **write_layout(s), "steps": rates.steps,
        "lr_schedule_type": rates.kind, "learning_rate_schedule_steps": total,
        "learning_rate_final_fraction": float(f"{rates.least / rates.peak:.12g}"),
        "warmup_steps_fraction": _fraction(rates.warmup, total), **_optimizer(s), **_data(s), **_saves(s),
    }  # fmt: skip
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
    why = "MaxText's llama2 block has RMSNorm"
    s.choose("model.norm_type", {"rmsnorm": None}, why)
    s.choose("model.positions", {"rope": None}, "MaxText's llama2 block has rotary positions")
    mlp = s.choose(
        "model.mlp_type",
        MLPS,
        "MaxText's GELU is the tanh form",
        "geglu_tanh" if model.gated else "gelu_tanh",
    )
    written: Words = {
        "decoder_block": block, "mlp_activations": list(mlp or ()), "base_mlp_dim": _width(s),
        "normalize_embedding_logits": False, "enable_dropout": False, "use_qk_norm": normed,
    }  # fmt: skip
    scaling = s.take_scaling(TITLE, "llama3")
    if scaling is not None:
        written["rope_type"] = "llama3.1"
    if model.moe:
        written |= {**write_rules(s, MIXTURE), "norm_topk_prob": True}
        if not s.is_all_sparse():
            s.drop("model.moe.first_k_dense", "MaxText's mixtral block has experts in every layer")
    return written


def _width(s: Settings) -> int:
    """The width of its MLPs: with experts in every layer, theirs."""
    moe = s.model.moe
    if moe is None or s.is_all_sparse():
        return s.take_dense_width()
    s.nearly(
        "model.intermediate_size", str(moe.moe_intermediate_size), "its dense MLPs are as wide as experts"
    )
    return moe.moe_intermediate_size


def _optimizer(s: Settings) -> Words:
    spec = s.optimizer
    decay = s.take("optimizer.weight_decay")
    if spec.name == "sgd" and not s.take("optimizer.momentum"):
        s.take("optimizer.name")
        return {"opt_type": "sgd", "adam_weight_decay": decay}
    why = "MaxText has AdamW, Muon and SGD without momentum"
    name = s.choose("optimizer.name", {"adamw": "adamw", "muon": "muon"}, why, "adamw")
    first, second = s.take_adam()
    written: Words = {
        "opt_type": name, "adam_b1": first, "adam_b2": second, "adam_eps": s.take("optimizer.eps"),
        "adam_weight_decay": decay, "adamw_mask": [".*norm.*", ".*bias.*"],
    }  # fmt: skip
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


def _saves(s: Settings) -> Words:
    every = s.save_steps()
    return {"enable_checkpointing": bool(every), **({"checkpoint_period": every} if every else {})}
