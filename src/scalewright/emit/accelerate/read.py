"""Accelerate's YAML as a run: it has the layout and the precision, and nothing of the model, data or batch.

fsdp_version 2     reshard_after_forward true: zero_stage 3, false: 2
fsdp_version 1     sharding_strategy or reshard_after_forward: FULL_SHARD 3, SHARD_GRAD_OP 2, NO_SHARD 0
deepspeed_config   its own keys, or those of the JSON that it names
megatron_lm_config tp, pp, sequence parallelism
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.emit.accelerate.words import ASIDE, CONTEXT, FSDP1, PREFIX
from scalewright.emit.deepspeed.read import fit_batch, read_sections
from scalewright.emit.emitted import Reading
from scalewright.emit.numbers import real_of, true, whole_of
from scalewright.emit.rules import put
from scalewright.emit.scripts.model import linked, read_beside
from scalewright.emit.theirs import Theirs
from scalewright.spec.text.dotted import flat

MEGATRON = {"tp": "tp_degree", "pp": "pp_degree"}


def read(document: Any, text: str, where: str) -> Reading:
    """A configuration as a run."""
    theirs = Theirs(_named(document), ASIDE)
    run: dict[str, Any] = {}
    layout: dict[str, Any] = run.setdefault("layout", {})
    kind = str(theirs.take("distributed_type")).upper()
    processes, machines = whole_of(theirs.take("num_processes")), whole_of(theirs.take("num_machines"))
    _read_precision(theirs, layout)
    layout["zero_stage"] = 3 if _read_sizes(theirs, layout) > 1 else 0  # loaded in shards
    if kind == "FSDP":
        _read_fsdp(theirs, layout, machines)
    elif kind == "DEEPSPEED":
        _read_deepspeed(theirs, run, where)
    elif kind == "MEGATRON_LM":
        _read_megatron(theirs, run)
    elif kind not in ("NO", "MULTI_GPU", "MULTI_CPU", "MULTI_NPU", "MULTI_XPU", "MULTI_HPU", "MULTI_MLU"):
        theirs.refuse("distributed_type", "processes of this kind aren't known here: taken as whole replicas")
    fit_batch(theirs, layout, processes)
    read_beside(where, run)
    return theirs.reading("accelerate", run)


def _named(document: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys with one name each: `parallelism_config.tp_size`, `fsdp_config.fsdp_version`."""
    keys: dict[str, Any] = {}
    for key, value in flat(document).items():
        section, _, name = key.rpartition(".")
        if section == PREFIX:
            name = name.removeprefix(f"{PREFIX}_")
        if section == "fsdp_config" and not name.startswith("fsdp_"):
            name = f"fsdp_{name}"
        keys[f"{section}.{name}" if section else name] = value
    return keys


def _read_precision(t: Theirs, layout: dict[str, Any]) -> None:
    precision = t.take("mixed_precision")
    if precision is None and t.take("fp16"):
        precision = "fp16"
    names = {"no": "fp32", "none": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}
    layout["precision"] = names.get(str(precision if precision is not None else "no").lower(), "bf16")


def _read_sizes(t: Theirs, layout: dict[str, Any]) -> int:
    """Sizes of parallelism_config; gives how many ranks share a replica."""
    for name in ("tp", "cp", "dp_replicate"):
        if (size := whole_of(t.take(f"{PREFIX}.{name}_size"))) is not None:
            layout[name] = size
    shares = whole_of(t.take(f"{PREFIX}.dp_shard_size")) or 1
    strategy, ulysses = t.take(f"{PREFIX}.cp_comm_strategy"), whole_of(t.take(f"{PREFIX}.sp_size"))
    if layout.get("cp", 1) > 1:
        layout["cp_kind"] = CONTEXT.get(str(strategy), "allgather")
    if ulysses is not None and ulysses > 1:
        layout |= {"cp": ulysses, "cp_kind": "ulysses"}
    if layout.get("tp", 1) > 1:
        layout["sp"] = False
    return shares


def _read_fsdp(t: Theirs, layout: dict[str, Any], machines: int | None) -> None:
    section = "fsdp_config.fsdp_"
    version, reshard = t.take(f"{section}version"), t.take(f"{section}reshard_after_forward")
    strategy = t.take(f"{section}sharding_strategy")
    named = strategy if strategy is not None else reshard if isinstance(reshard, str) else None
    if isinstance(named, int) and not isinstance(named, bool):
        named = list(FSDP1)[named - 1] if 0 < named <= len(FSDP1) else None
    name = str(named).upper()
    if name in FSDP1 and (version is None or whole_of(version) == 1):
        layout["zero_stage"] = FSDP1[name]
        if name.startswith("HYBRID") and machines is not None and machines > 1:
            layout["dp_replicate"] = machines
            t.assume(f"dp_replicate {machines}: {name} shards within a machine")
    else:
        layout["zero_stage"] = 2 if str(reshard).lower() == "false" else 3
    if true(t.take(f"{section}offload_params")):
        layout["offload"] = "parameters"
    if true(t.take(f"{section}activation_checkpointing")):
        layout["recompute"] = "full"
    if true(t.take(f"{section}activation_checkpointing_offload")):
        layout["offload"] = "all" if "offload" in layout else "activations"


def _read_deepspeed(t: Theirs, run: dict[str, Any], where: str) -> None:
    name = "deepspeed_config.deepspeed_config_file"
    if (file := t.take(name)) is not None:
        document = linked(file, where)
        if document is None:
            t.refuse(name, "the file isn't in this configuration's folder: read it by itself")
            return
        inner = read_sections(document, run)
        for item in inner.unread():
            t.values[f"{name}: {item.key}"] = item.value
            t.refuse(f"{name}: {item.key}", item.why)
        t.assumed += inner.assumed
        return
    layout = run["layout"]
    layout["zero_stage"] = min(3, int(real_of(t.take("deepspeed_config.zero_stage", 2)) or 0))
    devices = {key: t.take(f"deepspeed_config.offload_{key}_device") for key in ("optimizer", "param")}
    t.take("deepspeed_config.offload_optimizer_nvme_path"), t.take("deepspeed_config.offload_param_nvme_path")
    if devices["param"] in ("cpu", "nvme"):
        layout["offload"] = "parameters"
    elif devices["optimizer"] in ("cpu", "nvme"):
        layout["offload"] = "optimizer"
    if (steps := whole_of(t.take("deepspeed_config.gradient_accumulation_steps"))) is not None:
        layout["accumulation"] = steps
    if (clip := real_of(t.take("deepspeed_config.gradient_clipping"))) is not None:
        put(run, "optimizer.clip_norm", clip)


def _read_megatron(t: Theirs, run: dict[str, Any]) -> None:
    section, layout = "megatron_lm_config.megatron_lm_", run["layout"]
    for ours, theirs in MEGATRON.items():
        if (size := whole_of(t.take(f"{section}{theirs}"))) is not None:
            layout[ours] = size
    layout["sp"] = true(t.take(f"{section}sequence_parallelism")) and layout.get("tp", 1) > 1
    layout["zero_stage"] = int(true(t.take(f"{section}use_distributed_optimizer")))
    if true(t.take(f"{section}recompute_activations")):
        layout["recompute"] = "selective"
    clip, micro = (
        real_of(t.take(f"{section}gradient_clipping")),
        whole_of(t.take(f"{section}num_micro_batches")),
    )
    if clip is not None:
        put(run, "optimizer.clip_norm", clip)
    if micro is not None:
        layout["accumulation"] = micro
