"""Axolotl's YAML, both ways; its words are the Trainer's, and own ones for the layout and the data.

dp_replicate, dp_shard    dp_replicate_size, dp_shard_size
tp, cp                    tensor_parallel_size, context_parallel_size
zero_stage 2, 3           fsdp_version 2, fsdp_config.reshard_after_forward       1: deepspeed
batch                     micro_batch_size, gradient_accumulation_steps
samples                   rows/, made by make_inputs.py, in their order (curriculum_sampling)

Words are those of Axolotl 0.19 (src/axolotl/utils/schemas/*.py, read 2026-11). It ignores keys that it doesn't have.
"""

from __future__ import annotations

from math import prod
from typing import Any

from scalewright.emit.command_lines import nodes_of
from scalewright.emit.deepspeed.read import fit_batch
from scalewright.emit.emitted import Emitted, Reading
from scalewright.emit.foreign import ForeignKeys, LayoutKeys, RunKeys, real_of, true, whole_of
from scalewright.emit.rules import put
from scalewright.emit.scripts.facts import Facts, Sharding, take_facts, take_precision, take_sharding
from scalewright.emit.scripts.model import CONFIG, SAMPLES, as_yaml, read_model, render, write_config
from scalewright.emit.settings import Settings
from scalewright.emit.tables import keys_for
from scalewright.emit.transformers import arguments as trainer
from scalewright.emit.transformers import schedule as rates

SIZES = {"dp_replicate": "dp_replicate_size", "dp_shard": "dp_shard_size", "tp": "tensor_parallel_size",
         "cp": "context_parallel_size"}  # fmt: skip
OWN = keys_for("axolotl")
TITLE, VERSION = "Axolotl", "0.19"
FILE, INPUTS = "axolotl.yaml", "make_inputs.py"
CONTEXTS = {"ring": ("ring", True), "allgather": ("ring", False)}
NO_MASKS = "rows that are tokenized already have no document numbers there"
MARKS = {"micro_batch_size", "sequence_len", "datasets", "pretraining_dataset", "num_epochs", "lr_scheduler"}


def write(s: Settings) -> Emitted:
    """All files; raises UserError where it would be another layout, or another network."""
    network = write_config(s)
    sharding = take_sharding(s, TITLE, CONTEXTS, loads=False)
    facts = take_facts(s, NO_MASKS, own_loop=False)
    s.assume(f"{INPUTS} writes every sample of the run to rows/, and a row's last token has no target")
    config = _config(s, facts, sharding)
    nodes, each = nodes_of(s.layout.devices)
    where = f" --nnodes={nodes} --node_rank=$NODE_RANK --master_addr=$MASTER_ADDR" if nodes > 1 else ""
    command = f"python {INPUTS} && axolotl train {FILE} --launcher torchrun --{where} --nproc_per_node={each}"
    note = f"Written by `scalewright emit axolotl`, for Axolotl {VERSION}; it is started by"
    inputs = render("rows", f=facts, title=TITLE, disk=False, from_scratch=False)
    files = with_rows({FILE: as_yaml(config, note, command)}, inputs, network)
    return s.emitted(TITLE, "axolotl", VERSION, files, command)


def _config(s: Settings, facts: Facts, sharding: Sharding) -> dict[str, object]:
    schedule = rates.write_schedule(s, facts)
    rates.check_decay(s, facts, TITLE)
    if facts["warmup"] == 1:
        s.nearly("lr_schedule.warmup_steps", "2", "Axolotl makes two of one")
    rows = {"path": "./rows/train.parquet", "ds_type": "parquet", "type": None}
    config: dict[str, object] = {
        "base_model": facts["init"] or "./model", "tokenizer_config": "./model",
        "output_dir": f"{s.run.folder}/axolotl", "datasets": [rows], "dataset_prepared_path": "./prepared",
        "sequence_len": facts["seq_len"], "sample_packing": False, "shuffle_merged_datasets": False,
        "curriculum_sampling": True, "micro_batch_size": facts["micro_batch"],
        "gradient_accumulation_steps": facts["accumulation"], "max_steps": facts["steps"], **s.write(trainer.COMMON),
        "optimizer": rates.write_optimizer(s, TITLE), "lr_scheduler": schedule.pop("lr_scheduler_type"), **schedule,
        **write_precision(s, TITLE), "gradient_checkpointing": write_recompute(s, TITLE), **_layout(s, sharding),
        "attn_implementation": "flash_attention_2" if s.layout.cp > 1 else "sdpa", "logging_steps": 1,
        "save_steps" if facts["save_every"] else "save_strategy": facts["save_every"] or "no",
    }  # fmt: skip
    if facts["valid_every"]:
        config["test_datasets"] = [{**rows, "path": "./rows/valid.parquet", "split": "train"}]
        config |= {"eval_steps": facts["valid_every"], "eval_batch_size": facts["micro_batch"]}
    return config


def with_rows(files: dict[str, str], inputs: str, network: str) -> dict[str, str]:
    """A trainer's own files, the script that makes rows of the samples, and the network."""
    return {**files, INPUTS: inputs, "samples.py": SAMPLES, f"model/{CONFIG}": network}


def write_precision(s: Settings, title: str) -> dict[str, object]:
    """Which precision it is, as switches."""
    precision = take_precision(s, title)
    return {name: name == precision for name in ("bf16", "fp16", "tf32")}


def write_recompute(s: Settings, title: str) -> bool:
    """Whether layers are recomputed: all of them or none."""
    kind = s.layout.recompute
    if hasattr(kind, "budget"):
        s.drop("layout.recompute", f"{title} has no memory budget")
        return False
    why = f"{title} recomputes all layers or none"
    return bool(s.choose("layout.recompute", {"none": False, "full": True}, why, "full"))


def _layout(s: Settings, sharding: Sharding) -> dict[str, object]:
    if sharding.kind == "deepspeed":
        return {"deepspeed": trainer.write_deepspeed(s)}
    if sharding.kind != "fsdp" and s.layout.tp == 1:
        return {}
    if s.layout.offload == "activations":
        s.drop("layout.offload", "Axolotl's FSDP offloads parameters, gradients and states alone")
    sizes: dict[str, object] = {SIZES[name]: size for name, size in sharding.sizes.items()}
    if sharding.kind != "fsdp":
        return sizes
    fsdp = {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "reshard_after_forward": sharding.reshard,
            "offload_params": sharding.offload, "state_dict_type": "SHARDED_STATE_DICT"}  # fmt: skip
    return {**sizes, "fsdp_version": 2, "fsdp_config": fsdp}


def recognises(document: Any, text: str) -> bool:
    """A YAML with a base_model and Axolotl's own names."""
    return isinstance(document, dict) and "base_model" in document and bool(MARKS & document.keys())


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run."""
    keys = {key: value for key, value in trainer.flattened(document).items() if value is not None}
    foreign = ForeignKeys(keys, trainer.aside(keys, OWN))
    run: RunKeys = {}
    trainer.read_numbers(foreign, run)
    layout = run["layout"]
    layout["micro_batch"] = whole_of(foreign.take("micro_batch_size")) or 1
    layout["accumulation"] = whole_of(foreign.take("gradient_accumulation_steps")) or 1
    if (rows := whole_of(foreign.take("batch_size"))) is not None:
        layout["accumulation"] = max(1, rows // layout["micro_batch"])
    put(run, "data.seq_len", whole_of(foreign.take("sequence_len")) or 512)
    if (packing := foreign.take("sample_packing")) is not None:
        run["data"]["document_mask"] = true(packing)
    for key in ("datasets", "pretraining_dataset"):
        foreign.refuse(key, "texts and rows of its own: prepare them, and set data.train")
    _read_schedule(foreign, run, trainer.read_steps(foreign, run, "num_epochs"))
    trainer.read_memory(foreign, layout)
    if foreign.values.get("bf16", "auto") == "auto" and layout["precision"] == "fp32":
        layout["precision"] = "bf16"
    fit_batch(foreign, layout, _read_layout(foreign, run, where))
    read_model(foreign, "base_model", where, run)
    return foreign.reading("axolotl", run)


def _read_schedule(t: ForeignKeys, run: RunKeys, steps: int | None) -> None:
    rates.read_optimizer(t, run, "optimizer")
    t.values.setdefault("lr_scheduler", "cosine")
    if steps is not None and not {"warmup_steps", "warmup_ratio"} & t.values.keys():
        t.values["warmup_steps"] = min(int(0.03 * steps), 100)
        t.assume(f"a warm-up of {t.values['warmup_steps']} steps, Axolotl's default")
    rates.read_schedule(t, run, steps, "lr_scheduler")
    if (ratio := real_of(t.take("cosine_min_lr_ratio"))) is not None:
        run["lr_schedule"]["min_ratio"] = ratio


def _read_layout(t: ForeignKeys, run: RunKeys, where: str) -> int | None:
    """Sizes and stage; the devices that the sizes make, None where they aren't there."""
    layout = run["layout"]
    layout["zero_stage"] = 0
    if t.values.get("gradient_checkpointing") in ("offload", "unsloth", "offload_disk"):
        layout |= {"recompute": "full", "offload": "activations"}
    old = t.take("sequence_parallel_degree")
    sizes = {name: whole_of(t.take(foreign)) for name, foreign in SIZES.items()}
    sizes["cp"] = sizes["cp"] or whole_of(old)
    for name in ("dp_replicate", "tp", "cp"):
        if (size := sizes[name]) is not None and size > 1:
            layout[name] = size
    if layout.get("tp", 1) > 1:
        layout["sp"] = False
    if layout.get("cp", 1) > 1:
        layout["cp_kind"] = "ring"
    if t.take("fsdp") or any(key.startswith("fsdp_config.") for key in t.values):
        _read_fsdp(t, layout)
    trainer.read_deepspeed(t, run, where)
    known = sizes["dp_shard"] is not None or sizes["dp_replicate"] is not None
    return prod(size or 1 for size in sizes.values()) if known else None


def _read_fsdp(t: ForeignKeys, layout: LayoutKeys) -> None:
    strategy = str(t.take("fsdp_config.sharding_strategy", "")).upper()
    keeps = str(t.take("fsdp_config.reshard_after_forward")).lower() == "false"
    layout["zero_stage"] = 2 if keeps or strategy in ("SHARD_GRAD_OP", "2") else 3
    if true(t.take("fsdp_config.offload_params")):
        layout["offload"] = "parameters"
    if true(t.take("fsdp_config.activation_checkpointing")):
        layout["recompute"] = "full"
