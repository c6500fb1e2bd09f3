"""LLaMA-Factory's YAML, both ways; its words are the Trainer's, and own ones for the model and the data.

zero_stage 1 to 3     deepspeed                    samples    rows/, made by make_inputs.py (tokenized_path)
recompute full        what it does unless          order      disable_shuffling
                      disable_gradient_checkpointing
refused               tp, pp, cp, ep, dp_replicate

Words are those of LLaMA-Factory 0.9.5 (src/llamafactory/hparams/*.py, read 2026-11).
"""

from __future__ import annotations

from typing import Any

from scalewright.emit.axolotl import with_rows, write_precision, write_recompute
from scalewright.emit.command_lines import nodes_of
from scalewright.emit.deepspeed.read import fit_batch
from scalewright.emit.deepspeed.write import write_zero
from scalewright.emit.emitted import Emitted, Reading
from scalewright.emit.foreign import ForeignKeys, RunKeys, true, whole_of
from scalewright.emit.rules import put
from scalewright.emit.scripts.facts import Facts, take_facts
from scalewright.emit.scripts.model import as_yaml, read_model, render, write_config
from scalewright.emit.settings import Settings
from scalewright.emit.tables import keys_for
from scalewright.emit.transformers.arguments import BATCH, COMMON, FILLED, aside, flattened, read_arguments
from scalewright.emit.transformers.schedule import check_decay, write_optimizer, write_schedule

TITLE, VERSION = "LLaMA-Factory", "0.9.5"
FILE, INPUTS = "llama_factory.yaml", "make_inputs.py"
NO_MASKS = "rows that are tokenized already have no document numbers there"
OWN = keys_for("llama-factory")


def recognises(document: Any, text: str) -> bool:
    """A YAML with a model's path and LLaMA-Factory's own names."""
    marks = {"stage", "finetuning_type", "cutoff_len", "template", "dataset_dir"}
    return isinstance(document, dict) and "model_name_or_path" in document and bool(marks & document.keys())


def write(s: Settings) -> Emitted:
    """All files; raises UserError where it would be another layout, or another network."""
    network = write_config(s)
    s.take("layout.devices")
    facts = take_facts(s, NO_MASKS, own_loop=False)
    s.assume(f"{INPUTS} writes every sample of the run to rows/, and a row's last token has no target")
    s.assume("the token that ends a document pads, too, and as a target isn't counted")
    config = _config(s, facts)
    nodes, each = nodes_of(s.layout.devices)
    where = f"NNODES={nodes} NODE_RANK=$NODE_RANK MASTER_ADDR=$MASTER_ADDR " if nodes > 1 else ""
    launch = f"FORCE_TORCHRUN=1 {where}NPROC_PER_NODE={each} " if s.layout.devices > 1 else ""
    command = f"python {INPUTS} && {launch}llamafactory-cli train {FILE}"
    note = f"Written by `scalewright emit llama-factory`, for LLaMA-Factory {VERSION}; it is started by"
    inputs = render("rows", f=facts, title=TITLE, disk=True, from_scratch=True)
    files = with_rows({FILE: as_yaml(config, note, command)}, inputs, network)
    return s.emitted(TITLE, "llama-factory", VERSION, files, command)


def _config(s: Settings, facts: Facts) -> dict[str, object]:
    precision = write_precision(s, TITLE)
    check_decay(s, facts, TITLE)
    config: dict[str, object] = {
        "model_name_or_path": facts["init"] or "./model", "train_from_scratch": facts["init"] is None, "stage": "pt",
        "do_train": True, "finetuning_type": "full", "template": "empty",
        "dataset": "rows",  # a name that its parser asks for; what is there is read in its place
        "tokenized_path": "./rows", "cutoff_len": facts["seq_len"], "packing": False, "disable_shuffling": True,
        "output_dir": f"{s.run.folder}/llama-factory", **s.write((BATCH,)),
        "gradient_accumulation_steps": facts["accumulation"], "max_steps": facts["steps"], **s.write(COMMON),
        "optim": write_optimizer(s, TITLE), **write_schedule(s, facts), **precision,
        "disable_gradient_checkpointing": not write_recompute(s, TITLE), "flash_attn": "sdpa", **_deepspeed(s),
        "logging_steps": 1, "report_to": "none",
        "save_steps" if facts["save_every"] else "save_strategy": facts["save_every"] or "no",
    }  # fmt: skip
    if facts["valid_every"]:
        config |= {"eval_dataset": "rows", "eval_strategy": "steps", "eval_steps": facts["valid_every"],
                   "per_device_eval_batch_size": facts["micro_batch"]}  # fmt: skip
    return config


def _deepspeed(s: Settings) -> dict[str, object]:
    """ZeRO's section, the rest of which the Trainer fills in; none where nothing is sharded."""
    if s.layout.zero_stage == 0:
        s.take("layout.zero_stage")
        return {}
    untested = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    return {"deepspeed": {**FILLED, **untested, **write_zero(s)}}


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run; devices aren't in it."""
    keys = {"finetuning_type": "lora", **flattened(document)}  # its default
    foreign = ForeignKeys(keys, aside(keys, OWN))
    run: RunKeys = {}
    read_arguments(foreign, run, where)
    layout = run["layout"]
    disabled = foreign.take("disable_gradient_checkpointing")
    layout["recompute"] = "none" if true(disabled) else "full"
    if true(foreign.take("pure_bf16")):
        layout["precision"] = "bf16"
        foreign.assume("pure_bf16: weights in bf16 there, fp32 masters here")
    put(run, "data.seq_len", whole_of(foreign.take("cutoff_len")) or 2048)
    if "packing" in foreign:
        foreign.take("packing"), foreign.take("neat_packing")
        run["data"]["document_mask"] = true(foreign.values.get("neat_packing"))
    if foreign.take("finetuning_type", "full") != "full":
        foreign.refuse("finetuning_type", "all weights are trained here")
    foreign.refuse("dataset", "texts of its own: prepare them, and set data.train")
    fit_batch(foreign, layout, None)
    read_model(foreign, "model_name_or_path", where, run)
    return foreign.reading("llama-factory", run)
