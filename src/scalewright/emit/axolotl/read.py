"""Axolotl's YAML as a run; devices are those that its sizes make."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from scalewright.emit.axolotl.words import OWN, SIZES
from scalewright.emit.deepspeed.read import fit_batch
from scalewright.emit.emitted import Reading
from scalewright.emit.numbers import real_of, true, whole_of
from scalewright.emit.rules import put
from scalewright.emit.scripts.model import read_model
from scalewright.emit.theirs import Theirs
from scalewright.emit.transformers.read import read_deepspeed, read_memory, read_numbers, read_steps
from scalewright.emit.transformers.schedule import read_optimizer, read_schedule
from scalewright.emit.transformers.words import aside
from scalewright.spec.text.dotted import flat

MARKS = {"micro_batch_size", "sequence_len", "datasets", "pretraining_dataset", "num_epochs", "lr_scheduler"}


def recognises(document: Any, text: str) -> bool:
    """A YAML with a base_model and Axolotl's own names."""
    return isinstance(document, dict) and "base_model" in document and bool(MARKS & document.keys())


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run."""
    keys = _flattened(document)
    theirs = Theirs(keys, aside(keys, OWN))
    run: dict[str, Any] = {}
    read_numbers(theirs, run)
    layout = run["layout"]
    layout["micro_batch"] = whole_of(theirs.take("micro_batch_size")) or 1
    layout["accumulation"] = whole_of(theirs.take("gradient_accumulation_steps")) or 1
    if (rows := whole_of(theirs.take("batch_size"))) is not None:
        layout["accumulation"] = max(1, rows // layout["micro_batch"])
    _read_data(theirs, run)
    _read_schedule(theirs, run, read_steps(theirs, run, "num_epochs"))
    read_memory(theirs, layout)
    if theirs.values.get("bf16", "auto") == "auto" and layout["precision"] == "fp32":
        layout["precision"] = "bf16"
    fit_batch(theirs, layout, _read_layout(theirs, run, where))
    read_model(theirs, "base_model", where, run)
    return theirs.reading("axolotl", run)


def _flattened(document: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in document.items() if key != "deepspeed"}
    keys = {
        key.replace("fsdp_config.fsdp_", "fsdp_config."): value
        for key, value in flat(rest).items()
        if value is not None
    }
    return keys | ({"deepspeed": document["deepspeed"]} if document.get("deepspeed") else {})


def _read_data(t: Theirs, run: dict[str, Any]) -> None:
    put(run, "data.seq_len", whole_of(t.take("sequence_len")) or 512)
    if (packing := t.take("sample_packing")) is not None:
        run["data"]["document_mask"] = true(packing)
    for key in ("datasets", "pretraining_dataset"):
        t.refuse(key, "texts and rows of its own: prepare them, and set data.train")


def _read_schedule(t: Theirs, run: dict[str, Any], steps: int | None) -> None:
    read_optimizer(t, run, "optimizer")
    t.values.setdefault("lr_scheduler", "cosine")
    if steps is not None and not {"warmup_steps", "warmup_ratio"} & t.values.keys():
        t.values["warmup_steps"] = min(int(0.03 * steps), 100)
        t.assume(f"a warm-up of {t.values['warmup_steps']} steps, Axolotl's default")
    read_schedule(t, run, steps, "lr_scheduler")
    if (ratio := real_of(t.take("cosine_min_lr_ratio"))) is not None:
        run["lr_schedule"]["min_ratio"] = ratio


def _read_layout(t: Theirs, run: dict[str, Any], where: str) -> int | None:
    """Sizes and stage; the devices that the sizes make, None where they aren't there."""
    layout = run["layout"]
    layout["zero_stage"] = 0
    if t.values.get("gradient_checkpointing") in ("offload", "unsloth", "offload_disk"):
        layout |= {"recompute": "full", "offload": "activations"}
    old = t.take("sequence_parallel_degree")
    sizes = {name: whole_of(t.take(theirs)) for name, theirs in SIZES.items()}
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
    read_deepspeed(t, run, where)
    known = sizes["dp_shard"] is not None or sizes["dp_replicate"] is not None
    return prod(size or 1 for size in sizes.values()) if known else None


def _read_fsdp(t: Theirs, layout: dict[str, Any]) -> None:
    strategy = str(t.take("fsdp_config.sharding_strategy", "")).upper()
    keeps = str(t.take("fsdp_config.reshard_after_forward")).lower() == "false"
    layout["zero_stage"] = 2 if keeps or strategy in ("SHARD_GRAD_OP", "2") else 3
    if true(t.take("fsdp_config.offload_params")):
        layout["offload"] = "parameters"
    if true(t.take("fsdp_config.activation_checkpointing")):
        layout["recompute"] = "full"
