"""Settings that an emitted script expresses itself, as the names of its template.

schedule    kind, warm-up, where the decay starts, its length, the last rate: train/learning_rate.py's formula
data        sources, row length, packing, masks: samples.txt
loss        the sum over counted tokens, divided by those of the global batch; z-loss
recompute   of which layers, and whether products are kept

Who shards what where Accelerate prepares the model: in Accelerate's, the Trainer's and Axolotl's words.

zero_stage 0          whole replicas (DDP); tp needs shards beside it
zero_stage 1          DeepSpeed: FSDP has no optimizer states alone
zero_stage 2          FSDP2 that keeps the parameters after the forward (nearly)
zero_stage 3          FSDP2
tp beside shards      transformers shards both ways when it loads the model (DistributedConfig)
dp_replicate x dp_shard x cp x tp = processes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.emit.rates import decay_length
from scalewright.emit.settings import Settings
from scalewright.spec.errors import UserError
from scalewright.spec.layout import RecomputeEvery

Facts = dict[str, Any]
NO_BALANCE = "transformers' routers have another balancing loss (router_aux_loss_coef of config.json)"
OPTIMIZERS = ("adamw", "sgd", "lion")  # whose update a class of torch's or bitsandbytes' is, to the formula
Contexts = Mapping[str, tuple[str, bool]]  # cp_kind -> the word for it, and whether it is the same


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
        "steps": steps, "seed": s.take("seed"), "deterministic": s.run.deterministic,
        "micro_batch": s.take("layout.micro_batch"), "global_batch": s.take("layout.global_batch"),
        "accumulation": s.layout.accumulation, "z_loss": s.run.train.z_loss, "save_every": s.save_steps() or 0,
        "out": str(s.run.folder), "init": _weights(s), **_data(s, masks), **take_schedule(s, steps),
    }  # fmt: skip


def take_schedule(s: Settings, steps: int) -> Facts:
    """The shape of the learning rate: after `warmup` updates, `decay` updates from `start` on."""
    schedule = s.run.lr_schedule
    s.take_all("lr_schedule.")
    start = warmup = schedule.warmup_steps
    decay = decay_length(schedule, steps)
    if schedule.kind == "wsd":
        start = max(warmup, steps - decay)
        decay = min(decay, steps - start)
    ratio = schedule.min_ratio
    return {"kind": schedule.kind, "warmup": warmup, "start": start, "decay": max(0, decay), "min_ratio": ratio}


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
    return {"optimizer": name, **take_numbers(s)}


def take_numbers(s: Settings) -> Facts:
    """An optimizer's numbers."""
    return {
        "lr": s.take("optimizer.lr"), "betas": tuple(s.take("optimizer.betas")), "eps": s.take("optimizer.eps"),
        "momentum": s.optimizer.kept_momentum, "weight_decay": s.take("optimizer.weight_decay"),
        "clip": s.take("optimizer.clip_norm"),
    }  # fmt: skip


def take_recompute(s: Settings) -> Facts:
    """Which layers a script recomputes: every n-th (0: none), and whether it keeps matrix products."""
    kind = s.layout.recompute
    if hasattr(kind, "budget"):
        s.drop("layout.recompute", "transformers has no memory budget")
        return {"every": 0, "products": False}
    s.take("layout.recompute")
    every = int(kind.every) if isinstance(kind, RecomputeEvery) else int(kind != "none")
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
        "train": _sources(train), "valid": _sources(valid),
        "valid_every": s.take("train.valid_every") if valid else 0, "valid_batches": s.run.train.valid_batches,
        "seq_len": s.take("data.seq_len"), "packing": s.take("data.packing"), "document_mask": masked,
    }  # fmt: skip


def _sources(sources: list[dict[str, object]]) -> list[tuple[Any, ...]]:
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


@dataclass(frozen=True)
class Sharding:
    """How devices share the model."""

    kind: str  # none, ddp, deepspeed, fsdp, loaded
    sizes: dict[str, int]  # dp_replicate, dp_shard, tp, cp
    context: str  # how keys and values come together
    reshard: bool = True
    offload: bool = False  # parameters, gradients and optimizer states


def take_sharding(s: Settings, title: str, contexts: Contexts, loads: bool = True) -> Sharding:
    """The layout's sizes and ZeRO stage; raises UserError for one that can't be run so.

    `loads`: whether tp beside shards is made when the model is loaded.
    """
    layout, stage = s.layout, s.layout.zero_stage
    s.take_each("layout", "devices", "tp", "cp", "dp_replicate")
    sizes = {"dp_replicate": layout.dp_replicate, "dp_shard": layout.dp_shard, "tp": layout.tp, "cp": layout.cp}
    context = _context(s, title, contexts)
    shares = layout.dp_shard * layout.cp
    states_alone = layout.offload == "optimizer" and layout.tp == layout.cp == layout.dp_replicate == 1  # by DeepSpeed
    if stage >= 2 and shares > 1 and not states_alone:
        return _loaded(s, title, sizes, context) if loads and layout.tp > 1 else _fsdp(s, sizes, context)
    if layout.cp > 1 or (layout.tp > 1 and layout.dp > 1):
        key = "cp" if layout.cp > 1 else "tp"
        problem = f"{title} runs {key} {getattr(layout, key)} beside shards alone, not zero_stage {stage}"
        raise UserError(problem, "layout.zero_stage", "use zero_stage 3")
    if stage and shares > 1:
        if layout.dp_replicate > 1:
            problem = f"{title} runs zero_stage 1 with DeepSpeed, which has no dp_replicate"
            raise UserError(problem, "layout.dp_replicate", "use dp_replicate 1, or zero_stage 3")
        s.take("layout.zero_stage")
        return Sharding("deepspeed", sizes, context)
    if stage:
        s.nearly("layout.zero_stage", "no shards", "a replica is one device: there is nothing to shard")
    else:
        s.take("layout.zero_stage")
    if layout.offload != "none":
        s.drop("layout.offload", f"{title} offloads what FSDP or DeepSpeed shards")
    whole = {**sizes, "dp_replicate": layout.dp, "dp_shard": 1}
    return Sharding("ddp" if layout.devices > 1 else "none", whole, context)


def _context(s: Settings, title: str, contexts: Contexts) -> str:
    kind = s.layout.cp_kind
    if s.layout.cp == 1:
        return next(iter(contexts.values()))[0]
    if kind not in contexts:
        problem = f"{title} has no cp_kind {kind}"
        raise UserError(problem, "layout.cp_kind", f"use cp_kind {next(iter(contexts))}")
    word, same = contexts[kind]
    if same:
        s.take("layout.cp_kind")
    else:
        s.nearly("layout.cp_kind", word, "keys and values of all ranks come together by another collective")
    return word


def _fsdp(s: Settings, sizes: dict[str, int], context: str) -> Sharding:
    reshard = s.layout.zero_stage == 3
    if reshard:
        s.take("layout.zero_stage")
    else:
        why = "parameters are shards between steps, too, and are gathered in each micro-batch's forward"
        s.nearly("layout.zero_stage", "FSDP2 without resharding after the forward", why)
    return Sharding("fsdp", sizes, context, reshard, _offload(s))


def _loaded(s: Settings, title: str, sizes: dict[str, int], context: str) -> Sharding:
    if s.layout.cp > 1:
        raise UserError(f"{title} has no cp beside tp", "layout.cp", "use cp 1, or tp 1")
    if s.layout.zero_stage == 3:
        s.take("layout.zero_stage")
    else:
        s.nearly("layout.zero_stage", "3", "transformers' own FSDP2 shards parameters, too")
    return Sharding("loaded", sizes, context, True, _offload(s))


def take_states_offload(s: Settings) -> bool:
    """Whether DeepSpeed's ZeRO 1 keeps optimizer states in host memory: all that it offloads."""
    if s.layout.offload == "optimizer":
        s.take("layout.offload")
        return True
    s.drop("layout.offload", "ZeRO 1 offloads optimizer states alone")
    return False


def _offload(s: Settings) -> bool:
    """Whether FSDP keeps its shards in host memory; activations are left to the caller."""
    kind = s.layout.offload
    if kind == "parameters":
        s.take("layout.offload")
    elif kind == "optimizer":
        s.nearly("layout.offload", "parameters", "FSDP2 offloads parameters and gradients with the states")
    elif kind == "all":
        s.nearly("layout.offload", "parameters", "activations stay on the device, but for recomputed layers")
    return kind in ("parameters", "optimizer", "all")
