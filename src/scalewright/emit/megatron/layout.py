"""The layout in Megatron-LM's arguments, both ways.

ours                     theirs
dp                       what is left of the world; not written
zero_stage 1             use-distributed-optimizer
zero_stage 2, 3          use-megatron-fsdp, data-parallel-sharding-strategy optim_grads, optim_grads_params
virtual_stages 2         num-virtual-stages-per-pipeline-rank 2       (schedule: 1f1b, interleaved; no other)
stage_layers [7, 9]      pipeline-model-parallel-layout Et*7|t*9L     where stages aren't equal
recompute {every: 2}     recompute-method block: the first layers of each stage, as many
"""

from __future__ import annotations

import re
from itertools import groupby
from math import ceil, lcm, prod
from typing import Any

from scalewright.emit.foreign import ForeignKeys, LayoutKeys, RunKeys, real, whole
from scalewright.emit.megatron.keys import EXPERTS, LAYOUT
from scalewright.emit.megatron.model import Arguments
from scalewright.emit.rules import inverse
from scalewright.emit.settings import Settings
from scalewright.spec.placement import stage_layers

SHARDED = {2: "optim_grads", 3: "optim_grads_params"}
COMM = {"ring": "p2p", "ulysses": "a2a", "allgather": "all_gather"}
PRECISIONS: dict[str, Arguments] = {
    "auto": {"bf16": True}, "bf16": {"bf16": True}, "fp16": {"fp16": True}, "fp32": {},
    "fp8": {"bf16": True, "fp8-format": "hybrid", "fp8-recipe": "tensorwise"},
    "mxfp8": {"bf16": True, "fp8-format": "e4m3", "fp8-recipe": "mxfp8"}, "nvfp4": {"bf16": True, "fp4-format": "e2m1"},
}  # fmt: skip
FULL = {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
CORE = "core_attn"
NARROW = ("adamw_bf16", "adamw_8bit")  # states in fewer bytes


def write_layout(s: Settings) -> Arguments:
    """Their arguments for parallelism, precision and memory."""
    written = s.write(LAYOUT)
    s.take("layout.devices")
    needed = bool(s.model.moe) and s.layout.tp > 1
    if needed and not s.layout.sp:
        s.nearly("layout.sp", "true", "Megatron-LM trains experts beside tp only with the sequence split too")
    if s.take("layout.sp") or needed:
        written["sequence-parallel"] = True
    if s.layout.cp > 1:
        written["cp-comm-type"] = COMM[s.take("layout.cp_kind")]
    if s.model.moe:
        written |= s.write(EXPERTS)
    return written | _pipeline(s) | _sharding(s) | _recompute(s) | _precision(s) | _offload(s)


def _pipeline(s: Settings) -> Arguments:
    layout = s.layout
    if layout.pp == 1:
        return {}
    written: Arguments = {}
    virtual = _virtual(s)
    if virtual > 1:
        written["num-virtual-stages-per-pipeline-rank"] = virtual
    if virtual > 1 and layout.accumulation % layout.pp:
        written["microbatch-group-size-per-virtual-pipeline-stage"] = _group(layout.accumulation, layout.pp)
    usual = "interleaved" if virtual > 1 else "1f1b"
    if layout.schedule == usual:
        s.take("layout.schedule")
    else:
        why = f"Megatron-LM has no {layout.schedule}: the same numbers, another order, other bubbles and memory"
        if virtual != layout.virtual_stages:
            why = f"Megatron-LM interleaves {layout.pp} micro-batches or more, here are {layout.accumulation}"
        s.nearly("layout.schedule", usual, why)
    if virtual == layout.virtual_stages:
        s.take("layout.stage_layers")
    else:
        s.drop("layout.stage_layers", "the stages are others, without virtual ones")
        layout = layout.model_copy(update={"virtual_stages": 1, "schedule": "1f1b", "stage_layers": None})
    counts = stage_layers(s.model, layout)
    if len(set(counts)) > 1 or s.model.mtp_layers:
        written["pipeline-model-parallel-layout"] = _cut(counts, s.model.mtp_layers)
        written.pop("num-virtual-stages-per-pipeline-rank", None)  # the layout says it
    return written


def _virtual(s: Settings) -> int:
    """Stages of a rank: their interleaved schedule needs a micro-batch for every rank, and stops without."""
    layout = s.layout
    if layout.virtual_stages > 1 and layout.accumulation < layout.pp:
        why = f"Megatron-LM interleaves {layout.pp} micro-batches or more, here are {layout.accumulation}"
        s.nearly("layout.virtual_stages", "1", why)
        return 1
    return int(s.take("layout.virtual_stages"))


def _group(micros: int, ranks: int) -> int:
    """Micro-batches that a stage takes in a row: fewest with which none are left over, or `ranks` or more.

    schedules.py of Megatron Core 0.19 stops at any other remainder.
    """
    return next(n for n in range(ranks, micros + 1) if micros % n == 0 or micros % n >= ranks)


def _cut(counts: tuple[int, ...], modules: int) -> str:
    """Layers of stages in their words: E the embedding, t a layer, m a prediction module, L the loss; `E|(t|)*126L`."""
    stages = ["t" if count == 1 else f"t*{count}" if count else "" for count in counts]
    runs = [(f"{stage}|", len(list(run))) for stage, run in groupby(stages[1:-1])]
    between = "".join(f"({stage})*{times}" if times > 3 else stage * times for stage, times in runs)
    return f"E{stages[0]}|{between}{stages[-1]}{'m' * modules}L"


def _sharding(s: Settings) -> Arguments:
    stage, replicas = s.take("layout.zero_stage"), s.layout.dp_replicate
    if stage == 0 and (s.layout.offload == "optimizer" or s.optimizer.name in NARROW):
        why = "Megatron-LM offloads and narrows only the states of its distributed optimizer"
        s.nearly("layout.zero_stage", "1", why)
        stage = 1
    if stage >= 2 and s.layout.pp > 1:  # NVIDIA/Megatron-LM#1455, #6486
        s.nearly("layout.zero_stage", "1", "Megatron FSDP has no pipeline: the same numbers, more memory")
        stage = 1
    if stage == 0:
        return {}
    s.take("layout.dp_replicate")
    written: Arguments = {"use-distributed-optimizer": True, "overlap-grad-reduce": True, "overlap-param-gather": True}
    if stage >= 2:
        fsdp = {"use-megatron-fsdp": True, "data-parallel-sharding-strategy": SHARDED[stage]}
        written = {**fsdp, **written, "no-gradient-accumulation-fusion": True, "ckpt-format": "fsdp_dtensor"}
    if replicas > 1:
        written["num-distributed-optimizer-instances"] = replicas
    if replicas > 1 and stage >= 2:
        written["outer-dp-sharding-strategy"] = "no_shard"
    return written


def _recompute(s: Settings) -> Arguments:
    kind = s.layout.recompute
    if kind == "none":
        return {}
    if kind == "full":
        s.take("layout.recompute")
        return dict(FULL)
    if kind == "selective":
        why = "Megatron-LM recomputes modules: attention's inside and norms; ours keeps matmul outputs"
        s.nearly("layout.recompute", f"selective: {CORE} layernorm", why)
        return {"recompute-granularity": "selective", "recompute-modules": [CORE, "layernorm"]}
    if every := getattr(kind, "every", None):
        count = ceil(s.model.num_hidden_layers / (s.layout.stages * every))
        why = "Megatron-LM recomputes the first layers of each stage: as many, so the same memory"
        s.nearly("layout.recompute", f"full, block {count}", why)
        return {"recompute-granularity": "full", "recompute-method": "block", "recompute-num-layers": count}
    s.drop("layout.recompute", "Megatron-LM has no memory budget")
    return {}


def _precision(s: Settings) -> Arguments:
    precision = s.precision()
    if precision == "tf32":
        s.nearly("layout.precision", "fp32", "set NVIDIA_TF32_OVERRIDE=1 in its environment")
        return {}
    words = s.choose("layout.precision", PRECISIONS, f"Megatron-LM has no {precision}")
    return {"bf16": True} if words is None else dict(words)


def _offload(s: Settings) -> Arguments:
    kind = s.layout.offload
    if kind == "optimizer" and s.optimizer.name not in ("adamw", *NARROW):
        s.drop("layout.offload", "Megatron-LM offloads Adam's states alone")
    elif kind == "optimizer" and s.layout.zero_stage >= 2 and s.layout.pp == 1:  # #1986, #4623
        s.nearly("layout.offload", "none", "Megatron FSDP's states stay on the device")
    elif kind == "optimizer":
        s.take("layout.offload")
        return {"optimizer-cpu-offload": True, "optimizer-offload-fraction": 1.0, "use-precision-aware-optimizer": True}
    elif kind != "none":
        s.drop("layout.offload", "Megatron-LM offloads optimizer states, or some modules' activations")
    return {}


def read_layout(t: ForeignKeys, run: RunKeys, world: int | None) -> None:
    """The layout of their arguments; `world`: ranks of the launch line, None where it doesn't tell."""
    t.read(LAYOUT, run)
    layout = run.setdefault("layout", {})
    layout.setdefault("micro_batch", 1), layout.setdefault("pp", 1)
    tp, cp = layout.setdefault("tp", 1), layout.setdefault("cp", 1)
    layout["sp"] = bool(t.take("sequence-parallel")) and tp > 1
    kind = inverse(COMM).get(str(t.take("cp-comm-type", "p2p")))
    if cp > 1 and kind:
        layout["cp_kind"] = kind
    elif cp > 1:
        t.refuse("cp-comm-type", "taken as p2p: this kind isn't known here")
    experts = whole(t.values.get("expert-model-parallel-size", 1)) > 1  # of a model that is loaded by name
    if "moe" in run.get("model", {"moe": experts} if experts else {}):
        t.read(EXPERTS, run)
        layout.setdefault("etp", tp)  # theirs is tp where it isn't set
    else:
        t.take("expert-tensor-parallel-size"), t.take("expert-model-parallel-size")
    if not world:  # the fewest that its sizes make
        each = prod(int(layout[key]) for key in ("tp", "pp", "cp"))
        world = lcm(each, int(layout.get("ep", 1)) * int(layout.get("etp", 1)) * int(layout["pp"]))
        t.guess_devices(world)
    layout["devices"] = world
    _read_pipeline(t, run)
    _read_sharding(t, layout)
    _read_recompute(t, layout, run)
    _read_precision(t, layout)
    if t.take("optimizer-cpu-offload"):
        layout["offload"] = "optimizer"
        t.take("optimizer-offload-fraction")


def _read_pipeline(t: ForeignKeys, run: RunKeys) -> None:
    layout, layers = run["layout"], (run.get("model") or {}).get("num_hidden_layers")
    pp = layout["pp"]
    virtual = t.take_first("num-virtual-stages-per-pipeline-rank", "virtual-pipeline-model-parallel-size")
    t.take("microbatch-group-size-per-virtual-pipeline-stage")
    each = t.take("num-layers-per-virtual-pipeline-stage")
    cut = t.take("pipeline-model-parallel-layout")
    first, last = (t.take(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
    less = [bool(t.take(f"account-for-{end}-in-pipeline-split")) for end in ("embedding", "loss")]
    if pp == 1:
        return
    if not layers:  # of a model that is loaded by its name
        for end in ("first", "last"):
            t.refuse(
                f"decoder-{end}-pipeline-num-layers", "how many layers the model has isn't in it: stages are alike"
            )
    stages = whole(virtual) if virtual is not None else 1
    if each is not None and layers:
        stages = max(1, (layers + sum(less)) // (pp * whole(each)))
    if cut is not None and (counts := _read_cut(str(cut))):
        layout["stage_layers"], stages = counts, max(1, len(counts) // pp)
    elif layers and (first is not None or last is not None):
        ranks = _uneven(layers, pp, first, last)  # a rank's, which its stages share
        layout["stage_layers"] = [count // stages for count in ranks] * stages
    elif layers and (layers + sum(less)) % (pp * stages) == 0:  # an end counts as a layer
        counts = [(layers + sum(less)) // (pp * stages)] * (pp * stages)
        layout["stage_layers"] = [counts[0] - less[0], *counts[1:-1], counts[-1] - less[1]]
    layout |= {"virtual_stages": stages, "schedule": "interleaved" if stages > 1 else "1f1b"}


def _uneven(layers: int, stages: int, first: Any, last: Any) -> list[int]:
    """Stages with fewer layers at an end, the others alike."""
    ends = [whole(end) if end is not None else None for end in (first, last)]
    between = stages - sum(end is not None for end in ends)
    each = (layers - sum(end or 0 for end in ends)) // max(between, 1)
    head, tail = ([end] if end is not None else [] for end in ends)
    return [*head, *[each] * between, *tail]


def _read_cut(text: str) -> list[int]:
    """Layers of each stage of `Et*7|t*9L`, `Et|(tt|)*29,tL` included."""
    text = text.replace(",", "").replace(" ", "").strip("'\"")
    while match := re.search(r"\(([^()]*)\)\*(\d{1,4})|([A-Za-z])\*(\d{1,4})", text):
        part, times = match[1] or match[3], int(match[2] or match[4])
        text = text[: match.start()] + part * times + text[match.end() :]
        if len(text) > 100_000:
            return []
    return [stage.count("t") for stage in text.split("|")]


def _read_sharding(t: ForeignKeys, layout: LayoutKeys) -> None:
    strategy = t.take("data-parallel-sharding-strategy")
    fsdp = [t.take(key) for key in ("use-megatron-fsdp", "use-custom-fsdp")]
    torch_fsdp = t.take("use-torch-fsdp2")
    t.take("outer-dp-sharding-strategy")
    instances = t.take("num-distributed-optimizer-instances")
    stage = 1 if t.take("use-distributed-optimizer") else 0
    if any(fsdp):
        stage = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}.get(str(strategy), stage)
    elif torch_fsdp:
        stage = 3
    elif t.take("deepspeed") and (zero := t.take("zero-stage")) is not None:  # Megatron-DeepSpeed's
        stage = whole(zero)
    layout["zero_stage"] = stage
    if instances is not None and stage:
        layout["dp_replicate"] = whole(instances)


def _read_recompute(t: ForeignKeys, layout: LayoutKeys, run: RunKeys) -> None:
    granularity, method = t.take("recompute-granularity"), t.take("recompute-method")
    count, modules = t.take("recompute-num-layers"), t.take("recompute-modules")
    if t.take("recompute-activations"):
        granularity = "selective"
    if t.take_first("checkpoint-activations", "activations-checkpoint-method"):  # until 2022
        granularity = "full"
    if granularity == "selective":
        layout["recompute"] = "selective"
        named = modules if isinstance(modules, list) else str(modules or CORE).split()
        t.assume(f"recompute selective: theirs are modules ({' '.join(named)}), ours keeps matmul outputs")
    elif granularity == "full":
        layout["recompute"] = "full"
        layers = (run.get("model") or {}).get("num_hidden_layers")
        stages = layout["pp"] * layout.get("virtual_stages", 1)
        if method == "block" and count is not None and layers and whole(count) * stages < layers:
            layout["recompute"] = {"every": max(1, round(layers / (stages * max(1, whole(count)))))}
            t.assume(f"recompute {layout['recompute']}: theirs are the first {count} layers of each stage")


def _read_precision(t: ForeignKeys, layout: LayoutKeys) -> None:
    bf16, fp16 = t.take("bf16"), t.take("fp16")
    eight, recipe, four = t.take("fp8-format"), t.take("fp8-recipe"), t.take("fp4-format")
    for key in ("fp8-amax-history-len", "fp8-amax-compute-algo", "fp8-param-gather", "fp8-margin", "fp8-interval"):
        t.take(key)
    layout["precision"] = (
        "nvfp4" if four else "mxfp8" if eight and recipe == "mxfp8" else "fp8" if eight
        else "bf16" if bf16 else "fp16" if fp16 else "fp32"
    )  # fmt: skip
    fraction = t.values.get("optimizer-offload-fraction")
    if fraction is not None and real(fraction) < 1:
        t.assume(f"optimizer-offload-fraction {fraction} is read as all")
