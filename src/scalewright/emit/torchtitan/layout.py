"""The layout in torchtitan's keys; training.py has the way back.

ours                     theirs (parallelism.* of 0.2)
dp_replicate, dp_shard   data_parallel_replicate_degree, data_parallel_shard_degree
zero_stage 0, 2, 3       shard 1; fsdp_reshard_after_forward never, always     (1: never, nearly)
cp_kind                  all-gather; in 0.2 also a ring (rotate method alltoall)
micro_batch              training.local_batch_size; with a pipeline that is all of its micro-batches, and
                         pipeline_parallel_microbatch_size is one
stage_layers             module_fqns_per_model_part, or layers_per_stage where all are equal
recompute                selective: every second matmul; {every: n} only before 0.3
"""

from __future__ import annotations

from typing import Any

from scalewright.emit.settings import Settings
from scalewright.emit.torchtitan.keys import LAYOUT
from scalewright.spec.errors import UserError
from scalewright.spec.placement import stage_layers

Keys = dict[str, Any]  # dotted, as in 0.2
SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zbv": "ZBVZeroBubble",
             "zb-interleaved": "InterleavedZeroBubble", "dualpipev": "DualPipeV"}  # fmt: skip
SPLIT = ("zbv", "zb-interleaved", "dualpipev")  # torch's split backward can't be compiled
ROUNDS = ("interleaved", "zb-interleaved")
BLOCK = 128  # tokens, of a mask in flex attention
CONVERTERS = {"fp8": "float8", "mxfp8": "mx", "nvfp4": "nvfp4"}


def write_layout(s: Settings, release: str) -> Keys:
    """Their keys for parallelism, precision and memory; raises UserError where it would be another layout."""
    s.take_each("layout", "devices", "micro_batch", "global_batch")
    written = s.write(LAYOUT)
    layout = s.layout
    if layout.tp > 1 and release == "0.3":
        written["parallelism.enable_sequence_parallel"] = s.take("layout.sp")
    elif layout.tp > 1 and not layout.sp:
        s.nearly("layout.sp", "true", "tensor parallelism of 0.2 always splits the sequence too")
    else:
        s.take("layout.sp")
    written |= {"training.global_batch_size": layout.global_batch, "training.local_batch_size": layout.micro_batch}
    written |= _sharding(s) | _experts(s, release) | _context(s, release) | _pipeline(s, release)
    return written | _recompute(s, release) | _precision(s, release) | _offload(s)


def _sharding(s: Settings) -> Keys:
    layout, stage = s.layout, s.layout.zero_stage
    s.take_each("layout", "zero_stage", "dp_replicate")
    whole = (layout.cp * layout.tp) % layout.ep == 0  # experts' ranks are those of shard, cp and tp
    if stage == 0 and whole and layout.cp == 1:
        return {"parallelism.data_parallel_replicate_degree": layout.dp, "parallelism.data_parallel_shard_degree": 1}
    kept = "torchtitan shards parameters too, and keeps them whole from a forward to its backward"
    why = kept if stage else "torchtitan shards where context or expert parallelism is"
    if stage < 3:
        s.nearly("layout.zero_stage", "FSDP, never resharded", why)
    degrees = {"replicate": layout.dp_replicate, "shard": layout.dp_shard}
    keys: Keys = {f"parallelism.data_parallel_{name}_degree": size for name, size in degrees.items()}
    return {**keys, "parallelism.fsdp_reshard_after_forward": "always" if stage == 3 else "never"}


def _experts(s: Settings, release: str) -> Keys:
    layout = s.layout
    if not s.model.moe:
        return {}
    if release == "0.1" and layout.ep > 1:
        s.drop("layout.ep", "0.1 has no experts in parallel")
        return {}
    s.take("layout.ep")
    written: Keys = {"parallelism.expert_parallel_degree": layout.ep}
    foreign = layout.tp if layout.ep == 1 else 1
    if layout.etp == foreign:
        s.take("layout.etp")
    elif layout.ep == 1:
        why = "without expert parallelism torchtitan cuts experts over tp"
        s.nearly("layout.etp", str(layout.tp), why)
    elif release == "0.2" and layout.etp == layout.tp:
        written["parallelism.expert_tensor_parallel_degree"] = s.take("layout.etp")
    else:
        s.drop("layout.etp", "experts of a rank are whole" if release == "0.3" else "it takes 1 or tp")
    return written


def _context(s: Settings, release: str) -> Keys:
    layout = s.layout
    if layout.cp == 1:
        return {}
    if layout.cp_kind == "allgather" or (layout.cp_kind == "ring" and release != "0.3"):
        s.take("layout.cp_kind")
    else:
        why = "torchtitan gathers keys and values: the same numbers, other messages"
        s.nearly("layout.cp_kind", "allgather", why)
    if release == "0.3":  # its masks are of blocks, which only this balancer cuts (torch, _context_parallel)
        if s.run.seq_len % (BLOCK * layout.cp):
            what = f"torchtitan cuts masks in blocks of {BLOCK} tokens over cp {layout.cp}"
            raise UserError(what, "data.seq_len", f"use a data.seq_len that {BLOCK * layout.cp} divides")
        return {"parallelism.context_parallel_load_balancer": "ptrr"}
    ring = layout.cp_kind == "ring"
    return {"parallelism.context_parallel_rotate_method": "alltoall"} if ring else {}


def _pipeline(s: Settings, release: str) -> Keys:
    layout = s.layout
    if layout.pp == 1:
        return {}
    micros = layout.accumulation
    kind = layout.schedule if layout.schedule in SCHEDULES else "1f1b"
    why = f"torch has no {layout.schedule}: the same numbers, another order, other bubbles"
    schedule = s.choose("layout.schedule", SCHEDULES, why, "1f1b", SCHEDULES["1f1b"])
    rounds = max(1, micros // layout.pp)
    if kind in ROUNDS and micros % rounds:
        how = f"use a global_batch of {layout.pp * layout.micro_batch * layout.dp} times a whole number"
        what = f"torch's {schedule} can't divide {micros} micro-batches into {rounds} rounds"
        raise UserError(what, "layout.global_batch", how)
    s.take("layout.virtual_stages"), s.take("layout.stage_layers")
    return {
        "training.local_batch_size": layout.micro_batch * micros,
        "parallelism.pipeline_parallel_microbatch_size": layout.micro_batch,
        "parallelism.pipeline_parallel_schedule": schedule,
        **_stages(stage_layers(s.model, layout), release),
    }


def _stages(counts: tuple[int, ...], release: str) -> Keys:
    """The cut of the model; equal stages by their length, others by the names of their modules."""
    if len(set(counts)) == 1 and release != "0.1":  # which counts an embedding and a head as a layer each
        less = {f"parallelism.pipeline_parallel_{end}_stage_less_layers": 0 for end in ("first", "last")}
        return {"parallelism.pipeline_parallel_layers_per_stage": counts[0], **less}
    starts = [sum(counts[:index]) for index in range(len(counts))]
    if release == "0.1":
        points = [f"layers.{start}" for start in starts[1:]]
        return {"parallelism.pipeline_parallel_split_points": points}
    parts = [[f"layers.{start + i}" for i in range(count)] for start, count in zip(starts, counts, strict=True)]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head" if release == "0.3" else "output"]
    return {"parallelism.module_fqns_per_model_part": parts}


def _recompute(s: Settings, release: str) -> Keys:
    kind = s.layout.recompute
    key = "activation_checkpoint.mode"
    every, budget = getattr(kind, "every", None), getattr(kind, "budget", None)
    if kind in ("none", "full"):
        return {key: s.take("layout.recompute")}
    if kind == "selective":
        why = "torchtitan keeps every second matmul's output, ours those of all"
        s.nearly("layout.recompute", "selective: op", why)
        return {key: "selective", "activation_checkpoint.selective_ac_option": "op"}
    if every is not None and release != "0.3":
        s.take("layout.recompute")
        return {key: "selective", "activation_checkpoint.selective_ac_option": str(every)}
    compiled = s.layout.pp == 1 or s.layout.schedule not in SPLIT
    if budget is not None and release != "0.1" and compiled:
        why = "its budget of 0 still keeps what full recomputation keeps; it compiles the model"
        s.nearly("layout.recompute", f"memory budget {budget:g}", why)
        return {key: "memory_budget", "activation_checkpoint.memory_budget": budget, "compile.enable": True}
    what = "every n-th block" if every is not None else "a budget"
    where = "with this schedule" if budget is not None and release != "0.1" else f"in {release}"
    s.nearly("layout.recompute", "full", f"torchtitan has no recomputation of {what} {where}: less memory, more time")
    return {key: "full"}


def _precision(s: Settings, release: str) -> Keys:
    precision = s.precision()
    written: Keys = {"training.mixed_precision_param": "float32" if precision in ("fp32", "tf32") else "bfloat16"}
    if precision in ("auto", "bf16", "fp32"):
        s.take("layout.precision")
        return written
    if precision == "tf32":
        s.nearly("layout.precision", "float32", "call torch.set_float32_matmul_precision('high')")
        return written
    if precision not in CONVERTERS or (precision == "nvfp4" and release != "0.3"):
        s.drop("layout.precision", f"torchtitan has no {precision} here: it trains in bf16")
        return written
    if precision == "fp8" and release == "0.3":
        s.nearly("layout.precision", "float8 rowwise", "0.3 scales each row, ours each tensor")
    s.take("layout.precision")
    if precision == "fp8" and release != "0.3":
        written["quantize.linear.float8.recipe_name"] = "tensorwise"
    if s.layout.pp == 1 or s.layout.schedule not in SPLIT:
        written["compile.enable"] = True
    return written | {"model.converters": [CONVERTERS[precision]]}


def _offload(s: Settings) -> Keys:
    kind = s.layout.offload
    if kind in ("none", "activations"):
        return {}
    if kind == "parameters":
        s.take("layout.offload")
    else:
        why = "torchtitan moves parameters, gradients and states together, and no activations"
        s.nearly("layout.offload", "enable_cpu_offload", why)
    return {"training.enable_cpu_offload": True}
