"""Who shards what where Accelerate prepares the model: in Accelerate's, the Trainer's and Axolotl's words.

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

from scalewright.emit.settings import Settings
from scalewright.spec.errors import UserError

Contexts = Mapping[str, tuple[str, bool]]  # cp_kind -> the word for it, and whether it is the same


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
    for key in ("devices", "tp", "cp", "dp_replicate"):
        s.take(f"layout.{key}")
    sizes = {
        "dp_replicate": layout.dp_replicate, "dp_shard": layout.dp_shard, "tp": layout.tp, "cp": layout.cp,
    }  # fmt: skip
    context = _context(s, title, contexts)
    shares = layout.dp_shard * layout.cp
    if stage >= 2 and shares > 1:
        return _loaded(s, title, sizes, context) if loads and layout.tp > 1 else _fsdp(s, sizes, context)
    if layout.cp > 1 or (layout.tp > 1 and layout.dp > 1):
        key = "cp" if layout.cp > 1 else "tp"
        problem = f"{title} runs {key} {getattr(layout, key)} beside shards alone, not zero_stage {stage}"
        raise UserError(problem, "layout.zero_stage", "use zero_stage 3")
    if stage == 1 and shares > 1:
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
