"""Optimizer, learning rate, data and saves in torchtitan's keys, both ways.

cosine, linear        decay_type, no decay_ratio: from the end of the warm-up to the last step
wsd                   decay_ratio = decay_steps / steps, decay_type linear
constant              decay_ratio 0
clip_norm 0           max_norm 1e9: its 0 would make all gradients 0
"""

from __future__ import annotations

from math import ceil
from typing import Any

from scalewright.emit.numbers import real, whole
from scalewright.emit.rules import put, read_rules, write_rules
from scalewright.emit.settings import Settings
from scalewright.emit.theirs import Theirs
from scalewright.emit.torchtitan.layout import Keys
from scalewright.emit.torchtitan.words import DEFAULTS, TRAINING
from scalewright.spec.run import OptimizerSpec

UNCLIPPED = 1e9


def write_training(s: Settings, release: str) -> Keys:
    """Their keys for everything but the network and the layout."""
    steps, tokens = s.take("train.steps"), s.take("train.tokens")
    if steps is None:
        steps = ceil(tokens / (s.layout.global_batch * s.run.seq_len)) if tokens else 1000
    written = {**write_rules(s, TRAINING), "training.steps": steps}
    clip = s.take("optimizer.clip_norm")
    written["training.max_norm"] = clip or UNCLIPPED
    if s.run.deterministic:
        written["debug.deterministic"] = s.take("deterministic")
    return written | _optimizer(s, release) | _rates(s, steps) | _data(s, release) | _saves(s, steps)


def _optimizer(s: Settings, release: str) -> Keys:
    optimizer = s.run.optimizer
    assert isinstance(optimizer, OptimizerSpec)
    first, second = s.take("optimizer.betas")
    written: Keys = {"optimizer.name": "AdamW", "optimizer.beta1": first, "optimizer.beta2": second}
    if optimizer.name == "adamw":
        s.take("optimizer.name")
    elif optimizer.name == "adamw_bf16" and release == "0.3":
        s.take("optimizer.name")
        written["optimizer.implementation"] = "fused_opt_states_bf16"
    else:
        s.drop("optimizer.name", "torchtitan's optimizer of all tensors is AdamW")
    return written


def _rates(s: Settings, steps: int) -> Keys:
    schedule = s.run.lr_schedule
    s.take_all("lr_schedule.")
    warmup, left = schedule.warmup_steps, max(0, steps - schedule.warmup_steps)
    written: Keys = {"lr_scheduler.warmup_steps": warmup}
    if schedule.kind == "constant":
        return written | {"lr_scheduler.decay_ratio": 0.0}
    written |= {
        "lr_scheduler.decay_type": "cosine" if schedule.kind == "cosine" else "linear",
        "lr_scheduler.min_lr_factor": schedule.min_ratio,
    }
    length = schedule.decay_steps
    if schedule.kind == "wsd":
        length = length if length is not None else max(1, steps // 5)
        return written | {"lr_scheduler.decay_ratio": float(f"{min(length, left) / max(1, steps):.9g}")}
    if length is not None and length != left:
        why = "torchtitan decays to the last step"
        s.nearly("lr_schedule.decay_steps", f"{left}", why)
    return written


def _data(s: Settings, release: str) -> Keys:
    train, valid = s.take("data.train"), s.take("data.valid")
    written: Keys = {"training.dataset": "c4", "training.dataset_path": train[0]["path"]}
    s.assume("data are text from a Hugging Face dataset in the form of C4: set dataset and dataset_path")
    if len(train) > 1:
        s.nearly("data.train", train[0]["path"], "one dataset at a time")
    every, batches = s.values["train.valid_every"], s.take("train.valid_batches")
    if every and release == "0.1":
        s.drop("train.valid_every", "0.1 has no validation")
    elif s.take("train.valid_every"):
        written |= {"validation.enable": True, "validation.freq": every, "validation.steps": batches}
        if valid:
            written["validation.dataset_path"] = valid[0]["path"]
    s.assume("its tokenizer is that of hf_assets_path, which has to give the model's vocabulary")
    if s.states("data.document_mask"):
        masked = release == "0.3"
        if s.take("data.document_mask") != masked:
            see = "don't see" if masked else "see"
            s.nearly(
                "data.document_mask", str(masked).lower(), f"documents of a row {see} each other in {release}"
            )
    return written


def _saves(s: Settings, steps: int) -> Keys:
    every = s.take("checkpoint.every")
    written: Keys = {"job.dump_folder": str(s.run.folder / "torchtitan"), "metrics.log_freq": 1}
    if every or s.run.checkpoint.at_end:
        written |= {
            "checkpoint.enable": True, "checkpoint.interval": every or max(1, steps),
            "checkpoint.last_save_model_only": False,
        }  # fmt: skip
    return written


def read_training(t: Theirs, run: dict[str, Any]) -> None:
    """Everything but the network and the layout, with their defaults where they are silent."""
    for key, value in DEFAULTS.items():
        t.values.setdefault(key, value)
    read_rules(t, TRAINING, run)
    optimizer = run.setdefault("optimizer", {})
    name, implementation = str(t.take("optimizer.name", "AdamW")), t.take("optimizer.implementation")
    optimizer["name"] = "adamw_bf16" if implementation == "fused_opt_states_bf16" else "adamw"
    if name != "AdamW":
        t.refuse("optimizer.name", "an optimizer that isn't here: taken as AdamW")
    optimizer["betas"] = [real(t.take("optimizer.beta1")), real(t.take("optimizer.beta2"))]
    clip = real(t.take("training.max_norm"))
    optimizer["clip_norm"] = 0.0 if clip >= UNCLIPPED else clip
    steps = whole(t.take("training.steps"))
    put(run, "train.steps", steps)
    if t.take("debug.deterministic"):
        run["deterministic"] = True
    _read_rates(t, run, steps)


def _read_rates(t: Theirs, run: dict[str, Any], steps: int) -> None:
    warmup = min(whole(t.take("lr_scheduler.warmup_steps")), steps)
    ratio, kind = t.take("lr_scheduler.decay_ratio"), str(t.take("lr_scheduler.decay_type", "linear"))
    least, total = t.take("lr_scheduler.min_lr_factor"), t.take("lr_scheduler.total_steps")
    schedule: dict[str, Any] = {"kind": kind, "warmup_steps": warmup, "min_ratio": real(least or 0.0)}
    if kind not in ("linear", "cosine"):
        schedule["kind"] = "linear"
        t.refuse("lr_scheduler.decay_type", "taken as linear: this shape isn't here")
    if total is not None and total != steps:
        t.refuse("lr_scheduler.total_steps", "the rate's own length: set lr_schedule.decay_steps")
    decay = round(steps * real(ratio)) if ratio is not None else None
    if decay == 0:
        schedule = {"kind": "constant", "warmup_steps": warmup}
    elif decay is not None and kind == "cosine" and warmup + decay < steps:
        schedule |= {"kind": "wsd", "decay_steps": decay}
        t.refuse("lr_scheduler.decay_type", "taken as linear: a stable rate ends linearly here")
    elif decay is not None and kind != "cosine":
        schedule |= {"kind": "wsd", "decay_steps": min(decay, steps - warmup)}
    run["lr_schedule"] = schedule
