"""ds_config.json, train.py, samples.py and config.json for one run.

tp         AutoTP, with ZeRO 0 to 2                    pp        PipelineModule, 1F1B, with ZeRO 0 and 1
cp         Ulysses                                     refused   ep, dp_replicate, and tp, pp, cp together
"""

from __future__ import annotations

from scalewright.emit.command_lines import nodes_of
from scalewright.emit.emitted import Emitted
from scalewright.emit.scripts.facts import Facts, take_facts, take_optimizer, take_precision, take_recompute
from scalewright.emit.scripts.model import SCRIPT, as_json, masks_refused, render, with_script
from scalewright.emit.scripts.model import write_config as write_network
from scalewright.emit.settings import Settings
from scalewright.spec.deepspeed import OPTIMIZERS, Config, ds_config, merge, optimizer_section, zero_section
from scalewright.spec.errors import UserError
from scalewright.spec.placement import stage_layers

TITLE, VERSION = "DeepSpeed", "0.16 to 0.19, with transformers 5.23"
FILE = "ds_config.json"
# Families whose blocks take (hidden, mask, position_embeddings), and whose stages a script can cut.
CUT = ("llama", "mistral", "qwen2", "qwen3", "olmo2", "mixtral", "qwen3_moe")


def write(s: Settings) -> Emitted:
    """All files; raises UserError where it would be another layout, or another network."""
    network = write_network(s)
    _check_axes(s)
    masks = masks_refused(s, "its Ulysses takes no masks but the causal one")
    facts = {**take_facts(s, masks), **take_optimizer(s, TITLE)}
    if s.layout.zero_stage == 3 and s.layout.recompute == "selective":
        why = "ZeRO 3 gathers parameters within a layer, which a recomputation of parts doesn't expect"
        s.nearly("layout.recompute", "full", why)
        facts |= {"every": 1, "products": False}
    else:
        facts |= take_recompute(s)
    precision = take_precision(s, TITLE)
    facts["tf32"] = precision == "tf32"
    config = write_config(s, precision, facts["optimizer"], bool(facts["every"]))
    command = _command(s)
    files = with_script({FILE: as_json(config)}, _script(s, facts, command), network)
    return s.emitted(TITLE, "deepspeed", VERSION, files, command)


def _check_axes(s: Settings) -> None:
    """Takes the axes that DeepSpeed has; raises UserError for combinations that it lacks."""
    layout = s.layout
    axes = [key for key in ("tp", "pp", "cp") if getattr(layout, key) > 1]
    if len(axes) > 1:
        problem = f"DeepSpeed runs {' and '.join(axes)} together in models that are written for it alone"
        raise UserError(problem, "layout", f"use {axes[1]} 1")
    if layout.tp > 1 and layout.zero_stage == 3:
        raise UserError("DeepSpeed's tp runs with zero_stage 0 to 2", "layout.zero_stage", "use zero_stage 2")
    if layout.cp > 1 and layout.cp_kind != "ulysses":
        raise UserError(f"DeepSpeed has no cp_kind {layout.cp_kind}", "layout.cp_kind", "use cp_kind ulysses")
    if layout.cp > 1:
        s.take("layout.cp_kind")
    if layout.pp > 1:
        _take_pipeline(s)


def _take_pipeline(s: Settings) -> None:
    layout, model = s.layout, s.model
    if layout.zero_stage > 1:
        problem = f"DeepSpeed's pipeline runs with zero_stage 0 and 1, not {layout.zero_stage}"
        raise UserError(problem, "layout.zero_stage", "use zero_stage 1")
    if model.family not in CUT or any(model.window(i) for i in range(model.num_hidden_layers)):
        problem = f"a pipeline of DeepSpeed needs code for this {model.family} model"
        raise UserError(problem, "layout.pp", f"use pp 1, or one of {', '.join(CUT)} without windows")
    s.take_each("layout", "pp", "stage_layers")
    if layout.zero_stage == 0 and (clip := s.values["optimizer.clip_norm"]):
        why = "at stage 0 its pipeline clips by the norm of the first stage: zero_stage 1 clips by that of all"
        s.nearly("optimizer.clip_norm", f"{clip:g} of the first stage", why)
    if layout.virtual_stages > 1:
        s.nearly("layout.virtual_stages", "1", "DeepSpeed's ranks have one stage each: a longer bubble")
    if layout.schedule == "1f1b":
        s.take("layout.schedule")
    else:
        s.nearly("layout.schedule", "1f1b", "its pipeline has no other: the same numbers, other bubbles and memory")


def _bounds(s: Settings) -> list[int]:
    """Where the stages begin and end, in parts: the embedding, blocks, norm, head."""
    plain = s.layout.model_copy(update={"virtual_stages": 1, "schedule": "1f1b"})
    cut = s.layout.stage_layers
    if cut is not None and len(cut) != s.layout.pp:
        plain = plain.model_copy(update={"stage_layers": None})
    bounds = [0]
    for layers in stage_layers(s.model, plain):
        bounds.append(bounds[-1] + layers)
    return [0, *(bound + 1 for bound in bounds[1:-1]), bounds[-1] + 3]


def _command(s: Settings) -> str:
    nodes, each = nodes_of(s.layout.devices)
    if nodes > 1:
        rendezvous = f"--nnodes {nodes} --node-rank $NODE_RANK --master-addr $MASTER_ADDR --master-port 29500"
        return f"torchrun {rendezvous} --nproc-per-node {each} {SCRIPT}"
    if s.run.device == "cpu":
        return f"torchrun --nproc-per-node {each} {SCRIPT}"
    return f"deepspeed --num_gpus {each} {SCRIPT}"


def _script(s: Settings, facts: Facts, command: str) -> str:
    layout = s.layout
    common: dict[str, object] = {"f": facts, "command": command, "out": f"{s.run.folder}/deepspeed"}
    if layout.pp > 1:
        tied = s.model.tie_word_embeddings
        return render("deepspeed_pipeline", **common, tied=tied, bounds=_bounds(s))
    return render("deepspeed", **common, tp=layout.tp, sp=layout.cp, stage=layout.zero_stage)


def write_config(s: Settings, precision: str, optimizer: str, recomputes: bool) -> Config:
    """The document; `precision`, `optimizer` and whether it `recomputes` as the script has them."""
    s.take_each("layout", "devices", "tp", "cp")
    _take_zero(s)
    config = ds_config(
        s.layout, optimizer=_optimizer(s, optimizer), clip_norm=s.take("optimizer.clip_norm"), precision=precision,
        device=s.run.device, recomputes=recomputes, tied=s.model.tie_word_embeddings,
    )  # fmt: skip
    s.take_all("engine_options")
    return merge(config, s.run.engine_options)


def write_zero(s: Settings) -> Config:
    """ZeRO's section."""
    _take_zero(s)
    return zero_section(s.layout, s.run.device)


def _take_zero(s: Settings) -> None:
    stage, kind = s.take("layout.zero_stage"), s.layout.offload
    if kind in ("none", "activations") or (kind == "optimizer" and not stage):
        s.drop("layout.offload", "DeepSpeed offloads what ZeRO shards, and activations of its own checkpoints")
    elif kind == "all":
        s.nearly("layout.offload", "parameters", "activations stay: DeepSpeed offloads those of its own checkpoints")
    else:
        s.take("layout.offload")


def _optimizer(s: Settings, name: str) -> Config:
    """The optimizer's section; none where the script makes it (AdamW8bit)."""
    if name not in OPTIMIZERS:
        return {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    spec = s.optimizer
    return optimizer_section(name, lr=spec.lr, weight_decay=spec.weight_decay, betas=spec.betas, eps=spec.eps,
                             momentum=spec.kept_momentum, on_host=s.layout.offload != "none")  # fmt: skip
