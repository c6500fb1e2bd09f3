"""Accelerate: accelerate_config.yaml, a training script and config.json; its YAML read back.

zero_stage 0            MULTI_GPU (MULTI_CPU)
zero_stage 1            DEEPSPEED (2 and 3, too, with offload optimizer)
                        read: deepspeed_config's own keys, or those of the JSON that it names
zero_stage 2, 3         FSDP, version 2, without or with resharding
                        read, version 1: FULL_SHARD 3, SHARD_GRAD_OP 2, NO_SHARD 0
cp, dp_replicate, tp    parallelism_config, whose product is the processes; with tp the script loads in parts
tp, pp, sp              megatron_lm_config, read alone

The YAML has the layout and the precision, and nothing of the model, data or batch. Words are those of
Accelerate 1.10 to 1.15 (accelerate/commands/config/config_args.py, commands/launch.py, read 2026-11).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.emit.command_lines import nodes_of
from scalewright.emit.deepspeed.read import fit_batch, read_offload, read_sections
from scalewright.emit.emitted import Emitted, Reading
from scalewright.emit.foreign import ForeignKeys, LayoutKey, LayoutKeys, RunKeys, real_of, true, whole_of
from scalewright.emit.rules import put
from scalewright.emit.scripts import model as scripts
from scalewright.emit.scripts.facts import (
    Sharding,
    take_facts,
    take_optimizer,
    take_precision,
    take_recompute,
    take_sharding,
    take_states_offload,
)
from scalewright.emit.settings import Settings
from scalewright.emit.tables import keys_for
from scalewright.spec.common.formatting import flat
from scalewright.spec.errors import UserError

PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp32": "no", "tf32": "no"}
READ_PRECISIONS = {"no": "fp32", "none": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}
FSDP1 = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}
CONTEXT = {"allgather": "allgather", "alltoall": "ring"}
PREFIX = "parallelism_config"
ASIDE = keys_for("accelerate")
TITLE, VERSION = "Accelerate", "1.15 with transformers 5.23"
FILE = "accelerate_config.yaml"
CONTEXTS = {"allgather": ("allgather", True), "ring": ("alltoall", True)}
TYPES = {"none": "NO", "ddp": "MULTI_GPU", "deepspeed": "DEEPSPEED", "fsdp": "FSDP", "loaded": "MULTI_GPU"}
MEGATRON: Mapping[LayoutKey, str] = {"tp": "tp_degree", "pp": "pp_degree"}


def write(s: Settings) -> Emitted:
    """All files; raises UserError where it would be another layout, or another network."""
    network = scripts.write_config(s)
    sharding = take_sharding(s, TITLE, CONTEXTS)
    facts = {**take_facts(s, scripts.masks_refused(s)), **take_optimizer(s, TITLE), **take_recompute(s)}
    precision = take_precision(s, TITLE)
    facts["tf32"] = precision == "tf32"
    in_config = sharding.kind == "fsdp" and facts["every"] == 1 and not facts["products"]
    config = _config(s, sharding, precision, in_config)
    command = _command(s, sharding)
    if in_config:
        facts["every"] = 0  # FSDP's own recomputation
    script = scripts.render(
        "accelerate", f=facts, command=command, sharding=sharding, out=f"{s.run.folder}/accelerate",
        dtype={"bf16": "bfloat16", "fp16": "float16"}.get(precision, "float32"),
        reduce_in_fp32=sharding.kind == "fsdp" and precision in ("bf16", "fp16"), **sharding.sizes,
    )  # fmt: skip
    note = "Written by `scalewright emit accelerate`; it is started by"
    files = scripts.with_script({FILE: scripts.as_yaml(config, note, command)}, script, network)
    return s.emitted(TITLE, "accelerate", VERSION, files, command)


def _config(s: Settings, sharding: Sharding, precision: str, recompute: bool) -> dict[str, object]:
    nodes, _ = nodes_of(s.layout.devices)
    cpu = s.run.device == "cpu"
    if cpu and sharding.kind in ("fsdp", "loaded"):
        raise UserError("Accelerate runs FSDP on accelerators alone", "device", "use zero_stage 0, or another device")
    kind = "MULTI_CPU" if cpu and sharding.kind == "ddp" else TYPES[sharding.kind]
    config: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE", "distributed_type": kind, "mixed_precision": PRECISIONS[precision],
        "num_machines": nodes, "num_processes": s.layout.devices, "machine_rank": 0, "main_process_port": 29500,
        "rdzv_backend": "static", "same_network": True, "use_cpu": cpu,
    }  # fmt: skip
    if sharding.kind == "fsdp":
        config["fsdp_config"] = {
            "fsdp_version": 2, "fsdp_reshard_after_forward": sharding.reshard,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_activation_checkpointing": recompute,
            "fsdp_offload_params": sharding.offload, "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_cpu_ram_efficient_loading": False, **_activations(s, recompute),
        }  # fmt: skip
    elif sharding.kind == "loaded":
        _activations(s, recompute)
    if sharding.kind == "deepspeed":
        config["deepspeed_config"] = {
            "zero_stage": s.layout.zero_stage, "gradient_accumulation_steps": s.layout.accumulation,
            "gradient_clipping": s.take("optimizer.clip_norm"),
            "offload_optimizer_device": "cpu" if take_states_offload(s) else "none", "offload_param_device": "none",
            "zero3_init_flag": False,
        }  # fmt: skip
    if sharding.kind == "fsdp" or s.layout.tp > 1:
        sizes = {f"{PREFIX}_{name}_size": size for name, size in sharding.sizes.items()}
        strategy = {f"{PREFIX}_cp_comm_strategy": sharding.context} if s.layout.cp > 1 else {}
        config[PREFIX] = {**sizes, **strategy}
    return config


def _activations(s: Settings, recompute: bool) -> dict[str, object]:
    """Offloaded activations: FSDP2 offloads what recomputed layers keep."""
    if s.layout.offload not in ("activations", "all"):
        return {}
    if not recompute:
        s.drop("layout.offload", "Accelerate offloads activations of layers that FSDP recomputes")
        return {}
    if s.layout.offload == "activations":
        s.take("layout.offload")
    return {"fsdp_activation_checkpointing_offload": True}


def _command(s: Settings, sharding: Sharding) -> str:
    nodes, each = nodes_of(s.layout.devices)
    if s.run.device == "cpu" and sharding.kind != "none":
        return f"ACCELERATE_USE_CPU=true torchrun --nproc-per-node {each} {scripts.SCRIPT}"
    where = " --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR" if nodes > 1 else ""
    return f"accelerate launch --config_file {FILE}{where} {scripts.SCRIPT}"


def read(document: Any, text: str, where: str) -> Reading:
    """A configuration as a run."""
    foreign = ForeignKeys(_named(document), ASIDE)
    run: RunKeys = {}
    layout: LayoutKeys = run.setdefault("layout", {})
    kind = str(foreign.take("distributed_type")).upper()
    processes, machines = whole_of(foreign.take("num_processes")), whole_of(foreign.take("num_machines"))
    precision = foreign.take("mixed_precision")
    if precision is None and foreign.take("fp16"):
        precision = "fp16"
    layout["precision"] = READ_PRECISIONS.get(str("no" if precision is None else precision).lower(), "bf16")
    layout["zero_stage"] = 3 if _read_sizes(foreign, layout) > 1 else 0  # loaded in shards
    if kind == "FSDP":
        _read_fsdp(foreign, layout, machines)
    elif kind == "DEEPSPEED":
        _read_deepspeed(foreign, run, where)
    elif kind == "MEGATRON_LM":
        _read_megatron(foreign, run)
    elif kind not in ("NO", "MULTI_GPU", "MULTI_CPU", "MULTI_NPU", "MULTI_XPU", "MULTI_HPU", "MULTI_MLU"):
        foreign.refuse("distributed_type", "processes of this kind aren't known here: taken as whole replicas")
    fit_batch(foreign, layout, processes)
    scripts.read_beside(where, run)
    return foreign.reading("accelerate", run)


def _named(document: Mapping[str, Any]) -> dict[str, object]:
    """Dotted keys with one name each: `parallelism_config.tp_size`, `fsdp_config.fsdp_version`."""
    keys: dict[str, object] = {}
    for key, value in flat(document).items():
        section, _, name = key.rpartition(".")
        if section == PREFIX:
            name = name.removeprefix(f"{PREFIX}_")
        if section == "fsdp_config" and not name.startswith("fsdp_"):
            name = f"fsdp_{name}"
        keys[f"{section}.{name}" if section else name] = value
    return keys


def _read_sizes(t: ForeignKeys, layout: LayoutKeys) -> int:
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


def _read_fsdp(t: ForeignKeys, layout: LayoutKeys, machines: int | None) -> None:
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


def _read_deepspeed(t: ForeignKeys, run: RunKeys, where: str) -> None:
    name = "deepspeed_config.deepspeed_config_file"
    if (file := t.take(name)) is not None:
        document = scripts.linked(file, where)
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
    t.take("deepspeed_config.offload_optimizer_nvme_path"), t.take("deepspeed_config.offload_param_nvme_path")
    read_offload(t, layout, "deepspeed_config.", "_device")
    if (steps := whole_of(t.take("deepspeed_config.gradient_accumulation_steps"))) is not None:
        layout["accumulation"] = steps
    if (clip := real_of(t.take("deepspeed_config.gradient_clipping"))) is not None:
        put(run, "optimizer.clip_norm", clip)


def _read_megatron(t: ForeignKeys, run: RunKeys) -> None:
    section, layout = "megatron_lm_config.megatron_lm_", run["layout"]
    for ours, foreign in MEGATRON.items():
        if (size := whole_of(t.take(f"{section}{foreign}"))) is not None:
            layout[ours] = size
    layout["sp"] = true(t.take(f"{section}sequence_parallelism")) and layout.get("tp", 1) > 1
    layout["zero_stage"] = int(true(t.take(f"{section}use_distributed_optimizer")))
    if true(t.take(f"{section}recompute_activations")):
        layout["recompute"] = "selective"
    if (clip := real_of(t.take(f"{section}gradient_clipping"))) is not None:
        put(run, "optimizer.clip_norm", clip)
    if (micro := whole_of(t.take(f"{section}num_micro_batches"))) is not None:
        layout["accumulation"] = micro


def recognises(document: Any, text: str) -> bool:
    """A configuration that `accelerate config` writes."""
    return isinstance(document, dict) and "distributed_type" in document
