"""A layout as MaxText's axes, batch and policies, both ways.

ours                    theirs (product of the axes: the devices)
zero_stage 0, 1         data; 1 with shard_optimizer_over_data
zero_stage 3            fsdp = dp_shard / ep, data = dp_replicate
tp, sp                  tensor_sequence with sp, tensor without
ep                      expert, over which dense parameters are sharded, too; experts are split over tp
pp, virtual_stages      stage, num_pipeline_repeats: all forwards come before the backwards (gpipe)
cp                      context, over which parameters are sharded, too
micro_batch             per_device_batch_size = micro_batch / (tp x cp): every device counts
recompute               remat_policy: selective minimal, none minimal_with_context
"""

from __future__ import annotations

from scalewright.emit.foreign import ForeignKeys, RunKeys, real, whole
from scalewright.emit.rules import Words, inverse
from scalewright.emit.settings import Settings
from scalewright.spec.errors import UserError

TITLE = "MaxText"
STRATEGIES = {"ring": "ring", "allgather": "all_gather", "ulysses": "ulysses"}
REMAT = {"none": "minimal_with_context", "selective": "minimal", "full": "full"}
PRECISIONS: dict[str, Words] = {
    **{kind: {"dtype": "bfloat16", "quantization": ""} for kind in ("bf16", "auto")},
    "fp32": {"dtype": "float32", "quantization": ""},
    **{kind: {"dtype": "bfloat16", "quantization": kind} for kind in ("fp8", "int8")},
}
AXES = ("data", "fsdp", "pipeline", "context", "tensor", "tensor_sequence", "expert")
NETS = ("ici", "dcn")  # inside a slice, between slices


def write_layout(s: Settings) -> Words:
    """All of it; raises UserError for sizes that don't go together there."""
    layout = s.layout
    s.take_each("layout", "devices", "tp", "sp", "cp", "ep", "micro_batch", "global_batch")
    s.take_expert_split(TITLE)
    shards = _sharding(s)
    sizes = {
        "data": layout.dp // (shards * layout.ep), "fsdp": shards, "pipeline": s.take("layout.pp"),
        "context": layout.cp, "tensor": 1 if layout.sp else layout.tp,
        "tensor_sequence": layout.tp if layout.sp else 1, "expert": layout.ep,
    }  # fmt: skip
    written: Words = {f"ici_{axis}_parallelism": size for axis, size in sizes.items()}
    written |= {"dcn_data_parallelism": 1, "shard_optimizer_over_data": layout.zero_stage == 1}
    return {**written, **_context(s), **_batch(s), **_precision(s), "weight_dtype": "float32", **_memory(s)}


def _context(s: Settings) -> Words:
    """The kind of context parallelism, with the attention that has it on this hardware (types.py)."""
    cp, kind = s.layout.cp, s.layout.cp_kind
    if cp == 1:
        return {}
    if hardware_of(s) == "gpu":
        why = "MaxText has Ulysses on TPUs alone: it gathers keys and values"
        words = {kind: STRATEGIES[kind] for kind in ("allgather", "ring")}
        strategy = s.choose("layout.cp_kind", words, why, "allgather")
        s.assume("packing false: its attention with cp takes no packed rows on GPUs: give a record for each")
        return {"context_parallel_strategy": strategy, "attention": "cudnn_flash_te", "packing": False}
    if kind == "ring" and s.run.seq_len % cp**2:
        s.nearly("layout.cp_kind", "allgather", "MaxText's ring wants a sequence that cp x cp divides")
        return {"context_parallel_strategy": STRATEGIES["allgather"]}
    written: Words = {"context_parallel_strategy": STRATEGIES[s.take("layout.cp_kind")]}
    if kind != "allgather":
        written |= {"attention": "flash", "use_tokamax_splash": True}
    if kind == "ulysses":
        written["context_parallel_load_balance"] = False  # each of its ranks has the whole sequence
    return written


def _precision(s: Settings) -> Words:
    precision = s.precision()
    if precision == "fp8" and s.layout.pp == 1 and s.layout.accumulation > 1:
        s.nearly("layout.precision", "bf16", "MaxText refuses fp8 with accumulated gradients")
        return PRECISIONS["bf16"]
    why = "MaxText trains in bf16 or fp32, with products in fp8 or int8"
    words = s.choose("layout.precision", PRECISIONS, why, "fp32" if precision == "tf32" else "bf16") or {}
    if precision in ("fp8", "int8"):
        s.nearly("layout.precision", precision, "its own recipe of scales")
    return words


def _sharding(s: Settings) -> int:
    """Devices of the fsdp axis: what shards parameters beside the expert axis."""
    layout, stage = s.layout, s.layout.zero_stage
    shared = [axis for axis in ("cp", "ep") if getattr(layout, axis) > 1]
    if stage in (0, 1) and shared:
        over = f"3 over {' and '.join(shared)}"
        s.nearly("layout.zero_stage", over, "MaxText shards parameters over those axes")
    elif stage >= 2 and layout.dp_shard * layout.cp == 1:
        s.nearly("layout.zero_stage", "0", "a replica has one data-parallel rank: there is nothing to shard")
    elif stage == 2:
        s.nearly("layout.zero_stage", "3", "MaxText has no ZeRO-2: the same numbers, more messages")
    else:
        s.take("layout.zero_stage")
    if stage in (0, 1) and shared and layout.dp_replicate != layout.dp // layout.ep:
        whole = layout.dp // layout.ep
        s.nearly("layout.dp_replicate", str(whole), "the ranks of its data axis hold the same parameters")
    elif stage != 1:
        s.take("layout.dp_replicate")
    within = layout.dp_shard if stage >= 2 else layout.dp
    if within % layout.ep:
        what = f"MaxText can't run ep {layout.ep} beyond the {within} data-parallel ranks of a replica"
        raise UserError(what, "layout.ep", "use an ep that divides dp / dp_replicate")
    return layout.dp_shard // layout.ep if stage >= 2 else 1


def _batch(s: Settings) -> Words:
    """The batch of a device; a pipeline accumulates in itself, a multiple of pp micro-batches."""
    layout, layers = s.layout, s.model.num_hidden_layers
    if layout.pp == 1:
        each = layout.micro_batch / (layout.tp * layout.cp)
        return {"per_device_batch_size": each, "gradient_accumulation_steps": layout.accumulation}
    stages = layout.pp * s.take("layout.virtual_stages")
    if layers % stages:
        what = f"MaxText can't run pp {layout.pp} with {layout.virtual_stages} stages of a rank: {layers} layers"
        raise UserError(what, "layout.pp", "use stages that divide the layers")
    if s.layout.stage_layers is not None and len(set(s.layout.stage_layers)) == 1:
        s.take("layout.stage_layers")
    why = f"MaxText has no {layout.schedule}: all forwards of its pipeline come before the backwards"
    order = "circular" if layout.virtual_stages > 1 else "gpipe"
    s.choose("layout.schedule", {"gpipe": None}, why, "gpipe", order)
    samples = layout.global_batch // layout.dp
    counts = [n for n in range(layout.pp, samples + 1, layout.pp) if samples % n == 0]
    if not counts:
        what = f"MaxText can't run pp {layout.pp} with {samples} samples of a data-parallel rank"
        raise UserError(what, "layout.pp", "use a global_batch that pp divides for each of them")
    count = min(counts, key=lambda n: abs(n - layout.accumulation))
    if count != layout.accumulation:
        s.nearly("layout.micro_batch", str(samples // count), "MaxText's pipeline wants a multiple of pp micro-batches")
    return {
        "per_device_batch_size": layout.global_batch / layout.devices, "gradient_accumulation_steps": 1,
        "num_pipeline_microbatches": count, "num_pipeline_repeats": layout.virtual_stages,
        "num_layers_per_pipeline_stage": layers // stages,
    }  # fmt: skip


def _memory(s: Settings) -> Words:
    policy = s.choose("layout.recompute", REMAT, instead="full")
    if s.layout.recompute == "none":
        s.assume("recompute none is minimal_with_context: products and attention's output are kept")
    parameters = {"optimizer": False, "parameters": True}.get(s.layout.offload)
    if s.layout.offload == "activations":
        s.take("layout.offload")
        custom: Words = {"remat_policy": "custom", "decoder_layer_input": "offload"}
        return custom if policy == "full" else {"remat_policy": "minimal_offloaded"}
    if parameters is None:
        return {"remat_policy": policy}
    s.take("layout.offload")
    return {"remat_policy": policy, "optimizer_memory_host_offload": True, "parameter_memory_host_offload": parameters}


def hardware_of(s: Settings) -> str:
    """Its word for the cluster's devices."""
    return "tpu" if "tpu" in str(s.run.cluster).lower() else "gpu"


def read_layout(t: ForeignKeys, run: RunKeys) -> None:
    layout = run.setdefault("layout", {})
    sizes = {axis: _size(t, axis) for axis in AXES}
    data, fsdp, expert = sizes["data"], sizes["fsdp"], sizes["expert"]
    tp, pp, cp = max(sizes["tensor"], 1) * sizes["tensor_sequence"], sizes["pipeline"], sizes["context"]
    devices = data * fsdp * expert * tp * pp * cp
    layout |= {"devices": devices, "tp": tp, "sp": sizes["tensor_sequence"] > 1, "pp": pp, "cp": cp, "ep": expert}
    if "moe" in (run.get("model") or {}):
        layout["etp"] = tp
    if cp > 1:
        name = str(t.take("context_parallel_strategy", "all_gather"))
        layout["cp_kind"] = inverse(STRATEGIES).get(name, "allgather")
    shards = t.take("shard_optimizer_over_data")
    sharded = fsdp * expert * cp > 1 or -1 in (t.values.get(f"{net}_fsdp_parallelism") for net in NETS)
    layout["zero_stage"] = 3 if sharded else 1 if shards else 0
    if layout["zero_stage"] != 1:
        layout["dp_replicate"] = data
    dp = data * fsdp * expert
    each, steps = real(t.take("per_device_batch_size", 12.0)), whole(t.take("gradient_accumulation_steps", 1))
    layout["global_batch"] = max(1, round(each * devices) * steps)
    t.follow("global_batch")
    count, repeats = t.take("num_pipeline_microbatches"), t.take("num_pipeline_repeats")
    if pp > 1:
        count = whole(count) if count is not None and int(count) > 0 else pp
        model, each_stage = run.get("model"), whole(t.values.get("num_layers_per_pipeline_stage", 1))
        layers = model.get("num_hidden_layers", pp) if isinstance(model, dict) else pp
        stated = repeats is not None and int(repeats) > 0
        virtual = whole(repeats) if stated else max(1, int(layers) // (pp * each_stage))
        layout |= {"virtual_stages": virtual, "schedule": "interleaved" if virtual > 1 else "gpipe"}
        layout["micro_batch"] = max(1, layout["global_batch"] // (dp * count * steps))
    else:
        layout["micro_batch"] = max(1, round(each * tp * cp))
    policy = str(t.take("remat_policy", "full"))
    offloaded = policy == "minimal_offloaded" or t.take("decoder_layer_input") == "offload"
    layout["recompute"] = inverse(REMAT).get(policy, "none" if policy == "minimal_offloaded" else "full")
    if policy not in REMAT.values() and not offloaded:
        t.assume(f"recompute {layout['recompute']}: theirs is the policy {policy}")
    optimizer, parameters = t.take("optimizer_memory_host_offload"), t.take("parameter_memory_host_offload")
    states = "parameters" if parameters else "optimizer" if optimizer else "none"
    layout["offload"] = "activations" if offloaded else states
    dtype, products = str(t.take("dtype", "bfloat16")), str(t.take("quantization", ""))
    whole_type = "fp32" if dtype == "float32" else "bf16"
    layout["precision"] = "fp8" if "fp8" in products else "int8" if products == "int8" else whole_type


def _size(t: ForeignKeys, axis: str) -> int:
    """An axis over both networks; -1 takes what is left, which isn't known."""
    size = 1
    for net in NETS:
        key = f"{net}_{axis}_parallelism"
        value = int(t.take(key, 1))
        if value == -1:
            t.guessed["devices"] = f"{key} is what is left of the devices: taken as 1, set layout.devices"
            t.assume(t.guessed["devices"])
        size *= max(value, 1)
    return size
