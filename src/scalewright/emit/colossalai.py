"""Colossal-AI: a training script with one of its booster's plugins, written alone (a script isn't read).

HybridParallelPlugin       tp, pp, ZeRO 0 to 2 (1 with a pipeline), one kind of sequence parallelism
MoeHybridParallelPlugin    the same with ep, of Mixtral's kind
GeminiPlugin               ZeRO-3, with tp and dp_replicate (extra_dp_size)

ours                       theirs
sp                         sequence_parallelism_mode split_gather
cp ring, ulysses           ring_attn, all_to_all, with sp_size: then no sp
schedule                   pp_style 1f1b, interleaved, zbv

Arguments are those of 0.5 (colossalai/booster/plugin/*.py, April 2026). Nothing of it was run here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scalewright.emit.command_lines import torchrun
from scalewright.emit.emitted import Emitted
from scalewright.emit.rules import Words
from scalewright.emit.scripts.facts import take_facts, take_numbers
from scalewright.emit.scripts.model import SCRIPT, render, with_script, write_config
from scalewright.emit.settings import Settings
from scalewright.spec.errors import UserError

TITLE, VERSION = "Colossal-AI", "0.5"
HYBRID, MIXTURES, GEMINI = "HybridParallelPlugin", "MoeHybridParallelPlugin", "GeminiPlugin"
STYLES = {"1f1b": "1f1b", "interleaved": "interleaved", "zbv": "zbv"}
MODES = {"ring": "ring_attn", "ulysses": "all_to_all"}
PRECISIONS = {"bf16": "bf16", "auto": "bf16", "fp16": "fp16", "fp32": "fp32"}
MASKS = "its sharded attention takes no positions of documents"


@dataclass
class Plugin:
    """A plugin and its arguments."""

    name: str
    arguments: Words = field(default_factory=dict)


def write(s: Settings) -> Emitted:
    """All files; raises UserError where it would be another layout, or another network."""
    network = write_config(s)
    facts = {**take_facts(s, MASKS), **_optimizer(s)}
    if facts["valid_every"]:
        facts["valid_every"] = 0
        s.nearly("train.valid_every", "0", "the script doesn't validate")
    if s.run.train.z_loss:
        s.nearly("train.z_loss", "0", "transformers' loss has no z-loss")
    layout = s.layout
    s.take_each("layout", "devices", "tp", "micro_batch", "global_batch", "offload")
    s.take_expert_split(TITLE)
    gemini = layout.zero_stage == 3 and layout.pp == layout.cp == layout.ep == 1
    plugin = _gemini(s) if gemini else _hybrid(s)
    recompute = s.choose("layout.recompute", {"none": False, "full": True}) or False
    command = torchrun(layout.devices, SCRIPT)
    script = render(
        "colossalai", f=facts, command=command, plugin=plugin, recompute=recompute, pipeline=layout.pp > 1,
        zbv=plugin.arguments.get("pp_style") == "zbv", parts_of_replica=layout.tp * layout.pp * layout.cp,
        out=f"{s.run.folder}/colossalai",
    )  # fmt: skip
    s.assume("transformers shifts labels itself: the last target of a row isn't counted")
    return s.emitted(TITLE, "colossalai", VERSION, with_script({}, script, network), command)


def _optimizer(s: Settings) -> Words:
    why = "written as HybridAdam: Colossal-AI shards the states of AdamW and SGD"
    name = s.choose("optimizer.name", {"adamw": "adamw", "sgd": "sgd"}, why, "adamw")
    if name == "sgd":
        s.take("optimizer.momentum")
    return {"optimizer": name, **take_numbers(s), "every": 0}


def _common(s: Settings) -> Words:
    layout = s.layout
    why = "Colossal-AI's plugins train in bf16, fp16 and fp32"
    precision = s.choose_precision(PRECISIONS, why)
    return {"tp_size": layout.tp, "precision": precision, "max_norm": s.values["optimizer.clip_norm"],
            "enable_flash_attention": precision != "fp32", "enable_fused_normalization": False}  # fmt: skip


def _gemini(s: Settings) -> Plugin:
    layout, offload = s.layout, s.layout.offload
    s.take("layout.zero_stage"), s.take("layout.sp")
    arguments = {
        **_common(s), "extra_dp_size": s.take("layout.dp_replicate"), "placement_policy": "static",
        "shard_param_frac": 1.0, "offload_optim_frac": 0.0, "offload_param_frac": 0.0,
        "enable_gradient_accumulation": layout.accumulation > 1, "enable_sequence_parallelism": layout.sp,
    }  # fmt: skip
    if offload in ("optimizer", "parameters", "all"):
        arguments["offload_optim_frac"] = 1.0
        arguments["offload_param_frac"] = 0.0 if offload == "optimizer" else 1.0
    if offload in ("activations", "all"):
        written = "parameters" if offload == "all" else "none"
        s.nearly("layout.offload", written, "Gemini offloads states and parameters")
    return Plugin(GEMINI, arguments)


def _hybrid(s: Settings) -> Plugin:
    layout = s.layout
    arguments = {**_common(s), "pp_size": s.take("layout.pp"), "zero_stage": _stage(s)}
    arguments |= _sequence(s)
    if layout.offload == "optimizer" and arguments["zero_stage"]:
        arguments["cpu_offload"] = True
    elif layout.offload != "none":
        s.nearly("layout.offload", "none", "its plugin offloads optimizer states of ZeRO-1 and 2 alone")
    if layout.pp > 1:
        arguments |= _pipeline(s)
    if s.model.moe is None:
        return Plugin(HYBRID, arguments)
    if layout.dp % s.take("layout.ep"):
        what = f"Colossal-AI can't run ep {layout.ep} beyond the {layout.dp} data-parallel ranks"
        raise UserError(what, "layout.ep", "use an ep that divides dp")
    return Plugin(MIXTURES, {**arguments, "ep_size": layout.ep})


def _stage(s: Settings) -> int:
    """The plugin's ZeRO stage: 3 is Gemini's, 2 runs without a pipeline."""
    stage = s.take("layout.zero_stage")
    most = 1 if s.layout.pp > 1 else 2
    if stage > most:
        gemini = "GeminiPlugin, its ZeRO-3, has neither cp nor ep"
        what = "a pipeline refuses ZeRO-2 and 3" if most == 1 else gemini
        s.nearly("layout.zero_stage", str(most), f"{what}: the same numbers, more memory")
    return min(int(stage), most)


def _sequence(s: Settings) -> Words:
    layout = s.layout
    if layout.cp == 1:
        split = {"sequence_parallelism_mode": "split_gather"} if s.take("layout.sp") else {}
        return {"enable_sequence_parallelism": layout.sp, **split}
    s.take("layout.cp")
    why = "Colossal-AI has ring attention and Ulysses"
    mode = s.choose("layout.cp_kind", MODES, why, "ring", "ring_attn")
    return {"enable_sequence_parallelism": True, "sequence_parallelism_mode": mode, "sp_size": layout.cp}


def _pipeline(s: Settings) -> dict[str, object]:
    layout = s.layout
    virtual = s.take("layout.virtual_stages")
    why = f"Colossal-AI has no {layout.schedule}: the same numbers, other bubbles and memory"
    style = s.choose("layout.schedule", STYLES, why, "interleaved" if virtual > 1 else "1f1b")
    return {"pp_style": style, "num_model_chunks": virtual, "microbatch_size": layout.micro_batch}
