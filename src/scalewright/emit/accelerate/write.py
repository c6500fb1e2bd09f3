"""accelerate_config.yaml, train.py, samples.py and config.json for one run.

zero_stage 0   MULTI_GPU (MULTI_CPU)          2, 3   FSDP, version 2, with or without resharding
zero_stage 1   DEEPSPEED
cp, dp_replicate        parallelism_config, whose product is the number of processes
tp                      the same, and the script loads the model in parts
"""

from __future__ import annotations

from typing import Any

from scalewright.emit.accelerate.words import PRECISIONS, PREFIX
from scalewright.emit.arguments import nodes_of
from scalewright.emit.emitted import Emitted
from scalewright.emit.scripts.facts import (
    Facts,
    take_facts,
    take_optimizer,
    take_precision,
    take_recompute,
)
from scalewright.emit.scripts.model import CONFIG, masks_refused, write_config
from scalewright.emit.scripts.render import SAMPLES, as_yaml, render
from scalewright.emit.scripts.sharding import Sharding, take_sharding
from scalewright.emit.settings import Settings
from scalewright.spec.errors import UserError

TITLE, VERSION = "Accelerate", "1.15 with transformers 5.23"
FILE, SCRIPT = "accelerate_config.yaml", "train.py"
CONTEXTS = {"allgather": ("allgather", True), "ring": ("alltoall", True)}
TYPES = {"none": "NO", "ddp": "MULTI_GPU", "deepspeed": "DEEPSPEED", "fsdp": "FSDP", "loaded": "MULTI_GPU"}


def write(s: Settings) -> Emitted:
    """All files; raises UserError where it would be another layout, or another network."""
    network = write_config(s)
    sharding = take_sharding(s, TITLE, CONTEXTS)
    masks = masks_refused(s) or (
        "context parallelism has no masks but the causal one" if s.layout.cp > 1 else None
    )
    facts = {**take_facts(s, masks), **take_optimizer(s, TITLE), **take_recompute(s)}
    precision = take_precision(s, TITLE)
    facts["tf32"] = precision == "tf32"
    in_config = sharding.kind == "fsdp" and facts["every"] == 1 and not facts["products"]
    config = _config(s, sharding, precision, in_config)
    command = _command(s, sharding)
    if in_config:
        facts["every"] = 0  # FSDP's own recomputation
    script = _script(s, facts, sharding, precision, command)
    note = "Written by `scalewright emit accelerate`; it is started by"
    files = {
        FILE: as_yaml(config, note, command),
        SCRIPT: script,
        "samples.py": SAMPLES,
        CONFIG: network,
    }
    return s.emitted(TITLE, "accelerate", VERSION, files, command)


def _config(s: Settings, sharding: Sharding, precision: str, recompute: bool) -> dict[str, Any]:
    nodes, _ = nodes_of(s.layout.devices)
    cpu = s.run.device == "cpu"
    if cpu and sharding.kind in ("fsdp", "loaded"):
        raise UserError(
            "Accelerate runs FSDP on accelerators alone", "device", "use zero_stage 0, or another device"
        )
    kind = "MULTI_CPU" if cpu and sharding.kind == "ddp" else TYPES[sharding.kind]
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "mixed_precision": PRECISIONS[precision],
        "num_machines": nodes,
        "num_processes": s.layout.devices,
        "machine_rank": 0,
        "main_process_port": 29500,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": cpu,
    }
    if sharding.kind == "fsdp":
        config["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": sharding.reshard,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": recompute,
            "fsdp_offload_params": sharding.offload,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_cpu_ram_efficient_loading": False,
        }
        config["fsdp_config"] |= _activations(s, sharding, recompute)
    elif sharding.kind == "loaded":
        _activations(s, sharding, recompute)
    if sharding.kind == "deepspeed":
        config["deepspeed_config"] = {
            "zero_stage": 1,
            "gradient_accumulation_steps": s.layout.accumulation,
            "gradient_clipping": s.take("optimizer.clip_norm"),
            "offload_optimizer_device": _offload(s),
            "offload_param_device": "none",
            "zero3_init_flag": False,
        }
    if sharding.kind == "fsdp" or s.layout.tp > 1:
        sizes = {f"{PREFIX}_{name}_size": size for name, size in sharding.sizes.items()}
        strategy = {f"{PREFIX}_cp_comm_strategy": sharding.context} if s.layout.cp > 1 else {}
        config[PREFIX] = {**sizes, **strategy}
    return config


def _activations(s: Settings, sharding: Sharding, recompute: bool) -> dict[str, Any]:
    """Offloaded activations: FSDP2 offloads what recomputed layers keep."""
    if s.layout.offload not in ("activations", "all") or sharding.kind not in ("fsdp", "loaded"):
        return {}
    if not recompute:
        s.drop("layout.offload", "Accelerate offloads activations of layers that FSDP recomputes")
        return {}
    if s.layout.offload == "activations":
        s.take("layout.offload")
    return {"fsdp_activation_checkpointing_offload": True}


def _offload(s: Settings) -> str:
    if s.layout.offload == "optimizer":
        s.take("layout.offload")
        return "cpu"
    s.drop("layout.offload", "ZeRO 1 offloads optimizer states alone")
    return "none"


def _command(s: Settings, sharding: Sharding) -> str:
    nodes, each = nodes_of(s.layout.devices)
    if s.run.device == "cpu" and sharding.kind != "none":
        return f"ACCELERATE_USE_CPU=true torchrun --nproc-per-node {each} {SCRIPT}"
    where = " --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR" if nodes > 1 else ""
    return f"accelerate launch --config_file {FILE}{where} {SCRIPT}"


def _script(s: Settings, facts: Facts, sharding: Sharding, precision: str, command: str) -> str:
    return render(
        "accelerate",
        f=facts,
        command=command,
        dtype={"bf16": "bfloat16", "fp16": "float16"}.get(precision, "float32"),
        reduce_in_fp32=sharding.kind == "fsdp" and precision in ("bf16", "fp16"),
        sharding=sharding,
        out=f"{s.run.folder}/accelerate",
        **sharding.sizes,
    )
