"""axolotl.yaml, and a script that makes its rows of tokens and the model's folder."""

from __future__ import annotations

from typing import Any

from scalewright.emit.arguments import nodes_of
from scalewright.emit.axolotl.words import SIZES
from scalewright.emit.emitted import Emitted
from scalewright.emit.rules import write_rules
from scalewright.emit.scripts.facts import Facts, take_facts, take_precision
from scalewright.emit.scripts.model import CONFIG, write_config
from scalewright.emit.scripts.render import SAMPLES, as_yaml, render
from scalewright.emit.scripts.sharding import Sharding, take_sharding
from scalewright.emit.settings import Settings
from scalewright.emit.transformers.schedule import check_decay, write_optimizer, write_schedule
from scalewright.emit.transformers.words import COMMON
from scalewright.emit.transformers.write import write_deepspeed

TITLE, VERSION = "Axolotl", "0.19"
FILE, INPUTS = "axolotl.yaml", "make_inputs.py"
CONTEXTS = {"ring": ("ring", True), "allgather": ("ring", False)}
NO_MASKS = "rows that are tokenized already have no document numbers there"


def write(s: Settings) -> Emitted:
    """All files; raises UserError where it would be another layout, or another network."""
    network = write_config(s)
    sharding = take_sharding(s, TITLE, CONTEXTS, loads=False)
    facts = take_facts(s, NO_MASKS, own_loop=False)
    s.assume(f"{INPUTS} writes every sample of the run to rows/, and a row's last token has no target")
    config = _config(s, facts, sharding)
    command = _command(s)
    inputs = render("rows", f=facts, title=TITLE, disk=False, from_scratch=False)
    files = {
        FILE: as_yaml(
            config, f"Written by `scalewright emit axolotl`, for Axolotl {VERSION}; it is started by", command
        ),
        INPUTS: inputs,
        "samples.py": SAMPLES,
        f"model/{CONFIG}": network,
    }
    return s.emitted(TITLE, "axolotl", VERSION, files, command)


def _config(s: Settings, facts: Facts, sharding: Sharding) -> dict[str, Any]:
    schedule = write_schedule(s, facts)
    check_decay(s, facts, TITLE)
    if facts["warmup"] == 1:
        s.nearly("lr_schedule.warmup_steps", "2", "Axolotl makes two of one")
    first, second = s.take("optimizer.betas")
    config: dict[str, Any] = {
        "base_model": facts["init"] or "./model",
        "tokenizer_config": "./model",
        "output_dir": f"{s.run.folder}/axolotl",
        "datasets": [{"path": "./rows/train.parquet", "ds_type": "parquet", "type": None}],
        "dataset_prepared_path": "./prepared",
        "sequence_len": facts["seq_len"],
        "sample_packing": False,
        "shuffle_merged_datasets": False,
        "curriculum_sampling": True,
        "micro_batch_size": facts["micro_batch"],
        "gradient_accumulation_steps": facts["accumulation"],
        "max_steps": facts["steps"],
        **write_rules(s, COMMON),
        "adam_beta1": first,
        "adam_beta2": second,
        "optimizer": write_optimizer(s, TITLE),
        "lr_scheduler": schedule.pop("lr_scheduler_type"),
        **schedule,
        **_memory(s),
        **_layout(s, sharding),
        "attn_implementation": "flash_attention_2" if s.layout.cp > 1 else "sdpa",
        "logging_steps": 1,
        "save_steps" if facts["save_every"] else "save_strategy": facts["save_every"] or "no",
    }
    if facts["valid_every"]:
        config["test_datasets"] = [
            {"path": "./rows/valid.parquet", "ds_type": "parquet", "type": None, "split": "train"}
        ]
        config |= {"eval_steps": facts["valid_every"], "eval_batch_size": facts["micro_batch"]}
    return config


def _memory(s: Settings) -> dict[str, Any]:
    precision = take_precision(s, TITLE)
    written = {"bf16": precision == "bf16", "fp16": precision == "fp16", "tf32": precision == "tf32"}
    return {**written, "gradient_checkpointing": write_recompute(s, TITLE)}


def write_recompute(s: Settings, title: str) -> bool:
    """Whether layers are recomputed: all of them or none."""
    kind = s.layout.recompute
    if kind in ("none", "full"):
        s.take("layout.recompute")
    elif hasattr(kind, "budget"):
        s.drop("layout.recompute", f"{title} has no memory budget")
        return False
    else:
        s.nearly("layout.recompute", "full", f"{title} recomputes all layers or none")
    return kind != "none"


def _layout(s: Settings, sharding: Sharding) -> dict[str, Any]:
    if sharding.kind == "deepspeed":
        return {"deepspeed": write_deepspeed(s)}
    if sharding.kind != "fsdp" and s.layout.tp == 1:
        return {}
    if s.layout.offload == "activations":
        s.drop("layout.offload", "Axolotl's FSDP offloads parameters, gradients and states alone")
    sizes = {SIZES[name]: size for name, size in sharding.sizes.items()}
    if sharding.kind != "fsdp":
        return sizes
    return {
        **sizes,
        "fsdp_version": 2,
        "fsdp_config": {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": sharding.reshard,
            "offload_params": sharding.offload,
            "state_dict_type": "SHARDED_STATE_DICT",
        },
    }


def _command(s: Settings) -> str:
    nodes, each = nodes_of(s.layout.devices)
    where = f" --nnodes={nodes} --node_rank=$NODE_RANK --master_addr=$MASTER_ADDR" if nodes > 1 else ""
    return f"python {INPUTS} && axolotl train {FILE} --launcher torchrun --{where} --nproc_per_node={each}"
