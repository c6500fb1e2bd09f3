"""Settings that an emitted script expresses itself, as the names of its template.

schedule    kind, warm-up, where the decay starts, its length, the last rate: train/lr.py's formula
data        sources, row length, packing, masks: samples.txt
loss        the sum over counted tokens, divided by those of the global batch; z-loss
recompute   of which layers, and whether products are kept
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalewright.emit.settings import Settings
from scalewright.spec.layout import RecomputeEvery

Facts = dict[str, Any]
NO_BALANCE = "transformers' routers have another balancing loss (router_aux_loss_coef of config.json)"
OPTIMIZERS = ("adamw", "sgd", "lion")  # whose update a class of torch's or bitsandbytes' is, to the formula


def take_facts(s: Settings, masks: str | None = None, own_loop: bool = True) -> Facts:
    """What every script has.

    `masks`: why documents of a row can't be masked from each other, if so; `own_loop`: whether loss and
    determinism are the script's own, not the trainer's.
    """
    steps = s.take_steps()
    for key in ("loss", "profile.steps", *(("train.z_loss", "deterministic") if own_loop else ())):
        s.take(key)
    s.drop("train.balance.loss", NO_BALANCE)
    return {
        "steps": steps,
        "seed": s.take("seed"),
        "deterministic": s.run.deterministic,
        "micro_batch": s.take("layout.micro_batch"),
        "global_batch": s.take("layout.global_batch"),
        "accumulation": s.layout.accumulation,
        "z_loss": s.run.train.z_loss,
        "save_every": s.take("checkpoint.every") or (steps if s.run.checkpoint.at_end else 0),
        "out": str(s.run.folder),
        "init": _weights(s),
        **_data(s, masks),
        **take_schedule(s, steps),
    }


def take_schedule(s: Settings, steps: int) -> Facts:
    """The shape of the learning rate: after `warmup` updates, `decay` updates from `start` on."""
    schedule = s.run.lr_schedule
    s.take_all("lr_schedule.")
    warmup, start = schedule.warmup_steps, schedule.warmup_steps
    decay = schedule.decay_steps if schedule.decay_steps is not None else steps - warmup
    if schedule.kind == "wsd":
        decay = schedule.decay_steps if schedule.decay_steps is not None else max(1, steps // 5)
        start = max(warmup, steps - decay)
        decay = min(decay, steps - start)
    return {
        "kind": schedule.kind,
        "warmup": warmup,
        "start": start,
        "decay": max(0, decay),
        "min_ratio": schedule.min_ratio,
    }


def take_optimizer(s: Settings, title: str) -> Facts:
    """The optimizer of a script: one that torch or bitsandbytes has, AdamW where they have none."""
    optimizer = s.optimizer
    name = optimizer.name
    if name in OPTIMIZERS:
        s.take("optimizer.name")
    elif name == "adamw_8bit":
        s.nearly("optimizer.name", "AdamW8bit of bitsandbytes", "it quantizes and rounds otherwise")
    elif name == "adamw_bf16":
        name = "adamw"
        s.nearly("optimizer.name", "AdamW", "states in fp32: the same update, more memory")
    else:
        name = "adamw"
        s.drop("optimizer.name", f"{title} has no {optimizer.name} for sharded matrices: AdamW in its place")
    s.take("optimizer.momentum")
    return {
        "optimizer": name,
        "lr": s.take("optimizer.lr"),
        "betas": tuple(s.take("optimizer.betas")),
        "eps": s.take("optimizer.eps"),
        "momentum": optimizer.kept_momentum,
        "weight_decay": s.take("optimizer.weight_decay"),
        "clip": s.take("optimizer.clip_norm"),
    }


def take_recompute(s: Settings) -> Facts:
    """Which layers a script recomputes: every n-th (0: none), and whether it keeps matrix products."""
    kind = s.layout.recompute
    if isinstance(kind, RecomputeEvery):
        every = int(kind.every)
    elif kind in ("full", "selective"):
        every = 1
    else:
        every = 0
        if kind != "none":
            s.drop("layout.recompute", "transformers has no memory budget")
            return {"every": 0, "products": False}
    s.take("layout.recompute")
    return {"every": every, "products": kind == "selective"}


def take_precision(s: Settings, title: str) -> str:
    """bf16, fp16, tf32 or fp32; others are dropped for bf16."""
    precision = s.precision()
    if precision not in ("auto", "bf16", "fp16", "tf32", "fp32"):
        s.drop("layout.precision", f"{title} trains in bf16, fp16 and fp32: bf16 in its place")
        return "bf16"
    s.take("layout.precision")
    return "bf16" if precision == "auto" else precision


def _data(s: Settings, masks: str | None) -> Facts:
    train, valid = s.take("data.train"), s.take("data.valid")
    relative = [source["path"] for source in (*train, *valid) if not Path(source["path"]).is_absolute()]
    if relative:
        s.assume(f"{', '.join(relative)}: relative to the folder in which the run is started")
    masked = s.values["data.document_mask"]
    if masked and masks:
        masked = False
        if s.states("data.document_mask"):
            s.nearly("data.document_mask", "false", masks)
        else:
            s.assume(f"documents of a row see each other: {masks}")
    else:
        s.take("data.document_mask")
    return {
        "train": _sources(train),
        "valid": _sources(valid),
        "valid_every": s.take("train.valid_every") if valid else 0,
        "valid_batches": s.run.train.valid_batches,
        "seq_len": s.take("data.seq_len"),
        "packing": s.take("data.packing"),
        "document_mask": masked,
    }


def _sources(sources: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(item["path"], item["weight"], item["format"], item["eod"]) for item in sources]


def _weights(s: Settings) -> str | None:
    """The Hugging Face folder that weights come from; None: random ones."""
    init = str(s.values["init"])
    if init == "random":
        s.take("init")
        s.assume("random weights are drawn as transformers draws them, not as `train` does")
        return None
    if (Path(init) / "manifest.json").is_file():
        s.drop("init", "a checkpoint of Scalewright's: export it first (`scalewright convert`)")
        return None
    return str(s.take("init"))
